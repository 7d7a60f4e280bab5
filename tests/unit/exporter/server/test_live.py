import json
import struct
import threading
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.exporter import IDENTITY, FakeDriver, step_for
from unit.driver.node.rings import listed, put, table, writer

from gpu_profile.catalogue import SIGNALS, Signal
from gpu_profile.catalogue.allocation import PROCESS_MEMORY
from gpu_profile.catalogue.samples import Device, Event, Sample
from gpu_profile.catalogue.signals import (
    GRAPHICS,
    POWER,
    POWER_AVERAGE,
    POWER_LIMIT,
    TEMPERATURE,
    THROTTLES,
    UTILIZATION,
)
from gpu_profile.report.live.strands import KEEP_MS
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.readings.readings import MetricReading
from gpu_profile_exporter.server.page.history import older_samples
from gpu_profile_exporter.server.page.live import NO_REGIONS, NodeLive

EVIL = '"><script>alert("x")</script>'
GPU = Device("GPU-a", index=0, name=EVIL, memory_bytes=80 << 30)
MS = 1_000_000


class Holders:
    """A pod on the device, and a process with a name."""

    def holders(self) -> Mapping[str, Sequence[Mapping[str, str]]]:
        return {"GPU-a": [{"k8s.namespace.name": "ml", "k8s.pod.name": "train-0"}]}

    def readings(self, now_ns: int) -> Iterator[MetricReading]:
        about = {"hw.id": "GPU-a", "process.pid": "7", "process.executable.name": EVIL}
        yield MetricReading(PROCESS_MEMORY, about, 1 << 30)
        yield MetricReading(PROCESS_MEMORY, {"hw.id": "GPU-a", "process.pid": "other"}, 1 << 30)


class World:
    """A node with one GPU on a fake clock, and its live page."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.driver = FakeDriver(self.clock, (GPU,), {GRAPHICS: 2500, POWER_LIMIT: 700_000, TEMPERATURE: 55})
        self.sampler = Sampler(lambda: self.driver, clock=self.clock, retention_s=60)
        step_for(self.sampler, self.clock, 2.0)
        self.live = NodeLive(self.sampler, lambda: (IDENTITY, True), clock=self.clock, interval_s=0.1)
        self.start_ns = self.clock.now_ns()

    def send(self, signal: Signal, *rows: tuple[float, int]) -> None:
        """Samples as a reader sends them: the end in ms from the start, and the value."""
        number = SIGNALS.index(signal)
        ends = [(self.start_ns + int(ms * MS), value) for ms, value in rows]
        self.live.recent.take("GPU-a", [each for end, value in ends for each in (number, end - 50 * MS, end, value)])

    def ask(self, after: str = "") -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.live.answer(after, packed=False))
        return answer


def values(answer: dict[str, Any], chart: str) -> list[float]:
    data = b64decode(answer["samples"]["GPU-a"][chart]["v"])
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def test_samples_are_in_base_units_and_come_once() -> None:
    world = World()
    world.send(POWER, (100, 412_400), (200, 300_000))
    world.send(POWER, (200, 300_000), (250, POWER.limit + 1))
    first = world.ask()
    assert values(first, "power") == pytest.approx([412.4, 300.0], rel=1e-6)
    world.clock.advance(1)
    world.send(POWER, (300, 250_000))
    assert values(world.ask(first["cursor"]), "power") == [250.0]
    assert world.ask()["reset"]


def test_a_lesser_source_serves_only_while_the_better_one_is_silent() -> None:
    world = World()
    world.send(UTILIZATION, (100, 90))
    world.send(GRAPHICS, (200, 2500))
    world.send(UTILIZATION, (300, 90))
    world.send(POWER_AVERAGE, (100, 100_000))
    world.send(UTILIZATION, (6_000, 80))
    answer = world.ask()
    assert values(answer, "busy") == pytest.approx([0.9, 0.25, 0.8])
    assert values(answer, "power") == [100.0]


def test_samples_of_charts_wait_for_a_viewer_as_long_as_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    added: list[float] = []
    add = world.live._feed.add

    def counted(device: str, chart: str, *row: float) -> bool:
        added.append(row[0])
        return add(device, chart, *row)

    monkeypatch.setattr(world.live._feed, "add", counted)
    until_ms = round(2 * KEEP_MS)
    for from_ms in range(0, until_ms, 500):
        world.send(GRAPHICS, (from_ms + 200, 2500), (from_ms + 450, 7500))
        world.send(TEMPERATURE, (from_ms + 450, 55))
    assert not added
    found = values(world.ask(), "busy")
    assert found[-2:] == [0.25, 0.75]
    assert KEEP_MS / 250 <= len(found) == len(added) < 1.1 * KEEP_MS / 250
    world.send(GRAPHICS, (until_ms, 1000))
    world.clock.advance(1)
    assert values(world.ask(), "busy")[-2:] == pytest.approx([0.75, 0.1])


def test_the_state_has_limits_holders_processes_and_reasons() -> None:
    world = World()
    (device,) = world.ask()["devices"]
    assert device["tops"] == {"power": 700.0, "memory": 80 << 30, "clock": None}
    assert (device["temperature_c"], device["status"], device["processes"], device["holders"]) == (55, "ok", [], [])
    assert not device["gone"]
    world.live.holders = Holders()
    world.driver.lost = {"GPU-a"}
    step_for(world.sampler, world.clock, 2.0)
    answer = world.ask()
    (device,) = answer["devices"]
    assert (device["status"], device["reason"], device["gone"]) == ("failed", "GPU-a fell off the bus", True)
    assert device["processes"] == [[7, EVIL, 1 << 30, None]]
    assert device["holders"] == [["pod", "ml/train-0"]]
    assert (answer["region_note"], answer["simulated"], answer["source"]) == (
        NO_REGIONS,
        True,
        "0.1.0, reading fake 1.2.3",
    )
    world.clock.advance(60)
    assert world.ask()["reason"] == "the driver has not answered for 60 s"


def test_answers_have_the_costs_of_engines_only_if_the_exporter_has_them() -> None:
    world = World()
    assert "serving" not in world.ask()
    costs = {"over_s": 600, "engines": []}
    world.live.costs = SimpleNamespace(state=lambda: costs)
    world.clock.advance(1)
    assert world.ask()["serving"] == costs


def test_events_and_the_beginning_of_throttling_are_marks() -> None:
    world = World()
    world.live.recent.event(Event("GPU-a", world.start_ns, "xid", 79))
    now_ms = (world.clock.now_ns() - world.start_ns) / MS
    world.send(THROTTLES[0], (now_ms - 200, 5), (now_ms - 100, 5), (now_ms, 90))
    answer = world.ask()
    assert [tone for _, _, tone, _ in answer["marks"]] == ["bad", "warn"]
    assert answer["marks"][0][3].startswith("XID 79")
    assert answer["marks"][1][3] == "throttling begins: power cap"
    assert answer["devices"][0]["throttled"] == ["power cap"]
    world.clock.advance(1)
    assert world.ask(answer["cursor"])["marks"] == []
    # It begins with the first growth, of several in a message.
    world.send(THROTTLES[1], (0, 1), (20_000, 1))
    world.send(THROTTLES[1], (20_100, 1), (20_200, 40), (20_300, 70))
    world.clock.advance(1)
    (mark,) = world.ask(answer["cursor"])["marks"]
    assert mark[0] == pytest.approx(world.start_ns / MS + 20_200, abs=0.001)


def test_the_first_viewer_sees_what_a_previous_exporter_wrote(tmp_path: Path) -> None:
    world = World()
    start, s = world.start_ns, 1_000_000_000
    older = writer(tmp_path, (POWER, UTILIZATION, GRAPHICS), now_ns=start - 400 * s)
    for age_s, watts in ((400, 1), (60, 200), (50, 300), (0, 400)):
        end = start - age_s * s
        older.append([Sample(row, end - s, end, value) for row, value in ((POWER, watts * 1000), (UTILIZATION, 50))])
    put(tmp_path, table(listed(GPU, older.name, "missing")), start)
    strands = older_samples(tmp_path, start - 300 * s)
    assert set(strands) == {("GPU-a", "power"), ("GPU-a", "busy")}
    assert older_samples(tmp_path / "none", 0) == {}
    world.send(POWER, (0, 400_000), (100, 500_000))
    world.live.timeline = tmp_path
    world.ask()
    for thread in threading.enumerate():
        if thread.name == "gpu-profile-history":
            thread.join(10)
    answer = world.ask()
    assert values(answer, "power") == [200.0, 300.0, 400.0, 500.0]
    assert values(answer, "busy") == [0.5, 0.5, 0.5]
    assert not world.ask(answer["cursor"])["reset"]
