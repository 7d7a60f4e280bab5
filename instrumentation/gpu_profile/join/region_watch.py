"""Changes of regime: the verdicts on a region's periods, one after the other. Pure.

A region is judged on each period alone. Pooled evidence over all executions would follow a change only after as long
again as the region ran before it, and in between contradicts itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gpu_profile.history.timeline import Timeline
from gpu_profile.join.summary import period_evidence
from gpu_profile.join.unmixing.pools.periods import Period
from gpu_profile.regimes import Thresholds, classify
from gpu_profile.regimes.regime_watch import RegimeChange, RegimeWatch
from gpu_profile.regimes.verdict import first_verdict


class RegionChange(NamedTuple):
    """A change of one region's regime on one device (a UUID)."""

    region: str
    device: str
    change: RegimeChange

    def text(self, device: str, moment: str) -> str:
        """One line: `train on device 0: MEMORY_BOUND until 12:03:10, then HOST_BOUND`."""
        now = self.change
        then = f"{' and '.join(map(str, now.parts))} by turns" if now.parts else str(now.after)
        if now.before is None:
            return f"{self.region} on device {device}: {then}, from {moment} on"
        return f"{self.region} on device {device}: {now.before} until {moment}, then {then}"


class RegionWatch:
    """The regimes of all regions of one device, by the device's samples alone."""

    def __init__(self, timeline: Timeline, thresholds: Thresholds) -> None:
        self._timeline, self._thresholds = timeline, thresholds
        self._watches: dict[str, RegimeWatch] = {}

    def take(self, period: Period) -> list[RegionChange]:
        """The changes that a further period shows."""
        changes = []
        for region in period.rates:
            evidence = period_evidence(self._timeline, period, region)
            watch = self._watches.setdefault(region, RegimeWatch())
            # Whether thresholds move a regime matters only above `FIRM`, which no condition of the watch is.
            change = watch.take(first_verdict(evidence, self._thresholds), period.start_ns, period.end_ns)
            if change is not None:
                change = replace(change, confidence=classify(evidence, self._thresholds).confidence)
                changes.append(RegionChange(region, self._timeline.device.uuid, change))
        return changes
