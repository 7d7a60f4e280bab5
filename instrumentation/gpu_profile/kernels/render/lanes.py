"""Where what was recorded is drawn: each stream and each thread on tracks in which one thing lies inside another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_profile.join.unmixing.activities import Activities
from gpu_profile.kernels.joining.columns import Numbers, RecordArrays
from gpu_profile.kernels.joining.nesting import Nesting
from gpu_profile.report.blocks import pack

#: Streams of one device in the order of their numbers; those without a number come after them.
_LAST: Final = 1 << 62


class Lane(NamedTuple):
    """What a stream or a thread ran, in order of its start: times in ns, and the places of the names.

    `tracks` count from 0: on one track any two lie apart, or one inside the other; `levels` tell how many are around
    each there. `places` are the rows of the columns.
    """

    title: str
    starts: Numbers
    ends: Numbers
    names: Numbers
    tracks: Numbers
    levels: Numbers
    places: Numbers


def streams(columns: RecordArrays) -> dict[int, list[Lane]]:
    """The streams of each device with what ran on them; devices and streams by their numbers."""
    found = columns.operations
    keys = sorted(enumerate(columns.streams), key=lambda item: (item[1][0], *_rank(item[1][1])))
    devices: dict[int, list[Lane]] = {}
    for number, (device, stream) in keys:
        here = np.flatnonzero(found.streams == number)
        none = np.full(len(here), -1, np.int64)
        title = f"stream {stream}"
        devices.setdefault(device, []).append(_lane(title, here, found.starts, found.ends, found.names, none))
    return devices


def threads(columns: RecordArrays, *, operators: bool = False) -> Iterator[Lane]:
    """The threads that regions (or, with `operators`, a framework's operators) ran on, by their first moment."""
    found = columns.operators if operators else columns.ranges
    on = found.threads.astype(np.int64)
    parents = Nesting(on, found.starts, found.ends).parents
    titles, what = columns.threads, "operators, thread" if operators else "thread"
    every = np.unique(on).tolist()
    for thread in sorted(every, key=lambda each: int(found.starts[on == each].min())):
        here = np.flatnonzero(on == thread)
        places = np.full(len(on), -1, np.int64)
        places[here] = np.arange(len(here))
        inside = np.where(parents[here] >= 0, places[parents[here]], -1)
        yield _lane(f"{what} {titles[thread]}", here, found.starts, found.ends, found.names, inside)


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
