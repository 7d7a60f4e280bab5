import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.regions import Stage

from gpu_profile import region
from gpu_profile.catalogue.samples import Device
from gpu_profile.join.summary import Judged, unfinished
from gpu_profile.regimes import classify
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.regions.session import process
from gpu_profile.regions.telemetry.live_regions import LiveBlock, LiveRegions, merged
from gpu_profile.regions.telemetry.live_server import BEHIND, NO_SESSION, with_live_page
from gpu_profile.report.live import LiveFeed
from gpu_profile.testing import FakeClock

EVIL = '</script><img src=x onerror="alert(1)">'
Ask = Callable[..., tuple[str, dict[str, str], bytes]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Asks the application of a process with metrics."""
    monkeypatch.setattr(process, "_on_start", [])

    def metrics(_: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])
        return [b"x 1\n"]

    application = with_live_page(metrics)

    def get(path: str, query: str = "", method: str = "GET", **headers: str) -> tuple[str, dict[str, str], bytes]:
        answer: list[Any] = []
        named = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query, **named}
        body = b"".join(application(environ, lambda *start: answer.extend(start)))  # type: ignore[arg-type]
        return answer[0], dict(answer[1]), body

    return get


def live(ask: Ask, after: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(ask("/api/live", f"after={after}")[2])
    return answer


def test_browsers_get_the_page_and_scrapers_the_metrics(ask: Ask) -> None:
    assert ask("/metrics")[2] == ask("/")[2] == ask("/", accept="*/*")[2] == b"x 1\n"
    _, headers, body = ask("/", accept="text/html,*/*", accept_encoding="gzip")
    assert gzip.decompress(body).startswith(b"<!doctype html>")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    again = ask("/", accept="text/html", if_none_match=headers["ETag"])
    assert (again[0], again[2]) == ("304 Not Modified", b"")


@pytest.mark.parametrize("path", ["/", "/api/live", "/metrics"])
def test_head_is_get_without_the_body_and_options_names_both(ask: Ask, path: str) -> None:
    got, head = (ask(path, method=method, accept="text/html", accept_encoding="gzip") for method in ("GET", "HEAD"))
    length = {"Content-Length": str(len(got[2]))}
    assert head == (got[0], {**got[1], **length}, b"")
    status, headers, body = ask(path, method="OPTIONS")
    assert (status, headers["Allow"], body) == ("200 OK", "GET, HEAD, OPTIONS", b"")


@pytest.mark.parametrize("path", ["/", "/api/live"])
def test_a_client_that_refuses_gzip_gets_plain_answers(ask: Ask, path: str) -> None:
    _, headers, body = ask(path, accept="text/html", accept_encoding="gzip;q=0, identity")
    assert "Content-Encoding" not in headers
    assert body[:1] in b"<{"


def test_before_the_first_region_the_page_says_so(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "current", None)
    answer = live(ask)
    assert (answer["devices"], answer["region_note"]) == ([], NO_SESSION)


def test_the_samples_and_regions_of_the_process_arrive_once(stage: Stage, ask: Ask) -> None:
    with region(EVIL):
        stage.work(2.0, "a")
    stage.flush()
    first = live(ask)
    (device,) = first["devices"]
    assert (device["status"], device["reason"]) == ("ok", "")
    assert set(first["samples"][device["uuid"]]) >= {"busy", "power", "memory", "clock"}
    (row,) = first["regions"]
    assert dict(first["names"])[row["region"]] == EVIL
    assert (row["device"], row["share"], row["calls_per_s"]) == (device["uuid"], None, None)
    assert row["energy_j"] is None or row["energy_j"] > 0
    # Executions are collected from the first look on.
    assert first["blocks"] == {}
    with region(EVIL):
        stage.work(2.0, "b")
        running = live(ask, first["cursor"])["running"]
    stage.flush()
    assert [each[:2] for each in running] == [[device["uuid"], row["region"]]]
    second = live(ask, first["cursor"])
    assert not second["reset"]
    assert second["names"] == []
    assert list(second["blocks"]) == [device["uuid"]]
    assert second["regions"][0]["calls_per_s"] > 0
    stage.run(1.0)
    assert live(ask, second["cursor"])["blocks"] == {}


def test_a_region_that_begins_later_soon_has_its_rates(stage: Stage) -> None:
    feed, regions = LiveFeed("a"), LiveRegions(stage.session.joiner, stage.clock, note="they come late")

    def ran(*names: str) -> list[float | None]:
        for name in names:
            with region(name):
                stage.work(2.0, name)
        stage.flush()
        return [row["calls_per_s"] for row in sorted(state()["regions"], key=lambda row: row["region"])]

    def state() -> dict[str, Any]:
        now = regions.state(feed)
        regions.fill(feed)
        return now

    assert state()["region_note"] == "No region has run yet."
    assert ran("step") == [None]
    assert ran("step", "later") == [pytest.approx(0.25, rel=0.3), None]
    assert ran("step", "later") == [pytest.approx(0.25, rel=0.3)] * 2
    assert state()["region_note"] == "they come late"


def test_a_join_that_is_behind_is_said(stage: Stage, ask: Ask) -> None:
    with region("step"):
        stage.work(1.0, "a")
    stage.flush()
    assert live(ask)["region_note"] == ""
    with region("step"):
        stage.clock.advance(9.0)  # and nobody joins
    assert live(ask)["region_note"] == BEHIND.format(9)
    stage.flush()
    stage.clock.advance(1.0)
    assert live(ask)["region_note"] == ""


def test_without_a_viewer_no_execution_is_collected(stage: Stage, ask: Ask) -> None:
    before = list(stage.session.joiner.on_settled)
    live(ask)
    assert len(stage.session.joiner.on_settled) == len(before) + 1
    stage.run(16.0)
    with region("step"):
        stage.work(0.1, "a")
    stage.flush()
    assert stage.session.joiner.on_settled == before


def test_many_short_executions_merge_and_long_ones_stay() -> None:
    few = [("GPU-a", "step", 1_000_000, 3_000_000)]
    assert merged(few) == [LiveBlock("GPU-a", "step", 3.0, 2.0, 1, 1.0)]
    many = [("GPU-a", "step", i * 1_000_000, i * 1_000_000 + 500_000) for i in range(1_000)]
    blocks = merged([*many, ("GPU-a", "long", 0, 900_000_000)])
    assert sum(block.n for block in blocks) == 1_001
    assert len(blocks) <= 12
    assert [block.end_ms for block in blocks] == sorted(block.end_ms for block in blocks)
    (long,) = (block for block in blocks if block.region == "long")
    assert (long.n, long.length_ms) == (1, 900.0)
    assert all(block.fill == pytest.approx(0.5, abs=0.01) for block in blocks if block is not long)


def test_executions_of_another_machines_clock_take_no_others_place(stage: Stage) -> None:
    feed, regions = LiveFeed("a"), LiveRegions(stage.session.joiner, stage.clock)
    now_ns, s = stage.clock.now_ns(), 1_000_000_000
    for name, age_s in (("tomorrow", -86_400), ("now", 1), ("long ago", 900)):
        regions._ended.append(("GPU-a", name, now_ns - (age_s + 1) * s, now_ns - age_s * s))
    regions.fill(feed)
    assert feed.blocks("GPU-a").total == 1
    assert json.loads(feed.answer("", now_ns / 1e6, dict))["names"] == [[0, "now"]]


def test_of_very_many_regions_those_that_are_shown_have_names_of_their_own() -> None:
    nothing = Evidence("counters", {}, 0, 0.0)
    summaries = [replace(unfinished(f"region {i}", Device("GPU-a"), nothing), energy_j=float(i)) for i in range(400)]
    joiner: Any = SimpleNamespace(
        changes=SimpleNamespace(on_change=[]),
        verdicts=SimpleNamespace(every=lambda: [Judged(each, classify(nothing)) for each in summaries], durations={}),
        backlog=SimpleNamespace(running=()),
    )
    feed = LiveFeed("a")
    rows = LiveRegions(joiner, FakeClock()).state(feed)["regions"]
    names = dict(json.loads(feed.answer("", 0.0, dict))["names"])
    assert [names[row["region"]] for row in rows] == [f"region {i}" for i in range(399, 299, -1)]
