"""Regions that are open while their GPU is busy without movement: the verdict, the time and the events."""

from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

import pytest
from support.worlds import T0
from unit.join.boards import HOPPER, PRODUCT, SPIN, WAITING, Board

from gpu_profile.catalogue.samples import Event
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Regime
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.joiner import Joiner
from gpu_profile.regions.session.placement import Placement
from gpu_profile.regions.telemetry.counters import COUNTERS
from gpu_profile.report.table import region_row
from gpu_profile.testing import FakeClock
from gpu_profile.units import NS_PER_S

UUID = HOPPER.uuid


class Program:
    """A program whose regions run on a board, with its join at each reading."""

    def __init__(self) -> None:
        self.board = Board(timeline=True)
        self.clock, self.told, self.began = FakeClock(T0), list[Event](), deque[Execution]()
        sampler: Any = SimpleNamespace(
            states={UUID: SimpleNamespace(device=HOPPER)},
            stats=SimpleNamespace(turned_ns=1),
            driver=None,
            timeline=lambda _: self.board.columns,
            event_sinks=[self.told.append],
            relist_devices=lambda: None,
        )
        placement = Placement(None)
        placement.update([HOPPER], None, simulated=True)
        self.joiner = Joiner(sampler, placement, self.clock, DEFAULT_THRESHOLDS, Counter())
        self.board.after.append(self._join)
        self._join(self.board.now_ns)

    def _join(self, now_ns: int) -> None:
        self.clock.advance((now_ns - self.clock.now_ns()) / NS_PER_S)
        self.joiner.join(self.began, final=False)

    def begin(self, name: str) -> Execution:
        execution = Execution(name)
        execution.start_ns = self.board.now_ns
        self.began.append(execution)
        return execution

    def end(self, execution: Execution) -> None:
        execution.end_ns = self.board.now_ns

    def regime(self, region: str) -> Regime:
        (found,) = [judged.verdict.regime for judged in self.joiner.regions() if judged.summary.region == region]
        return found

    def seconds(self) -> dict[tuple[str, ...], float]:
        (read,) = [read for metric, read in COUNTERS if metric.otel == "gpu_profile.region.spinning"]
        return read(self.joiner)


def test_an_open_region_on_a_gpu_that_spins_gets_the_verdict_the_time_and_one_event_at_each_edge(
    caplog: pytest.LogCaptureFixture,
) -> None:
    program = Program()
    program.board.run(WAITING, 5)
    for _ in range(5):
        step = program.begin("step")
        program.board.run(PRODUCT, 2)
        program.end(step)
    program.board.run(PRODUCT, 1)
    assert program.regime("step") is not Regime.SPINNING
    assert program.seconds() == {}
    outer, stuck = program.begin("epoch"), program.begin("step")
    onset = program.board.now_ns
    program.board.run(SPIN, 14)
    assert not program.told
    program.board.run(SPIN, 26)
    assert program.regime("step") is Regime.SPINNING
    assert [key[0] for key in program.seconds()] == ["step"]
    assert program.seconds()["step", UUID] == pytest.approx(40, abs=3)
    (event,) = program.told
    assert (event.kind, event.device) == ("spinning", UUID)
    assert event.t_ns == pytest.approx(onset, abs=2 * NS_PER_S)
    assert event.message.startswith("region step of process ")
    assert len(event.message) <= 200
    program.end(stuck)
    program.end(outer)
    program.board.run(PRODUCT, 5)
    assert [event.kind for event in program.told] == ["spinning", "moving"]
    assert program.regime("step") is not Regime.SPINNING
    assert len([record for record in caplog.records if "spin" in record.getMessage()]) == 1


def test_a_region_whose_first_execution_hangs_gets_the_verdict_too_and_loses_it_when_work_goes_on() -> None:
    program = Program()
    program.board.run(WAITING, 5)
    stuck = program.begin("init")
    program.board.run(PRODUCT, 3)
    assert program.joiner.regions() == []
    program.board.run(SPIN, 40)
    assert program.regime("init") is Regime.SPINNING
    ((summary, _),) = program.joiner.regions()
    assert (summary.executions, summary.durations.calls, summary.busy, summary.energy_j) == (0, 0, None, None)
    assert summary.reason == "its first execution has not ended"
    assert "SPINNING" in region_row(*program.joiner.regions()[0])[-1]
    program.board.run(PRODUCT, 5)
    assert program.joiner.regions() == []
    program.end(stuck)
    program.board.run(PRODUCT, 5)
    assert program.regime("init") is not Regime.SPINNING


def test_regions_that_end_meanwhile_are_progress() -> None:
    program = Program()
    program.board.run(WAITING, 5)
    program.begin("serve")
    for _ in range(20):
        request = program.begin("request")
        program.board.run(SPIN, 2)
        program.end(request)
    assert not program.told
    assert program.seconds() == {}


def test_without_an_open_region_the_sensors_alone_decide_and_no_region_is_charged() -> None:
    program = Program()
    program.board.run(WAITING, 5)
    program.board.run(SPIN, 20)
    (event,) = program.told
    assert event.message.startswith("no region is open: busy for ")
    assert program.seconds() == {}
