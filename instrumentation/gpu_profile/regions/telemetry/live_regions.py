"""The regions of a session or a sidecar on the live page: executions for its lanes, and a row for each region.

Executions are collected only while somebody looks. The join's lock is never taken: it may be held for long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from gpu_profile.clock import Clock
from gpu_profile.join.region_watch import RegionChange
from gpu_profile.join.summary import Judged
from gpu_profile.regimes import Regime
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.changes import clock_time
from gpu_profile.regions.session.joiner import Joiner
from gpu_profile.report.live import LiveFeed, LiveMark
from gpu_profile.report.live.strands import KEEP_MS
from gpu_profile.units import NS_PER_S

_MS: Final = 1e6
#: Executions are collected for this long after the last answer.
_VIEWED_NS: Final = 15 * NS_PER_S
#: Executions between two answers that are kept, and the number from which short ones merge.
_MOST_EXECUTIONS: Final = 50_000
_MOST_SINGLE: Final = 400
#: Executions shorter than this merge with others of their region in the same stretch of this length.
_STRETCH_MS: Final = 100.0
#: Regions in a table, and running executions that are drawn.
_MOST_ROWS: Final = 100
_MOST_RUNNING: Final = 64
#: The time over which shares and rates are taken, and the shortest time for which they are given.
_WINDOW_MS: Final = 60_000.0
_SHORTEST_MS: Final = 1_500.0
#: Executions that end this much after the present are of another machine's clock.
_CLOCKS_MS: Final = 1_000.0

Key = tuple[str, str]


class LiveBlock(NamedTuple):
    """Executions of one region on one device: end and length in ms, how many, and the share of the time they fill."""

    device: str
    region: str
    end_ms: float
    length_ms: float
    n: int
    fill: float


class _RegionTotals(NamedTuple):
    """A region's running totals on a device; None where they are unknown."""

    calls: int
    busy_s: float | None
    energy_j: float | None


class LiveRegions:
    """The regions in `joiner`. `shown` makes a region's name on the page from its full name. `note`: a remark on all.

    One thread at a time calls `state` and then `fill`, so that the regions in the table are the first to get a name.
    """

    def __init__(
        self, joiner: Joiner, clock: Clock, shown: Callable[[str], str] = lambda name: name, *, note: str = ""
    ) -> None:
        self._joiner = joiner
        self._clock = clock
        self._shown = shown
        self._note = note
        self._viewed_ns = 0
        #: Device, region, start and end in ns.
        self._ended: deque[tuple[str, str, int, int]] = deque(maxlen=_MOST_EXECUTIONS)
        self._changes: deque[RegionChange] = deque(maxlen=_MOST_ROWS)
        self._latest: dict[Key, RegionChange] = {}
        self._totals: deque[tuple[float, dict[Key, _RegionTotals]]] = deque()
        #: The first totals of each region since somebody looks, with their time.
        self._first: dict[Key, tuple[float, _RegionTotals]] = {}
        joiner.changes.on_change.append(self._changed)

    # ------------------------------------------------------------------ called by the join

    def _changed(self, change: RegionChange) -> None:
        self._changes.append(change)
        self._latest[change.region, change.device] = change

    def _settled(self, execution: Execution) -> None:
        if self._clock.now_ns() - self._viewed_ns > _VIEWED_NS:
            # A new list: the join may be iterating over this one.
            self._joiner.on_settled = [hook for hook in self._joiner.on_settled if hook != self._settled]
            return
        interval = execution.interval()
        if interval is not None:
            for device in self._joiner.devices_of(execution):
                self._ended.append((device.uuid, execution.name, interval.start_ns, interval.end_ns))

    # ------------------------------------------------------------------ called for an answer

    def fill(self, feed: LiveFeed) -> None:
        """Add the executions and changes of regimes since the last call to `feed`."""
        self._viewed_ns = self._clock.now_ns()
        if self._settled not in self._joiner.on_settled:
            self._joiner.on_settled = [*self._joiner.on_settled, self._settled]
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        now_ms = self._viewed_ns / _MS
        for block in merged(ended):
            if not now_ms - KEEP_MS < block.end_ms <= now_ms + _CLOCKS_MS:
                continue
            number = feed.number(self._shown(block.region))
            row = block.end_ms, block.length_ms, number, block.n, round(255 * block.fill)
            feed.blocks(block.device).append(*row)
        for change in [self._changes.popleft() for _ in range(len(self._changes))]:
            text = change._replace(region=self._shown(change.region)).text("this GPU", clock_time(change.change.t_ns))
            feed.mark(LiveMark(change.change.t_ns / _MS, change.device, "soft", text))

    def state(self, feed: LiveFeed) -> dict[str, Any]:
        """The rows of the table and the running executions, as keys of an answer."""
        now_ms = self._clock.now_ns() / _MS
        judged = self._joiner.verdicts.every()
        self._keep_totals(now_ms, judged)
        rows = sorted((self._row(each, now_ms) for each in judged), key=_by_use)
        rows += self._unjudged({each.summary.region for each in judged})
        return {
            # Only regions that are shown get a number: there are not enough of them for all.
            "regions": [{**row, "region": feed.number(row["region"])} for row in rows[:_MOST_ROWS]],
            "regions_left_out": max(0, len(rows) - _MOST_ROWS),
            "running": list(self._running(feed)),
            "region_note": self._note if rows else "No region has run yet.",
        }

    def _row(self, judged: Judged, now_ms: float) -> dict[str, Any]:
        summary, verdict = judged
        uuid = summary.device.uuid
        key = summary.region, uuid
        change = self._latest.get(key)
        regime, confidence, since_ms = verdict.regime, verdict.confidence, None
        if change is not None:
            regime, confidence = change.change.after, change.change.confidence
            since_ms = change.change.t_ns / _MS
        began_ms, totals = self._totals[0]
        # A region that began later has totals of its first answer only.
        began_ms, old = (began_ms, totals[key]) if key in totals else self._first[key]
        over_s, new = (now_ms - began_ms) / 1e3, _totals_of(judged)

        def rate(name: str) -> float | None:
            first, last = getattr(old, name), getattr(new, name)
            usable = first is not None and last is not None and over_s * 1e3 >= _SHORTEST_MS
            return max(0.0, (last - first) / over_s) if usable else None

        return {
            "region": self._shown(summary.region),
            "device": uuid,
            "share": rate("busy_s"),
            "power_w": rate("energy_j"),
            "energy_j": summary.energy_j,
            "uncertain": summary.energy_j is not None and summary.energy_half_width is None,
            "calls_per_s": rate("calls"),
            "regime": str(regime),
            "confidence": confidence,
            "since_ms": since_ms,
            "whole": str(verdict.regime),
            "next": verdict.explanation,
        }

    def _unjudged(self, judged: set[str]) -> Iterator[dict[str, Any]]:
        """Rows of regions that are on no device with samples."""
        for name in [name for name in list(self._joiner.verdicts.durations) if name not in judged]:
            empty = dict.fromkeys(("share", "power_w", "energy_j", "calls_per_s", "confidence", "since_ms"))
            about = {"region": self._shown(name), "device": "", "uncertain": False}
            regime = str(Regime.UNKNOWN)
            yield {**about, **empty, "regime": regime, "whole": regime, "next": "no samples of its device yet"}

    def _running(self, feed: LiveFeed) -> Iterator[tuple[str, int, float]]:
        for execution in list(self._joiner.backlog.running)[:_MOST_RUNNING]:
            active = None if execution.end_ns else execution.active()
            if active is not None:
                number = feed.number(self._shown(execution.name))
                for device in self._joiner.devices_of(execution):
                    yield device.uuid, number, active[0] / _MS

    def _keep_totals(self, now_ms: float, judged: Iterable[Judged]) -> None:
        """Keep the present totals. The first ones that are kept are those of a minute ago, or else the oldest."""
        kept = self._totals
        if kept and not 0 <= now_ms - kept[-1][0] < _WINDOW_MS:
            kept.clear()
            self._first.clear()
        totals = {(one.summary.region, one.summary.device.uuid): _totals_of(one) for one in judged}
        kept.append((now_ms, totals))
        while len(kept) > 2 and now_ms - kept[1][0] >= _WINDOW_MS:
            kept.popleft()
        self._first = {key: self._first.get(key, (now_ms, each)) for key, each in totals.items()}


def _totals_of(judged: Judged) -> _RegionTotals:
    summary = judged.summary
    return _RegionTotals(summary.durations.calls, summary.busy_s, summary.energy_j)


def _by_use(row: dict[str, Any]) -> tuple[float, float]:
    """The largest share first, then the most energy."""
    return -(row["share"] or 0.0), -(row["energy_j"] or 0.0)


def merged(ended: Iterable[tuple[str, str, int, int]]) -> list[LiveBlock]:
    """Executions as blocks in the order of their ends. If there are many, short ones of one region merge."""
    rows = sorted(ended, key=lambda row: row[3])
    single = len(rows) <= _MOST_SINGLE
    blocks: list[LiveBlock] = []
    cells: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for device, region, start_ns, end_ns in rows:
        start_ms, end_ms = start_ns / _MS, end_ns / _MS
        if single or end_ms - start_ms >= _STRETCH_MS:
            blocks.append(LiveBlock(device, region, end_ms, end_ms - start_ms, 1, 1.0))
        else:
            cells.setdefault((device, region, int(end_ms // _STRETCH_MS)), []).append((start_ms, end_ms))
    for (device, region, _), times in cells.items():
        start_ms, end_ms = min(start for start, _ in times), max(end for _, end in times)
        length_ms = end_ms - start_ms
        fill = min(1.0, sum(end - start for start, end in times) / length_ms) if length_ms else 1.0
        blocks.append(LiveBlock(device, region, end_ms, length_ms, len(times), fill))
    return sorted(blocks, key=lambda block: block.end_ms) if cells else blocks
