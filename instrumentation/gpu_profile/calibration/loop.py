"""Unmixes a loop of calibrated loads, sampled ten times a second: do the intervals contain the calibrated rates?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.calibration.playing import Played
from gpu_profile.calibration.response import SensorResponse
from gpu_profile.calibration.workers import LEVELS
from gpu_profile.catalogue import POWER_SOURCES, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.timing.expected import DevicePrior, SensorPrior
from gpu_profile.join.unmixing.windows.activities import DeviceExecution

#: The sampling interval of a running program.
_INTERVAL_NS: Final = 100_000_000
#: Rates may drift by this share: a device warms up between the chips and the loop.
_STEADY: Final = 0.02


class Checked(NamedTuple):
    """A region's estimated rate and the truth, both with half-widths. `reason`: why there is no estimate."""

    region: str
    signal: str
    estimate: float
    half_width: float
    truth: float
    truth_half_width: float
    reason: str

    @property
    def missed(self) -> bool:
        """Whether the truth lies outside the interval."""
        room = self.half_width + self.truth_half_width + _STEADY * abs(self.truth)
        return not self.reason and abs(self.estimate - self.truth) > room


def check(
    device: Device, played: Played, responses: Mapping[Signal, SensorResponse], priors: Mapping[Signal, SensorPrior]
) -> tuple[list[Checked], list[Signal]]:
    """Compare the estimated rates of the loop's regions with the truth, for every signal that responds to the load.

    The second result is the signals whose readings contradict their priors.
    """
    samples = _sampled(played)
    # Capacity for hours: the timeline must not drop a row.
    timeline = Timeline(device, {sample.signal for sample in samples}, capacity=1 << 16)
    for sample in samples:
        timeline.append([sample], played.end_ns)
    pool = Pool(timeline, start_ns=played.start_ns, prior=DevicePrior(priors))
    activities = []
    for i, (start, end, level) in enumerate(zip(*(part.tolist() for part in played.load), strict=True)):
        activities.append(DeviceExecution(i, None, LEVELS[level], start, end))
        pool.count(LEVELS[level], marked=1)
    pool.advance(activities, played.end_ns, final=True)
    rates = []
    for level, region in enumerate(LEVELS):
        for signal, rate in pool.pooled(region).rates.items():
            # Power from the driver's buffer is calibrated in the joules of the counter.
            counter = responses.get(rows.ENERGY) if signal is rows.POWER else None
            response = counter or responses.get(signal)
            if response is None or response.reason:
                continue
            gain = response.gains[level]
            truth, width = response.base.value + gain.value, response.base.half_width + gain.half_width
            if signal in POWER_SOURCES:
                width += truth * _lower(pool.mean(rows.ENERGY if counter else signal), played, response)
            rates.append(Checked(region, signal.key, rate.value, rate.half_width, truth, width, rate.reason))
    return rates, pool.unexpected


def _lower(mean: float | None, played: Played, response: SensorResponse) -> float:
    """By how much less power the device drew in the loop than the response predicts, as a share: it throttled. More
    power has no such reason, because others' work adds to it."""
    load, lasted_ns = played.load, played.end_ns - played.start_ns
    on_ns = np.bincount(load.levels, load.ends - load.starts, len(LEVELS))
    predicted = response.base.value + sum(
        gain.value * ns / lasted_ns for gain, ns in zip(response.gains, on_ns.tolist(), strict=True)
    )
    return 0.0 if mean is None or predicted <= 0 else max(0.0, 1.0 - mean / predicted)


def _sampled(played: Played) -> list[Sample]:
    """The polled samples that a sampler at 10 Hz would have read, oldest first."""
    samples, due_ns = [*played.drained, *played.windows], 0
    before: dict[Signal, int] = {}
    for poll in played.read:
        if not poll or poll[0].t_end_ns < due_ns:
            continue
        due_ns = max(due_ns + _INTERVAL_NS, poll[0].t_end_ns + _INTERVAL_NS // 2)
        for sample in poll:
            # A polled window mean covers the time since the reading before.
            since = before.get(sample.signal, sample.t_start_ns)
            whole = sample if sample.t_start_ns == sample.t_end_ns else sample._replace(t_start_ns=since)
            before[sample.signal] = sample.t_end_ns
            samples.append(whole)
    return sorted(samples, key=lambda sample: sample.t_end_ns)
