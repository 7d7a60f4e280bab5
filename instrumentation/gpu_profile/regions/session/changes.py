"""Changes of regions' regimes as they happen: logged, and passed to listeners."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from gpu_profile.clock import Clock
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.region_watch import RegionChange, RegionWatch
from gpu_profile.join.unmixing.pools.periods import Period
from gpu_profile.regimes import Thresholds
from gpu_profile.units import NS_PER_S, percent

_log = logging.getLogger("gpu_profile")

#: The most changes that a minute logs and passes on: 64 regions on 8 devices may change together.
MOST_A_MINUTE: Final = 10


def clock_time(t_ns: int) -> str:
    """The time of day, such as `12:03:10 UTC`."""
    return f"{datetime.fromtimestamp(t_ns // NS_PER_S, UTC):%H:%M:%S} UTC"


class Changes:
    """The changes of all regions of a session. Each is one log record of level INFO and one call of every listener.

    Beyond `MOST_A_MINUTE`, changes are only counted. The next record gives their number.
    """

    def __init__(self, thresholds: Thresholds, clock: Clock) -> None:
        self.on_change: list[Callable[[RegionChange], None]] = []
        self._thresholds, self._clock = thresholds, clock
        self._emitted_ns: deque[int] = deque(maxlen=MOST_A_MINUTE)
        self._left_out = 0

    def watch(self, timeline: Timeline) -> Callable[[Period], None]:
        """A listener for the periods of one device."""
        regions = RegionWatch(timeline, self._thresholds)

        def take(period: Period) -> None:
            for change in regions.take(period):
                self._emit(change)

        return take

    def _emit(self, change: RegionChange) -> None:
        now = self._clock.now_ns()
        if len(self._emitted_ns) == MOST_A_MINUTE and 0 <= now - self._emitted_ns[0] < 60 * NS_PER_S:
            self._left_out += 1
            return
        self._emitted_ns.append(now)
        what = change.change
        more = f" ({self._left_out} more changes were not logged)" if self._left_out else ""
        self._left_out = 0
        text = change.text(change.device, clock_time(what.t_ns))
        _log.info("gpu-profile: %s: %s, confidence %s%s", text, what.reason, percent(what.confidence, 0), more)
        for listener in self.on_change:
            listener(change)
