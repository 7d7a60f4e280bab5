"""A clock that is set, or a machine that is suspended, while a job is recorded: the same results without it."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_profile.analysis import Analysis, analyse
from gpu_profile.analysis.devices import timeline_of
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import ENERGY, UTILIZATION
from gpu_profile.driver.replay import ReplayDriver
from gpu_profile.recording import Recording, RecordingWriter, SpanRecord, read_recording
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile.units import NS_PER_S

MS = 1_000_000
LENGTH_MS = 30_000
#: Power and busy share of the regions, in W and %.
REGIONS = {"hot": (600, 90), "cool": (250, 40)}


def edges() -> tuple[list[tuple[str, int, int]], np.ndarray, np.ndarray]:
    """Executions in ms, and the energy in mJ and the busy time in % ms up to each ms. Without work, it draws 100 W."""
    rng, at, spans = np.random.default_rng(3), 200, list[tuple[str, int, int]]()
    watts, busy = np.full(LENGTH_MS, 100), np.zeros(LENGTH_MS, np.int64)
    while at < LENGTH_MS - 1_000:
        name = list(REGIONS)[int(rng.integers(2))]
        end = at + int(rng.integers(50, 900))
        watts[at:end], busy[at:end] = REGIONS[name]
        spans.append((name, at, end))
        at = end + int(rng.integers(5, 300))
    return spans, np.append(0, watts.cumsum()), np.append(0, busy.cumsum())


def recorded(happens: Callable[[FakeClock], None], at_ms: int, *, told: bool = True) -> Recording:
    """A job in which something happens to the clock after `at_ms`. `told`: the recording has the moments of that."""
    with TemporaryDirectory() as directory:
        record(Path(directory), happens, at_ms, told=told)
        return read_recording(directory)


def record(
    directory: Path, happens: Callable[[FakeClock], None], at_ms: int, *, told: bool = True, grows_j: int = 0
) -> None:
    """Write that recording. The energy counter grows by `grows_j` when it happens."""
    clock = FakeClock()
    spans, energy, busy = edges()
    shown = np.zeros(LENGTH_MS + 1, np.int64)
    with RecordingWriter(directory, now_ns=clock.now_ns, clock=clock if told else None) as writer:
        writer.device(Device("GPU-a", index=0))
        for ms in range(LENGTH_MS + 1):
            shown[ms] = clock.now_ns()
            if ms % 100 == 7:
                now = clock.now_ns()
                writer.sample("GPU-a", Sample(ENERGY, now, now, int(energy[ms])))
                mean = round((busy[ms] - busy[max(0, ms - 100)]) / 100)
                writer.sample("GPU-a", Sample(UTILIZATION, now - 100 * MS, now, mean))
                while spans and spans[0][2] <= ms:
                    name, *both = spans.pop(0)
                    start, end = shown[both].tolist()
                    writer.span(SpanRecord(name, start, end, id=f"{start:016x}", devices=("GPU-a",)))
                writer.maybe_flush()
            if ms == at_ms:
                happens(clock)
                energy[ms + 1 :] += 1000 * grows_j
            clock.advance(0.001)


@cache
def plain() -> Analysis:
    return analyse(recorded(lambda _: None, 0))


def set_by(seconds: float) -> Callable[[FakeClock], None]:
    return lambda clock: clock.set_forward(seconds)


@settings(max_examples=10)
@given(at_ms=st.integers(3_000, 27_000), ahead_ms=st.one_of(st.integers(150, 5_000), st.integers(5_000, 4_000_000)))
def test_a_job_has_the_results_that_it_has_without_the_step(at_ms: int, ahead_ms: int) -> None:
    found, expected = analyse(recorded(set_by(ahead_ms / 1000), at_ms)), plain()
    (device,), (before,) = found.devices, expected.devices
    assert device.energy_j == pytest.approx(before.energy_j, rel=1e-6)
    assert (device.power_w, device.utilization) == pytest.approx((before.power_w, before.utilization), rel=1e-6)
    for use, other in zip(found.regions, expected.regions, strict=True):
        ours, theirs = use.summary, other.summary
        assert ours.region == theirs.region
        assert ours.durations.total_s == pytest.approx(theirs.durations.total_s, rel=1e-6)
        assert (ours.energy_j, ours.power_w) == pytest.approx((theirs.energy_j, theirs.power_w), rel=1e-3)
    assert [note for note in found.notes if "set ahead" in note]


def regions_of(analysis: Analysis) -> dict[str, float | None]:
    """Power by region."""
    return {use.summary.region: use.summary.power_w for use in analysis.regions}


@pytest.mark.parametrize("seconds", [0.3, 8.0, 3600.0])
def test_nothing_is_measured_while_the_machine_is_suspended(seconds: float) -> None:
    recording = recorded(lambda clock: clock.suspend(seconds), 15_050)
    (pause,) = recording.pauses["GPU-a"]
    assert pause.end_ns - pause.start_ns == round(seconds * 1e9)
    (line,) = recording.problems
    assert f"{seconds:,.3f} s are not measured, because it was suspended" in line
    found = analyse(recording)
    (device,), (before,) = found.devices, plain().devices
    assert device.power_w == pytest.approx(before.power_w, rel=1e-6)
    assert device.energy_coverage == pytest.approx(29.9 / (29.9 + seconds), rel=0.01)
    for region, watts in regions_of(found).items():
        assert watts == pytest.approx(regions_of(plain())[region], rel=0.05)


@pytest.mark.parametrize("seconds", [6.0, 60.0, 3600.0])
@pytest.mark.parametrize("happens", ["set_forward", "suspend"])
def test_without_recorded_moments_a_step_ahead_shows_by_the_energy_counter(seconds: float, happens: str) -> None:
    recording = recorded(lambda clock: getattr(clock, happens)(seconds), 15_050, told=False)
    assert len(recording.pauses["GPU-a"]) == 1
    (line,) = recording.problems
    assert "its energy counters stood still" in line
    found = analyse(recording)
    (device,), (before,) = found.devices, plain().devices
    assert device.power_w == pytest.approx(before.power_w, rel=2e-3)
    for region, watts in regions_of(found).items():
        assert watts == pytest.approx(regions_of(plain())[region], rel=0.05)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(("seconds", "grows_j"), [(8.0, 0), (60.0, 0), (8.0, 100_000)])
def test_a_replay_covers_the_time_that_the_analysis_covers(
    tmp_path: Path, seconds: float, grows_j: int, told: bool
) -> None:
    """`grows_j`: the growth of the counter during the suspension, more than the device can draw."""
    record(tmp_path, lambda clock: clock.suspend(seconds), 15_050, told=told or grows_j > 0, grows_j=grows_j)
    recording = read_recording(tmp_path)
    expected = timeline_of(Device("GPU-a", index=0), recording.samples["GPU-a"], [], recording.pauses["GPU-a"])
    clock = FakeClock()
    sampler = Sampler(lambda: ReplayDriver(tmp_path, clock=clock), clock=clock)
    while clock.elapsed_ns() < (LENGTH_MS / 1000 + 1) * NS_PER_S:
        clock.advance(max(0.05, sampler.step()))
    (replayed,) = sampler.timelines
    for signal in (ENERGY, UTILIZATION):
        found, wanted = replayed.columns[signal], expected.columns[signal]
        assert (found.total_mass, found.total_covered_ns) == (wanted.total_mass, wanted.total_covered_ns), signal.key
    assert replayed.columns[ENERGY].total_covered_ns == pytest.approx(29.8 * NS_PER_S, abs=0.3 * NS_PER_S)


def test_a_pause_of_the_sampler_is_no_step(tmp_path: Path) -> None:
    joules = 0
    with RecordingWriter(tmp_path, now_ns=lambda: 10**18) as writer:
        for tenth in range(1300):
            # Work, and rest. Nothing is read for most of the rest.
            joules += 60 if not 300 <= tenth < 1000 else 10
            if not 350 <= tenth < 1000:
                at = 10**18 + tenth * 10**8
                writer.sample("GPU-a", Sample(ENERGY, at, at, 1000 * joules))
    recording = read_recording(tmp_path)
    assert (recording.pauses, recording.problems) == ({}, ())
