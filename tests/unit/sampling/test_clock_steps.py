"""A clock that is set ahead while devices are sampled: time that never passed is no measured time."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.exporter import FakeDriver

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, Interval, Sample
from gpu_profile.catalogue.signals import ENERGY, MEMORY_USED, UTILIZATION
from gpu_profile.join.reading import Reading, read
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import START_NS, FakeClock
from gpu_profile.units import NS_PER_S

MS = 1_000_000
#: Power in W in each 100 ms: from one to the next, it changes by at most 10 W.
POWER = 400 + np.random.default_rng(5).integers(-10, 11, 100).cumsum()


class TrueDriver(FakeDriver):
    """Its counter counts `POWER` by the time that has passed, in mJ. `at_read` is called within each read."""

    def _sample(self, device: Device, row: Signal) -> Sample:
        sample = super()._sample(device, row)
        if row is not ENERGY:
            return sample
        passed_ns = self.clock.elapsed_ns()
        whole, rest = divmod(passed_ns, 100 * MS)
        return sample._replace(value=int(POWER[:whole].sum()) * 100 + int(POWER[whole]) * rest // MS)


def sampled(at_ms: int, ahead_s: float, seconds: float = 8.0) -> tuple[Sampler, int]:
    """A sampler after `seconds`, and how far its clock was set ahead after `at_ms`."""
    clock = FakeClock()
    driver = TrueDriver(clock, [Device("GPU-a", index=0)], {ENERGY: 0, MEMORY_USED: 7, UTILIZATION: 50})
    sampler = Sampler(lambda: driver, clock=clock)
    while clock.elapsed_ns() < seconds * NS_PER_S:
        delay_ns = max(MS, round(sampler.step() * NS_PER_S))
        before_ns = at_ms * MS - clock.elapsed_ns()
        if 0 <= before_ns < delay_ns:
            clock.advance(before_ns / NS_PER_S)
            clock.set_forward(ahead_s)
            delay_ns -= before_ns
        clock.advance(delay_ns / NS_PER_S)
    return sampler, round(ahead_s * NS_PER_S)


def reading(sampler: Sampler, start_ms: int, end_ms: int, at_ms: int, ahead_ns: int, signal: Signal) -> Reading | None:
    """The reading of a region with these edges in true time. The clock was set ahead after `at_ms`."""
    column = sampler.timelines[0].columns[signal]
    start, end = (START_NS + ms * MS + ahead_ns * (ms > at_ms) for ms in (start_ms, end_ms))
    return read(column, Interval(start, end))


PLAIN, _ = sampled(0, 0.0)


@given(
    at_ms=st.integers(500, 7_000),
    ahead_ms=st.integers(1, 4_000_000),
    start_ms=st.integers(200, 6_500),
    length_ms=st.integers(20, 3_000),
)
def test_a_region_has_the_energy_that_it_has_without_the_step(
    at_ms: int, ahead_ms: int, start_ms: int, length_ms: int
) -> None:
    sampler, ahead_ns = sampled(at_ms, ahead_ms / 1000)
    end_ms = min(start_ms + length_ms, 7_800)
    for signal in (ENERGY, UTILIZATION):
        expected = reading(PLAIN, start_ms, end_ms, 0, 0, signal)
        found = reading(sampler, start_ms, end_ms, at_ms, ahead_ns, signal)
        assert expected is not None
        # A row spreads its growth evenly: 10 W more or less over 0.1 s at each edge.
        apart = 2.0
        if any(abs(at_ms - edge) <= 101 for edge in (start_ms, end_ms)):
            # The region begins or ends in the row with the step. Without the step's place, this row is not known there.
            apart += 0.1 * expected.maximum
        if found is not None:
            assert found.total == pytest.approx(expected.total, abs=apart)
            assert found.mean == pytest.approx(expected.mean, abs=30)
        else:
            assert expected.total <= apart


@pytest.mark.parametrize("back_s", [0.15, 0.9, 3.0, 60.0])
def test_a_region_after_a_step_back_has_nothing_from_before_it(back_s: float) -> None:
    at_ms = 4_030
    sampler, ahead_ns = sampled(at_ms, -back_s)
    covered = 0
    for start_ms in range(at_ms + 1, 7_700, 50):
        expected = reading(PLAIN, start_ms, start_ms + 200, 0, 0, ENERGY)
        found = reading(sampler, start_ms, start_ms + 200, at_ms, ahead_ns, ENERGY)
        assert expected is not None
        if found is not None:
            covered += 1
            assert found.mean == pytest.approx(expected.mean, abs=10)
    assert covered >= 68
    assert sampler.timelines[0].columns[ENERGY].dropped["clock set back"] == 1


@pytest.mark.parametrize("ahead_s", [0.5, 3.0, 60.0])
def test_no_signal_covers_time_that_never_passed(ahead_s: float) -> None:
    sampler, _ = sampled(5_050, ahead_s)
    for signal, within_s in ((ENERGY, 0.2), (UTILIZATION, 0.2), (MEMORY_USED, 1.2)):
        column = sampler.timelines[0].columns[signal]
        assert column.total_covered_ns == pytest.approx(8 * NS_PER_S, abs=within_s * NS_PER_S), signal.key
        assert column.dropped["clock set back"] == 0


def test_buffers_with_samples_from_before_a_step_within_the_round_show_no_step_back() -> None:
    clock = FakeClock()

    class Buffered(FakeDriver):
        steps = False

        def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
            if self.steps:
                self.steps = False
                clock.set_forward(60)
            return super().read(device, tier)

        def drain(self, device: Device) -> Sequence[Sample]:
            # What the last 0.5 s contained, by the clock before the step.
            ends = range(stamp_ns := before_ns[0], stamp_ns + 500 * MS, 100 * MS)
            return [Sample(UTILIZATION, end - 100 * MS, end, 50) for end in ends]

    before_ns = [clock.now_ns()]
    driver = Buffered(clock, [Device("GPU-a", index=0), Device("GPU-b", index=1)], {ENERGY: 0})
    sampler = Sampler(lambda: driver, clock=clock)
    for driver.steps in (False, False, True):
        sampler.step(force=True)
        before_ns[0] += 500 * MS
        clock.advance(0.5)
    for timeline in sampler.timelines:
        assert timeline.columns[UTILIZATION].dropped["clock set back"] == 0
