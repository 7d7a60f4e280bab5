"""A loop of regions whose rates are known, sampled ten times a second and unmixed: is the truth in the intervals?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gpu_profile.calibration.playing import Played
from gpu_profile.calibration.response import SensorResponse
from gpu_profile.calibration.workers import LEVELS
from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.activities import DeviceExecution
from gpu_profile.join.unmixing.expected import DevicePrior, SensorPrior
from gpu_profile.join.unmixing.pooling import Pool

#: As a running program is sampled.
_INTERVAL_NS: Final = 100_000_000
#: A rate is steady to this share: a device warms up between the chips and the loop.
_STEADY: Final = 0.02


class Checked(NamedTuple):
    """A rate of a region of the loop, and the truth, both with half-widths. `reason`: why the rate was not told."""

    region: str
    signal: str
    told: float
    half_width: float
    truth: float
    truth_half_width: float
    reason: str

    @property
    def missed(self) -> bool:
        """Whether the truth lies outside the interval."""
        room = self.half_width + self.truth_half_width + _STEADY * abs(self.truth)
        return not self.reason and abs(self.told - self.truth) > room


def check(
    device: Device, played: Played, responses: Mapping[Signal, SensorResponse], known: Mapping[Signal, SensorPrior]
) -> list[Checked]:
    """What the loop's regions are told to be, by every signal that answers to the load."""
    samples = _sampled(played)
    # The capacity of hours: no row may leave.
    timeline = Timeline(device, {sample.signal for sample in samples}, capacity=1 << 16)
    for sample in samples:
        timeline.append([sample], played.end_ns)
    pool = Pool(timeline, start_ns=played.start_ns, known=DevicePrior(known))
    activities = []
    for i, (start, end, level) in enumerate(zip(*(part.tolist() for part in played.load), strict=True)):
        activities.append(DeviceExecution(i, None, LEVELS[level], start, end))
        pool.count(LEVELS[level], marked=1)
    pool.advance(activities, played.end_ns, final=True)
    found = []
    for level, region in enumerate(LEVELS):
        for signal, rate in pool.pooled(region).rates.items():
            # Power by the driver's samples is told in the joules of the counter.
            counter = responses.get(rows.ENERGY) if signal is rows.POWER else None
            response = counter or responses.get(signal)
            if response is None or response.reason:
                continue
            gain = response.gains[level]
            truth, width = response.base.value + gain.value, response.base.half_width + gain.half_width
            found.append(Checked(region, signal.key, rate.value, rate.half_width, truth, width, rate.reason))
    return found


def _sampled(played: Played) -> list[Sample]:
    """What a sampler at 10 Hz would have read of what was polled, oldest first."""
    found, due_ns = [*played.drained, *played.windows], 0
    before: dict[Signal, int] = {}
    for poll in played.read:
        if not poll or poll[0].t_end_ns < due_ns:
            continue
        due_ns = max(due_ns + _INTERVAL_NS, poll[0].t_end_ns + _INTERVAL_NS // 2)
        for sample in poll:
            # A window mean that is polled covers the time since the reading before.
            since = before.get(sample.signal, sample.t_start_ns)
            whole = sample if sample.t_start_ns == sample.t_end_ns else sample._replace(t_start_ns=since)
            before[sample.signal] = sample.t_end_ns
            found.append(whole)
    return sorted(found, key=lambda sample: sample.t_end_ns)
