"""A clock that is set back while two processes of one host record: one samples, the other has executions."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.recordings import T

from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Event, Sample
from gpu_profile.clock import Moment
from gpu_profile.recording import Recording, RecordingWriter, SpanRecord, read_recording
from gpu_profile.recording.set_clocks import recorded_clock, set_clock
from gpu_profile.testing import FakeClock

S = 1_000_000_000
MS = 1_000_000


class Clock:
    """A clock that is set back by `by_ns` after `at_ns`, both in true time since `T`."""

    def __init__(self, at_ns: int, by_ns: int) -> None:
        self.at_ns, self.by_ns = at_ns, by_ns

    def __call__(self, true_ns: int) -> int:
        return T + true_ns - self.by_ns * (true_ns > self.at_ns)


class Told(FakeClock):
    """A clock that shows the time by `clock` at `true_ns`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.true_ns = clock, 0

    def now_ns(self) -> int:
        return self.clock(self.true_ns)

    def elapsed_ns(self) -> int:
        return self.true_ns


def recorded(
    directory: Path,
    clock: Clock,
    seconds: int = 12,
    named: Callable[[str], None] = lambda _: None,
    *,
    told: bool = False,
) -> Recording:
    """Readings each 100 ms of a counter that grows by one in a millisecond, and executions of 30 ms each 70 ms.

    `told`: the processes record the moments at which the clock was set.
    """
    now = Told(clock)
    named("node")
    with RecordingWriter(directory, now_ns=now.now_ns, clock=now if told else None) as sampler:
        for at in range(0, seconds * S, 100 * MS):
            now.true_ns = at
            shown = now.now_ns()
            sampler.sample("GPU-1", Sample(rows.ENERGY, shown, shown, at // MS))
            if at % S == 0:
                sampler.sample("GPU-1", Sample(rows.POWER, shown - 25 * MS, shown, at // MS))
                sampler.event(Event("GPU-1", shown, "xid", 1, str(at)))
            sampler.maybe_flush()
    now.true_ns = 10 * MS
    named("container")
    with RecordingWriter(directory, now_ns=now.now_ns, clock=now if told else None) as program:
        for at in range(0, seconds * S - 100 * MS, 70 * MS):
            now.true_ns = at + 30 * MS
            program.span(
                SpanRecord(
                    "step",
                    clock(at),
                    clock(at + 30 * MS),
                    id=f"{at:016x}",
                    devices=("GPU-1",),
                    attributes={"true_ns": at},
                )
            )
            program.maybe_flush()
    return read_recording(directory)


@given(
    at_ms=st.integers(1, 3_799),
    by_ms=st.one_of(st.integers(2, 200), st.integers(200, 5_000), st.integers(5_000, 4_000_000)),
    back=st.booleans(),
)
def test_all_times_are_by_the_last_setting_to_the_ns_if_the_moments_are_recorded(
    at_ms: int, by_ms: int, back: bool
) -> None:
    by_ns = (by_ms * MS + 1) * (1 if back else -1)
    clock = Clock(at_ms * MS + 123, by_ns)
    with TemporaryDirectory() as directory:
        recording = recorded(Path(directory), clock, 4, told=True)
    energy, power = (recording.samples["GPU-1"][key] for key in ("energy", "power"))
    # In time that the clock can have shown by both settings, the order of a signal's readings decides.
    apart, rare = (0 if by_ms > longest else abs(by_ns) for longest in (200, 1_100 if back else 200))
    for column, within in ((energy, apart), (power, rare)):
        assert np.abs(column.t_end - (T + column.value * MS - by_ns)).max() <= within
    for span in recording.spans:
        at = T + span.attributes["true_ns"] - by_ns
        assert (span.start_ns - at, span.end_ns - at) == pytest.approx((0, 30 * MS), abs=apart), (span.attributes, span)
    assert [event.t_ns - T + by_ns for event in recording.events] == pytest.approx(list(range(0, 4 * S, S)), abs=rare)
    assert sorted(process.start_ns for process in recording.processes) == pytest.approx(
        [T - by_ns, T + 10 * MS - by_ns], abs=apart
    )
    (line,) = recording.problems
    assert (
        f"its clock was set {'back' if back else 'ahead'} by {abs(by_ns) / S:,.3f} s: earlier times are as if" in line
    )
    assert len(line) <= 200


@pytest.mark.parametrize("by_ms", [130, 200, 1_000, 4_000, 7_000, 3_600_000])
def test_all_times_are_by_the_last_setting(tmp_path: Path, by_ms: int) -> None:
    clock = Clock(6 * S + 7 * MS, by_ms * MS + 123_457)
    recording = recorded(tmp_path, clock)
    energy, power = (recording.samples["GPU-1"][key] for key in ("energy", "power"))
    true_ns = energy.value * MS
    assert np.abs(energy.t_end - (T + true_ns - clock.by_ns)).max() < MS
    assert np.abs(power.t_end - (T + power.value * MS - clock.by_ns)).max() < MS
    assert (power.t_end - power.t_start).tolist() == [25 * MS] * 12
    for span in recording.spans:
        at = T + span.attributes["true_ns"] - clock.by_ns
        assert (span.start_ns - at, span.end_ns - at) == pytest.approx((0, 30 * MS), abs=MS), (span.attributes, span)
    assert [event.t_ns - T + clock.by_ns for event in recording.events] == pytest.approx(
        list(range(0, 12 * S, S)), abs=MS
    )
    assert [process.start_ns for process in recording.processes] == pytest.approx([T - clock.by_ns] * 2, abs=20 * MS)
    (line,) = recording.problems
    assert f"its clock was set back by {by_ms / 1000:,.3f} s: earlier times are as if" in line
    assert len(line) <= 200


def test_a_container_with_a_name_of_its_own_has_the_clock_of_the_node_that_reads_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(6 * S + 7 * MS, 2 * S + 1)
    recording = recorded(tmp_path, clock, named=lambda name: monkeypatch.setattr("socket.gethostname", lambda: name))
    assert {process.host for process in recording.processes} == {"node", "container"}
    starts = [span.start_ns - T + clock.by_ns - span.attributes["true_ns"] for span in recording.spans]
    assert starts == pytest.approx([0] * len(starts), abs=MS)


def test_an_execution_that_saw_the_step_keeps_its_length(tmp_path: Path) -> None:
    clock = Clock(6 * S + 35 * MS, 2 * S + 1)
    recording = recorded(tmp_path, clock)
    (seen,) = (
        span
        for span in recording.spans
        if span.attributes["true_ns"] < clock.at_ns < span.attributes["true_ns"] + 30 * MS
    )
    assert seen.end_ns - seen.start_ns == pytest.approx(30 * MS, abs=MS)


@pytest.mark.parametrize(
    "ends",
    [
        np.arange(100),
        np.append(np.arange(20), np.arange(5, 40)),
        np.array([50, 40, 45, 30]),
        np.append(np.arange(0, 100, 2), [71, 102]),
        np.zeros(0, np.int64),
    ],
    ids=["in order", "delivered again", "in no order", "a late one", "none"],
)
def test_other_orders_are_no_set_clock(ends: np.ndarray) -> None:
    assert set_clock([ends]) is None


def test_two_stamps_in_another_order_are_no_set_clock_and_hide_none() -> None:
    ends = T + np.arange(400, dtype=np.int64) * 100_000_000
    ends[200] = ends[199] - 1_000
    assert set_clock([ends]) is None
    clock = set_clock([np.concatenate((ends, ends - 3_600_000_000_050))])
    assert clock is not None
    assert len(clock.settings) == 2


def test_equal_times_by_chance_are_no_second_delivery() -> None:
    """A driver stamps its readings in whole milliseconds: of thousands, some are equal after ten minutes come again."""
    rng = np.random.default_rng(1)
    ends = T + np.cumsum(rng.integers(95, 106, 36_000)) * MS
    again = ends[18_000] - 600 * S + np.cumsum(rng.integers(95, 106, 18_000)) * MS
    assert np.isin(again, ends).any()
    clock = set_clock([np.concatenate((ends[:18_000], again))])
    assert clock is not None
    assert clock.settings[0].ahead_ns == pytest.approx(600 * S, abs=2 * 100 * MS)


def test_several_settings_and_a_suspension(tmp_path: Path) -> None:
    clock = FakeClock()
    seen: list[tuple[int, int]] = []
    with RecordingWriter(tmp_path, clock=clock) as writer:
        for i in range(100):
            clock.advance(0.1)
            if i in (20, 40, 60):
                clock.set_forward({20: 3600.0, 40: -60.0, 60: 0.5}[i])
            if i == 80:
                clock.suspend(1000.0)
            now = clock.now_ns()
            seen.append((now, clock.elapsed_ns() + clock.suspended_ns()))
            writer.sample("GPU-1", Sample(rows.ENERGY, now, now, i))
            writer.maybe_flush()
    recording = read_recording(tmp_path)
    energy = recording.samples["GPU-1"]["energy"]
    last_ns = seen[-1][0] - seen[-1][1]
    assert energy.t_end.tolist() == [passed + last_ns for _, passed in seen]
    assert energy.value.tolist() == list(range(100))
    line, other = recording.problems
    assert "1,000.000 s are not measured, because it was suspended" in other
    assert "was set ahead by 3,600.000 s and back by 60.000 s and 1 times more: earlier" in line
    assert len(recording.processes[0].moments) == 9
    assert recording.processes[0].boot


@pytest.mark.parametrize("ahead_ns", [0, 2 * S])
def test_an_execution_is_no_shorter_than_the_clock_showed_it_while_it_was_set_back(ahead_ns: int) -> None:
    """Either setting can have shown its edges. The start is not by a later setting than the end."""
    before, after = Moment(T, 10 * S, 0), Moment(T - 2 * S + 100 * MS, 10 * S + 100 * MS, 0)
    clock = recorded_clock([before, after])
    assert clock is not None
    span = clock.span(SpanRecord("step", T - 2 * S, T), ahead_ns)
    assert span.end_ns - span.start_ns == 2 * S


def test_a_clock_that_is_not_set_costs_one_moment_and_no_line(tmp_path: Path) -> None:
    clock = FakeClock()
    with RecordingWriter(tmp_path, clock=clock) as writer:
        for i in range(100):
            clock.advance(0.1)
            writer.sample("GPU-1", Sample(rows.ENERGY, clock.now_ns(), clock.now_ns(), i))
            writer.maybe_flush()
    recording = read_recording(tmp_path)
    assert recording.problems == ()
    assert len(recording.processes[0].moments) == 1
