"""The data of a page's timeline: executions on lanes, in a bounded number of blocks, and charts, as packed columns."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Kind
from gpu_profile.history.timeline import Column, Floats, Ints
from gpu_profile.join.unmixing.windows.activities import Activities
from gpu_profile.units import NS_PER_S

#: Blocks in a page, all together: 16 bytes each, a third more as text.
MOST_BLOCKS: Final = 30_000
LEAST_ROWS: Final = 200
#: Lanes of one group. Executions on further lanes are drawn on the last.
MOST_LANES: Final = 28
#: Tracks that are searched for room. With more executions at once, the rest overlap on the last track.
MOST_TRACKS: Final = 256
_MOST_U32: Final = (1 << 32) - 1
_MOST_U16: Final = (1 << 16) - 1


class Scale(NamedTuple):
    """Moments of the recording as whole steps from its start. They fit 32 bits."""

    start_ns: int
    step_ns: int

    @classmethod
    def of(cls, start_ns: int, end_ns: int) -> Scale:
        """The finest scale for a stretch of time."""
        return cls(start_ns, max(1, -(-(end_ns - start_ns) // _MOST_U32)))

    def steps(self, moments: Ints) -> Ints:
        """Steps from the start. Moments outside are moved to the edges."""
        return np.clip((moments - self.start_ns) // self.step_ns, 0, _MOST_U32)


def round_up(value: float) -> float:
    """The next round number."""
    if value <= 0:
        return 1.0
    size = 10.0 ** np.floor(np.log10(value))
    return float(next(size * part for part in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if size * part >= value * 0.999))


class Blocks(NamedTuple):
    """Executions, or groups too short to be visible: lane, edges in ns, region, count, and the share that they fill."""

    lanes: Ints
    starts: Ints
    ends: Ints
    columns: Ints
    counts: Ints
    fills: Floats


def blocks(lane: Ints, starts: Ints, ends: Ints, columns: Ints, most: int) -> Blocks:
    """At most about `most` blocks. Short executions merge with their neighbours in the same stretch of time.

    A merged block has the region with most of its time.
    """
    if len(starts) <= most:
        order = np.lexsort((starts, lane))
        ones = np.ones(len(starts))
        return Blocks(lane[order], starts[order], ends[order], columns[order], ones.astype(np.int64), ones)
    length = int(ends.max() - starts.min())
    width = max(1, length * max(1, int(lane.max()) + 1) // (4 * most))
    while True:
        short = ends - starts < width
        key = (lane * (length // width + 2) + (starts - starts.min()) // width)[short]
        cells = len(np.unique(key))
        if len(starts) - len(key) + cells <= most or width > length:
            break
        width = width * 3 // 2 + 1
    merged = _merged(key, *(column[short] for column in (lane, starts, ends, columns)))
    long = ~short
    ones = np.ones(int(long.sum()))
    alone = Blocks(lane[long], starts[long], ends[long], columns[long], ones.astype(np.int64), ones)
    both = [np.concatenate(pair) for pair in zip(alone, merged, strict=True)]
    order = np.lexsort((both[1], both[0]))
    return Blocks(*(column[order] for column in both))


def _merged(key: Ints, lane: Ints, starts: Ints, ends: Ints, columns: Ints) -> Blocks:
    if not len(key):
        return Blocks(*(np.zeros(0, np.int64),) * 5, np.zeros(0))
    order = np.lexsort((columns, key))
    key, lane, starts, ends, columns = (each[order] for each in (key, lane, starts, ends, columns))
    lengths = (ends - starts).astype(np.float64)
    of_region = np.flatnonzero((np.diff(key, prepend=-1) != 0) | (np.diff(columns, prepend=-1) != 0))
    time = np.add.reduceat(lengths, of_region)
    # The region with most time comes last within its cell.
    ranked = np.lexsort((time, key[of_region]))
    last = np.flatnonzero(np.diff(key[of_region][ranked], append=-1) != 0)
    first = np.flatnonzero(np.diff(key, prepend=-1) != 0)
    begun, over = np.minimum.reduceat(starts, first), np.maximum.reduceat(ends, first)
    counts = np.diff(np.concatenate((first, [len(key)])))
    fills = np.minimum(np.add.reduceat(lengths, first) / np.maximum(over - begun, 1), 1.0)
    return Blocks(lane[first], begun, over, columns[of_region][ranked][last], counts, fills)


def pack(activities: Activities) -> tuple[Ints, Ints]:
    """Track and level of each activity.

    On one track, any two are disjoint or nested. Activities come in order of their start.
    """
    count = len(activities.starts)
    # Of activities with the same start, the longest encloses the others.
    order = np.lexsort((-activities.ends, activities.starts)).tolist()
    starts, ends, parents = (column.tolist() for column in activities[:3])
    tracks, levels = [-1] * count, [0] * count
    free = _Free()
    open_ends = free.open_ends
    for i in order:
        start, end, parent = starts[i], ends[i], parents[i]
        track = tracks[parent] if parent >= 0 else -1
        if track >= 0 and start == end:
            # An activity without a length would be nested in others that start at that moment.
            tracks[i], levels[i] = track, levels[parent] + 1
            continue
        if track >= 0:
            stack = open_ends[track]
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or stack[-1] < end:
                track = -1
        if track < 0:
            track = free.take(start, end)
        levels[i] = len(open_ends[track])
        open_ends[track].append(end)
        tracks[i] = track
    return np.array(tracks, np.int64), np.array(levels, np.int64)


class _Free:
    """Tracks, each with the ends of its open activities, outermost first, and the idle ones among them."""

    def __init__(self) -> None:
        self.open_ends: list[list[int]] = []
        self._free: list[int] = []
        self._busy: list[tuple[int, int]] = []

    def take(self, start: int, end: int) -> int:
        """The first track that is free at `start`. It is in use until `end`."""
        while self._busy and self._busy[0][0] <= start:
            heappush(self._free, heappop(self._busy)[1])
        if not self._free and len(self.open_ends) == MOST_TRACKS:
            self.open_ends[-1].clear()
            return MOST_TRACKS - 1
        if self._free:
            track = heappop(self._free)
            self.open_ends[track].clear()
        else:
            track = len(self.open_ends)
            self.open_ends.append([])
        heappush(self._busy, (end, track))
        return track


def stacked(tracks: Ints, levels: Ints) -> tuple[Ints, int]:
    """Each execution's row from the top: the levels of the first track, then the next's. Also the number of rows."""
    heights = np.zeros(int(tracks.max(initial=-1)) + 1, np.int64)
    np.maximum.at(heights, tracks, levels + 1)
    above = np.cumsum(heights) - heights
    return above[tracks] + levels if len(tracks) else tracks, int(heights.sum())


def drawn_lanes(
    rows: Ints, starts: Ints, ends: Ints, entries: Ints, scale: Scale, *, most: int, marked: bool, names: Sequence[str]
) -> dict[str, Any]:
    """Executions on their rows in the form of `timeline.js`: at most about `most` blocks.

    `entries` are indices into the page's regions, `names` those of the first rows. `marked`: the device's own times.
    """
    count = int(rows.max(initial=-1)) + 1
    drawn = blocks(np.minimum(rows, MOST_LANES - 1), starts, ends, entries, max(LEAST_ROWS, most))
    return {
        "marked": marked,
        "names": list(names[:MOST_LANES]),
        "count": min(count, MOST_LANES),
        "folded": count > MOST_LANES,
        "executions": len(starts),
        "lane": packed(drawn.lanes, "u1"),
        "t0": packed(scale.steps(drawn.starts), "<u4"),
        "t1": packed(scale.steps(drawn.ends), "<u4"),
        "region": packed(drawn.columns, "<u2"),
        "n": packed(np.minimum(drawn.counts, _MOST_U32), "<u4"),
        "fill": packed(np.rint(drawn.fills * 255), "u1"),
    }


class Stretches(NamedTuple):
    """One signal over time, in base units: rows with lowest, mean and highest value, and the gaps between them."""

    starts: Ints
    ends: Ints
    low: Floats
    mean: Floats
    high: Floats
    gaps: tuple[tuple[int, int], ...]


def rows_with_length(column: Column, start_ns: int, end_ns: int) -> tuple[Ints, Ints, Floats]:
    """Starts, ends and values in base units (a counter's growth per second) of rows that have a length."""
    starts, ends, masses = column.edges(start_ns - 1, end_ns)
    keep = ends > starts
    starts, ends, masses = starts[keep], ends[keep], masses[keep].astype(np.float64)
    lengths = (ends - starts).astype(np.float64)
    per_s = NS_PER_S if column.signal.kind is Kind.COUNTER else 1
    return starts, ends, masses / lengths * column.signal.quantum * per_s


def drawn_chart(
    key: str, label: str, source: str, unit: str, top: float, scale: Scale, rows: Stretches
) -> dict[str, Any]:
    """A signal in the form of `timeline.js`. `top` is the value at the chart's upper edge."""
    to_16 = _MOST_U16 / top if top > 0 else 0.0
    levels = (np.rint(np.clip(values * to_16, 0, _MOST_U16)) for values in (rows.low, rows.mean, rows.high))
    gaps = np.array(rows.gaps, np.int64).reshape(-1, 2)
    return {
        "key": key,
        "label": label,
        "source": source,
        "unit": unit,
        "top": top,
        "t0": packed(scale.steps(rows.starts), "<u4"),
        "t1": packed(scale.steps(rows.ends), "<u4"),
        **dict(zip(("low", "mean", "high"), (packed(level, "<u2") for level in levels), strict=True)),
        "gaps": packed(scale.steps(gaps.ravel()), "<u4"),
    }


def packed(values: Ints | Floats, kind: str) -> str:
    """Little-endian numbers in base 64."""
    return base64.b64encode(np.ascontiguousarray(values).astype(kind).tobytes()).decode("ascii")
