"""A clock that is set back while two processes of one host record: one samples, the other has executions."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.recordings import Now, T

from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Event, Sample
from gpu_profile.recording import Recording, RecordingWriter, SpanRecord, read_recording
from gpu_profile.recording.set_clocks import set_clock

S = 1_000_000_000
MS = 1_000_000


class Clock:
    """A clock that is set back by `by_ns` after `at_ns`, both in true time since `T`."""

    def __init__(self, at_ns: int, by_ns: int) -> None:
        self.at_ns, self.by_ns = at_ns, by_ns

    def __call__(self, true_ns: int) -> int:
        return T + true_ns - self.by_ns * (true_ns > self.at_ns)


def recorded(
    directory: Path, clock: Clock, seconds: int = 12, named: Callable[[str], None] = lambda _: None
) -> Recording:
    """Readings each 100 ms of a counter that grows by one in a millisecond, and executions of 30 ms each 70 ms."""
    now = Now()
    now.ns = clock(0)
    named("node")
    with RecordingWriter(directory, now_ns=now) as sampler:
        for at in range(0, seconds * S, 100 * MS):
            now.ns = clock(at)
            sampler.sample("GPU-1", Sample(rows.ENERGY, now.ns, now.ns, at // MS))
            if at % S == 0:
                sampler.sample("GPU-1", Sample(rows.POWER, now.ns - 25 * MS, now.ns, at // MS))
                sampler.event(Event("GPU-1", now.ns, "xid", 1, str(at)))
            sampler.maybe_flush()
    now.ns = clock(10 * MS)
    named("container")
    with RecordingWriter(directory, now_ns=now) as program:
        for at in range(0, seconds * S - 100 * MS, 70 * MS):
            now.ns = clock(at + 30 * MS)
            program.span(
                SpanRecord("step", clock(at), now.ns, id=f"{at:016x}", devices=("GPU-1",), attributes={"true_ns": at})
            )
            program.maybe_flush()
    return read_recording(directory)


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
