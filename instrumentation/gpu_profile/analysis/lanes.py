"""Where executions are drawn: on tracks in which each lies wholly inside the one around it. Pure.

Recordings do not say which thread ran what. An execution is put on the track of the one that it ran inside; those that
overlap without that have tracks of their own, as threads and tasks would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpu_profile.analysis.account import Analysis
from gpu_profile.analysis.runs import gather, usable
from gpu_profile.catalogue.samples import Device
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.activities import Activities
from gpu_profile.recording import Recording, SpanRecord
from gpu_profile.report.blocks import pack

HOST: Final = "Host"
REGIONS: Final = "Regions"


@dataclass(frozen=True, slots=True)
class Lanes:
    """Executions in order of their start: edges in ns, places in `regions`, and where each is drawn.

    `title` says what they are if not those of `device`. `marked` tells whether edges are the device's own. `tracks`
    count from 0, `levels` are how many executions around each share its track.
    """

    title: str
    device: Device | None
    marked: bool
    regions: tuple[str, ...]
    starts: Ints
    ends: Ints
    columns: Ints
    tracks: Ints
    levels: Ints


def on_host(spans: Sequence[SpanRecord], title: str = HOST) -> Lanes | None:
    """Spans that are `usable` by the host's clock, in their order; None if there are none."""
    bare = [span._replace(device_intervals=(), devices=(), assumed=False) for span in spans]
    work = gather(bare, HOST).devices.get(HOST)
    if work is None:
        return None
    return _lanes(title, None, work.activities, work.regions, marked=False)


def by_rank(recording: Recording) -> dict[int | None, list[SpanRecord]]:
    """The spans that an analysis counts, by the rank of their process, in the order of `on_host`."""
    found: dict[int | None, list[SpanRecord]] = {}
    for span in usable(recording.spans):
        found.setdefault(span.rank, []).append(span)
    return dict(sorted(found.items(), key=lambda each: -1 if each[0] is None else each[0]))


def on_devices(recording: Recording, analysis: Analysis) -> list[Lanes]:
    """What ran on each device, by its own clock where that is known, else by the host's."""
    known = {use.device.uuid: use.device for use in analysis.devices}
    # Where an execution told no device, the analysis took one: its regions have no use of another.
    joined = {use.summary.device.uuid for use in analysis.regions}
    first = next(iter(known), "")
    chosen = () if first in joined or not joined else tuple(uuid for uuid in known if uuid in joined)
    work = gather(recording.spans, first, devices=chosen).devices
    order = [*(uuid for uuid in known if uuid in work), *(uuid for uuid in work if uuid not in known)]
    return [
        _lanes("", known.get(uuid, Device(uuid)), found.activities, found.regions, marked=any(found.marked.values()))
        for uuid in order
        for found in [work[uuid]]
    ]


def by_region(analysis: Analysis) -> Lanes | None:
    """A track for each region, where nothing but the analysis is at hand."""
    names = tuple(analysis.runs)
    if not names:
        return None
    runs = list(analysis.runs.values())
    sizes = [len(each.starts_ns) for each in runs]
    starts, ends = (np.concatenate([each[i] for each in runs]).astype(np.int64) for i in (2, 3))
    columns = np.repeat(np.arange(len(names), dtype=np.int64), sizes)
    order = np.argsort(starts, kind="stable")
    starts, ends, columns = starts[order], ends[order], columns[order]
    marked = any(use.summary.interval_source == "device" for use in analysis.regions)
    return Lanes(REGIONS, None, marked, names, starts, ends, columns, columns, np.zeros(len(starts), np.int64))


def _lanes(
    title: str, device: Device | None, activities: Activities, regions: tuple[str, ...], *, marked: bool
) -> Lanes:
    tracks, levels = pack(activities)
    return Lanes(title, device, marked, regions, activities.starts, activities.ends, activities.columns, tracks, levels)
