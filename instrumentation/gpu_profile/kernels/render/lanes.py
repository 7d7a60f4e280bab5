"""Places at which a recording is drawn: streams and threads, each on tracks of properly nested intervals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_profile.join.unmixing.windows.activities import Activities
from gpu_profile.kernels.joining.columns import Numbers, RecordArrays
from gpu_profile.kernels.joining.nesting import Nesting
from gpu_profile.report.blocks import pack

#: Streams of one device are in the order of their numbers; streams without a number come last.
_LAST: Final = 1 << 62


class Lane(NamedTuple):
    """The operations of a stream or the executions of a thread, in order of their starts; times in ns.

    `tracks` count from 0: on one track, any two intervals are disjoint or nested. `levels` are the numbers of intervals
    around each on its track. `names` are indexes of names, `places` the rows of the columns.
    """

    title: str
    starts: Numbers
    ends: Numbers
    names: Numbers
    tracks: Numbers
    levels: Numbers
    places: Numbers


def streams(columns: RecordArrays) -> dict[int, list[Lane]]:
    """The streams of each device with their operations; devices and streams by their numbers."""
    ran = columns.operations
    keys = sorted(enumerate(columns.streams), key=lambda item: (item[1][0], *_rank(item[1][1])))
    devices: dict[int, list[Lane]] = {}
    for number, (device, stream) in keys:
        here = np.flatnonzero(ran.streams == number)
        none = np.full(len(here), -1, np.int64)
        title = f"stream {stream}"
        devices.setdefault(device, []).append(_lane(title, here, ran.starts, ran.ends, ran.names, none))
    return devices


def threads(columns: RecordArrays, *, operators: bool = False) -> Iterator[Lane]:
    """The threads of regions (or, with `operators`, of a framework's operators), by their first moment."""
    intervals = columns.operators if operators else columns.ranges
    on = intervals.threads.astype(np.int64)
    parents = Nesting(on, intervals.starts, intervals.ends).parents
    titles, kind = columns.threads, "operators, thread" if operators else "thread"
    every = np.unique(on).tolist()
    for thread in sorted(every, key=lambda each: int(intervals.starts[on == each].min())):
        here = np.flatnonzero(on == thread)
        places = np.full(len(on), -1, np.int64)
        places[here] = np.arange(len(here))
        inside = np.where(parents[here] >= 0, places[parents[here]], -1)
        yield _lane(f"{kind} {titles[thread]}", here, intervals.starts, intervals.ends, intervals.names, inside)


def _lane(title: str, here: Numbers, starts: Numbers, ends: Numbers, names: NDArray[np.int32], inside: Numbers) -> Lane:
    begun, over, named = starts[here], ends[here], names[here].astype(np.int64)
    order = np.lexsort((-over, begun))
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    inside = np.where(inside[order] >= 0, back[inside[order]], -1)
    begun, over, named = begun[order], over[order], named[order]
    tracks, levels = pack(Activities(begun, over, inside, named))
    return Lane(title, begun, over, named, tracks, levels, here[order])


def _rank(stream: int | str) -> tuple[int, str]:
    return (stream, "") if isinstance(stream, int) else (_LAST, stream)
