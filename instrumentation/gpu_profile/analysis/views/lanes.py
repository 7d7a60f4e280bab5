"""Assigns executions to tracks, on which each lies wholly inside the one around it. Pure.

Recordings do not say which thread ran an execution. An execution shares the track of the one that it ran inside.
Executions that overlap otherwise get tracks of their own, as threads and tasks would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpu_profile.analysis.account import Analysis
from gpu_profile.analysis.runs import RecordedWork, gather, usable
from gpu_profile.catalogue.samples import Device
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.windows.activities import Activities
from gpu_profile.recording import Recording, SpanRecord
from gpu_profile.report.blocks import pack

HOST: Final = "Host"
REGIONS: Final = "Regions"


@dataclass(frozen=True, slots=True)
class Lanes:
    """Executions in order of their start: edges in ns, indices into `regions`, and positions to draw them at.

    `title` names lanes that are not those of `device`. `marked`: the edges are the device's own. `tracks` count from 0,
    `levels` are how many executions around each share its track.
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
    spans: dict[int | None, list[SpanRecord]] = {}
    for span in usable(recording.spans):
        spans.setdefault(span.rank, []).append(span)
    return dict(sorted(spans.items(), key=lambda each: -1 if each[0] is None else each[0]))


def on_devices(recording: Recording, analysis: Analysis) -> list[Lanes]:
    """The executions on each device, by the device's clock if it was marked, else by the host's."""
    devices = {use.device.uuid: use.device for use in analysis.devices}
    work = as_joined(recording, analysis).devices
    order = [*(uuid for uuid in devices if uuid in work), *(uuid for uuid in work if uuid not in devices)]
    return [
        _lanes("", devices.get(uuid, Device(uuid)), ran.activities, ran.regions, marked=any(ran.marked.values()))
        for uuid in order
        for ran in [work[uuid]]
    ]


def as_joined(recording: Recording, analysis: Analysis) -> RecordedWork:
    """The executions on the devices on which the analysis joined them."""
    devices = [use.device.uuid for use in analysis.devices]
    # An execution without a device ran where the analysis placed it, and the analysis has no regions elsewhere.
    joined = {use.summary.device.uuid for use in analysis.regions}
    first = next(iter(devices), "")
    chosen = () if first in joined or not joined else tuple(uuid for uuid in devices if uuid in joined)
    return gather(recording.spans, first, devices=chosen)


def by_region(analysis: Analysis) -> Lanes | None:
    """A track for each region, for a view without the recording."""
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
