"""A device's timeline as a line of the view: means of the last second, newest values, and bins of the last minute.

Takes the present time as an argument and reads no clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from gpu_profile.catalogue import BUSY_SOURCES, Signal, Tier, signals
from gpu_profile.catalogue.samples import Interval
from gpu_profile.history.timeline import Column, Timeline
from gpu_profile.join.reading import read
from gpu_profile.monitor.top.snapshot import BIN_NS, BINS, DeviceLine, LastMinute
from gpu_profile.report.devices import THROTTLE_REASONS, device_label
from gpu_profile.sampling.periods import RARE_S, SLOW_S
from gpu_profile.sampling.sampler import DeviceState
from gpu_profile.units import NS_PER_S, nanoseconds

#: The age from which a newest reading is too old to show, besides the driver's own lag and intervals, in s.
STALE_S: Final = 4.0
#: The number of reads that may be missing before a reading is too old.
_MISSED: Final = 3
_POWER: Final = (signals.POWER, signals.POWER_AVERAGE)
#: The signals of the view. Counters of throttle time come before the times in which readings showed throttling.
_THROTTLES: Final = tuple(zip(THROTTLE_REASONS, signals.THROTTLES, signals.THROTTLES_SEEN, strict=True))
_PERIODS_S: Final = {Tier.SLOW: SLOW_S, Tier.RARE: RARE_S}


class RecentReadings:
    """The recent readings of one timeline at `now_ns`.

    `late_s`: the age at which readings of a driver normally arrive: its lag and its interval.
    """

    def __init__(self, timeline: Timeline, now_ns: int, late_s: float) -> None:
        self._timeline = timeline
        self._now_ns = now_ns
        self._late_s = late_s

    def mean(self, *sources: Signal) -> float | None:
        """The mean of the best source over the last second (of a counter: its growth per second); None if unknown."""
        column = self._column(sources)
        mark = None if column is None else column.watermark_ns
        if column is None or mark is None:
            return None
        reading = read(column, Interval(mark - NS_PER_S, mark))
        return None if reading is None else reading.mean

    def newest(self, signal: Signal, *, fresh: bool = True) -> float | None:
        """The newest value of a signal; None if it is unknown or, with `fresh`, too old."""
        column = self._column((signal,)) if fresh else self._timeline.column(signal)
        last = None if column is None else column.last
        return None if last is None else signal.base(last.value)

    def bins(self, *sources: Signal) -> LastMinute:
        """The last minute of the best source, up to its newest sample or, without a recent one, up to now."""
        column = self._timeline.best(sources)
        mark = None if column is None else column.watermark_ns
        if column is None or mark is None:
            return LastMinute()
        end_ns = mark if self._fresh(column) else self._now_ns
        first = -(-end_ns // BIN_NS) - BINS
        edges = np.arange(first, first + BINS + 1, dtype=np.int64) * BIN_NS
        means, covered = column.means(edges[:-1], edges[1:])
        return LastMinute(first, means.tolist(), covered.tolist())

    def throttles(self) -> tuple[tuple[str, float], ...] | None:
        """The reasons for lower clocks in the last second and their shares of it, the largest first.

        None if none of them is known.
        """
        shares = [(name, self.mean(*sources)) for name, *sources in _THROTTLES]
        known_shares = [(name, share) for name, share in shares if share is not None]
        if not known_shares:
            return None
        active = [(name, min(1.0, share)) for name, share in known_shares if share > 0]
        return tuple(sorted(active, key=lambda each: -each[1]))

    def _column(self, sources: tuple[Signal, ...]) -> Column | None:
        """The column of the best source, if its newest reading is fresh."""
        column = self._timeline.best(sources)
        return column if column is not None and self._fresh(column) else None

    def _fresh(self, column: Column) -> bool:
        mark = column.watermark_ns
        period_s = _PERIODS_S.get(column.signal.tier, 0.0)
        limit_s = max(STALE_S, _MISSED * period_s) + _MISSED * self._late_s
        return mark is not None and abs(self._now_ns - mark) <= nanoseconds(limit_s)


def device_line(state: DeviceState, now_ns: int, *, order: int, late_s: float = 0.0) -> DeviceLine:
    """The line of one device, in place `order`. A device that is down has only its history."""
    device = state.device
    recent = RecentReadings(state.timeline, now_ns, max(late_s, state.period_s))
    line = DeviceLine(
        device.uuid,
        device_label(device),
        device.name or device.uuid,
        order,
        up=state.up,
        reason="" if state.up else state.reason or "lost",
        xid=None if state.last_xid is None else state.last_xid[0],
        busy=recent.bins(*BUSY_SOURCES),
        power=recent.bins(*_POWER),
        power_scale_w=recent.newest(signals.POWER_LIMIT, fresh=False),
    )
    if not state.up:
        return line
    return replace(
        line,
        utilisation=_ratio(recent.mean(*BUSY_SOURCES)),
        sm=_ratio(recent.mean(signals.SM)),
        dram=_ratio(recent.mean(signals.DRAM)),
        tensor=_ratio(recent.mean(signals.TENSOR)),
        memory_bytes=recent.newest(signals.MEMORY_USED),
        memory_total_bytes=device.memory_bytes,
        power_w=recent.mean(*_POWER),
        power_limit_w=recent.newest(signals.POWER_LIMIT),
        temperature=recent.newest(signals.TEMPERATURE),
        temperature_memory=recent.newest(signals.TEMPERATURE_MEMORY),
        clock_hz=recent.newest(signals.CLOCK_SM),
        pcie_rx=recent.mean(signals.PCIE_RX),
        pcie_tx=recent.mean(signals.PCIE_TX),
        throttles=recent.throttles(),
    )


def _ratio(value: float | None) -> float | None:
    return None if value is None else min(1.0, value)
