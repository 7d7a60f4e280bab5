import base64
import gzip
import hashlib
import json
import re
from dataclasses import dataclass, field

import pytest
from support.exporter import IDENTITY, FakeDriver, step_for

from gpu_profile.catalogue.samples import Device
from gpu_profile.catalogue.signals import GRAPHICS, MEMORY_USED, POWER, TEMPERATURE
from gpu_profile.errors import GpuBackendError
from gpu_profile.report.live import LivePage
from gpu_profile.report.live.page import live_page
from gpu_profile.report.page import _AXIS
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.readings.health import Health, health
from gpu_profile_exporter.server.page import PageData, describe
from gpu_profile_exporter.server.routes import Request, Response, Routes

EVIL = '</script><script>alert("x")</script>&$driver'
A = Device("GPU-a", index=0, name="NVIDIA A", memory_bytes=80 << 30)
B = Device("GPU-b", index=1, name=EVIL)


def page(sampler: Sampler, clock: FakeClock, *, simulated: bool = False) -> PageData:
    return describe(sampler, IDENTITY, clock.now_ns(), simulated=simulated)


@dataclass
class Source:
    """A node that has nothing but answers."""

    state: Health = field(default_factory=lambda: Health(alive=True, ready=True))
    text: bytes = b"x 1\n" * 1000
    data: PageData = field(default_factory=lambda: page(*world()[:2]))
    accepted: list[str] = field(default_factory=list)

    def health(self) -> Health:
        return self.state

    def metrics(self, accept: str) -> tuple[bytes, str]:
        self.accepted.append(accept)
        return self.text, "text/plain; version=0.0.4"

    def devices(self) -> PageData:
        return self.data

    @property
    def live(self) -> "Source":
        return self

    @property
    def page(self) -> LivePage:
        return live_page("a node", (("metrics", "metrics"),))

    def answer(self, after: str, *, packed: bool) -> bytes:
        self.accepted.append(after)
        text = b'{"cursor": "a.1"}'
        return gzip.compress(text) if packed else text


def world(seconds: float = 2.0) -> tuple[Sampler, FakeClock, FakeDriver]:
    clock = FakeClock()
    values = {GRAPHICS: 2500, POWER: 412_400, TEMPERATURE: 55, MEMORY_USED: 40 << 10}
    driver = FakeDriver(clock, (A, B), dict(values))
    sampler = Sampler(lambda: driver, clock=clock, retention_s=60)
    step_for(sampler, clock, seconds)
    return sampler, clock, driver


def get(path: str, source: Source | None = None, method: str = "GET", **headers: str) -> Response:
    source = source or Source()
    routes = Routes(source.metrics, source.health, source.devices, source.live)
    path, _, query = path.partition("?")
    return routes.respond(Request(method, path, {k.replace("_", "-"): v for k, v in headers.items()}, query))


def test_metrics_hands_the_accept_header_on_and_the_content_type_back() -> None:
    source = Source()
    response = get("/metrics", source, accept="text/plain")
    assert (response.status, response.body, response.content_type) == (200, source.text, "text/plain; version=0.0.4")
    assert source.accepted == ["text/plain"]


@pytest.mark.parametrize("accepted", ["gzip", "deflate, gzip;q=1.0", "GZIP"])
def test_a_client_that_takes_gzip_gets_gzip(accepted: str) -> None:
    response = get("/metrics", accept_encoding=accepted)
    assert ("Content-Encoding", "gzip") in response.headers
    assert gzip.decompress(response.body) == Source().text


@pytest.mark.parametrize("accepted", ["", "identity", "br", "gzip;q=0", "gzip; q=0.0"])
def test_a_client_that_does_not_take_gzip_gets_plain_text(accepted: str) -> None:
    response = get("/metrics", accept_encoding=accepted)
    assert response.body == Source().text
    assert "Content-Encoding" not in dict(response.headers)


def test_a_short_answer_is_not_worth_compressing() -> None:
    assert get("/-/ready", accept_encoding="gzip").body == b"ready\n"


@pytest.mark.parametrize(
    ("state", "ready", "healthy"),
    [
        (Health(alive=True, ready=True), (200, b"ready\n"), (200, b"healthy\n")),
        (
            Health(alive=True, ready=False, reason="no GPU driver"),
            (503, b"not ready: no GPU driver\n"),
            (200, b"healthy: no GPU driver\n"),
        ),
        (Health(alive=False, ready=False, reason="end"), (503, b"not ready: end\n"), (503, b"not healthy: end\n")),
    ],
)
def test_readiness_is_about_the_driver_and_liveness_about_the_process(
    state: Health, ready: tuple[int, bytes], healthy: tuple[int, bytes]
) -> None:
    for path, expected in (("/-/ready", ready), ("/-/healthy", healthy)):
        response = get(path, Source(state))
        assert (response.status, response.body) == expected


def test_unknown_paths_and_methods_are_refused() -> None:
    assert get("/nothing").status == 404
    response = get("/metrics", method="POST")
    assert response.status == 405
    assert ("Allow", "GET, HEAD") in response.headers


def test_a_sampler_without_a_driver_is_alive_and_not_ready_with_the_drivers_reason(clock: FakeClock) -> None:
    def refuse() -> FakeDriver:
        raise GpuBackendError("libnvidia-ml.so.1 was not found")

    sampler = Sampler(refuse, clock=clock)
    assert health(sampler, clock.now_ns()).alive is False
    sampler.start()
    while not sampler.stats.turned_ns:
        clock.advance(0)
    state = health(sampler, sampler.stats.turned_ns)
    sampler.stop()
    assert state == Health(alive=True, ready=False, reason="libnvidia-ml.so.1 was not found")


def test_the_json_tells_every_device_in_base_units() -> None:
    sampler, clock, _ = world()
    data = json.loads(get("/api/devices", Source(data=page(sampler, clock))).body)
    assert data["reason"] == ""
    assert data["driver"] == "fake"
    first, second = data["devices"]
    assert first["busy"] == 0.25
    assert first["busy_source"] == "graphics"
    assert first["power_w"] == 412.4
    assert first["memory_used_bytes"] == 40 << 30
    assert first["memory_bytes"] == 80 << 30
    assert first["temperature_c"] == 55
    assert first["status"] == "ok"
    assert 0 <= first["age_s"] < 0.2
    assert second["memory_bytes"] is None


def test_a_lost_device_is_told_without_old_values() -> None:
    sampler, clock, driver = world()
    driver.lost = {"GPU-a"}
    step_for(sampler, clock, 0.2)
    first, second = page(sampler, clock)["devices"]
    assert (first["status"], first["reason"]) == ("failed", "GPU-a fell off the bus")
    assert [first[key] for key in ("busy", "power_w", "memory_used_bytes", "temperature_c")] == [None] * 4
    assert second["status"] == "ok"


def test_the_page_runs_only_its_own_scripts_and_a_browser_keeps_it() -> None:
    response = get("/", accept_encoding="gzip")
    headers, text = dict(response.headers), gzip.decompress(response.body).decode()
    assert "unsafe" not in headers["Content-Security-Policy"]
    for element in ("script", "style"):
        parts = re.findall(rf"<{element}[^>]*>(.*?)</{element}>", text, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts]
        allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
        assert parts
        assert f"{element}-src {allowed};" in headers["Content-Security-Policy"]
    assert not re.search(r"<[^>]*\s(style|on\w+)=", text)
    assert not re.search(r"https?://", text)
    assert len(get("/").body) <= 150_000
    again = get("/", if_none_match=f'W/{headers["ETag"]}, "x"')
    assert (again.status, again.body) == (304, b"")
    assert get("/", if_none_match='"x"').status == 200


def test_without_scripts_the_page_leads_to_the_metrics() -> None:
    (shown,) = re.findall("<noscript>(.*?)</noscript>", get("/").body.decode().replace(_AXIS, ""), re.DOTALL)
    assert 'href="metrics"' in shown


@pytest.mark.parametrize(
    ("query", "after"),
    [("after=a.1", "a.1"), ("", ""), ("x=1&after=a-1.2", "a-1.2"), (f"after={'1' * 60}", ""), ("after=%00<", "\0<")],
)
def test_the_cursor_of_a_live_answer_is_passed_on(query: str, after: str) -> None:
    source = Source()
    response = get(f"/api/live?{query}", source, accept_encoding="gzip")
    assert json.loads(gzip.decompress(response.body)) == {"cursor": "a.1"}
    assert source.accepted == [after]
    assert ("Cache-Control", "no-store") in response.headers
