"""The join of a recorded device's executions with its samples, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu_profile.analysis.devices import sampled
from gpu_profile.analysis.runs import DeviceWork
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.region_watch import RegionChange, RegionWatch
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.windows.activities import Activities
from gpu_profile.recording import ProcessInfo
from gpu_profile.regions.session.sensor_priors import sensor_priors
from gpu_profile.units import NS_PER_S

#: Executions further than a day from a device's samples are counted and timed, but not joined. Without samples the
#: limit is a month from the middle execution.
_FAR_NS: Final = 24 * 3600 * NS_PER_S


def device_pool(
    timeline: Timeline,
    mine: DeviceWork,
    processes: Sequence[ProcessInfo],
    watch: RegionWatch | None = None,
    changes: list[RegionChange] | None = None,
) -> Pool:
    """The pool of a device after all its executions. `changes` receives the changes of regimes that `watch` detects."""
    version = next((each.driver_version for each in processes if each.driver_version), "")
    activities = mine.activities
    sampled_ns = sampled(timeline)
    near = _near(sampled_ns, activities)
    # A running process joins from its first execution on.
    start_ns, end_ns = sampled_ns or (0, 0)
    if near.any():
        start_ns, end_ns = int(activities.starts[near].min()), max(end_ns, int(activities.ends[near].max()))
    pool = Pool(timeline, start_ns=start_ns, prior=sensor_priors(timeline.device, version))
    if watch is not None and changes is not None:
        pool.periods.listeners.append(lambda period: changes.extend(watch.take(period)))
    for region, executions in mine.executions.items():
        pool.count(region, executions, marked=mine.marked[region])
    # A region without executions here gets no column: it would leave the equations open.
    numbers = (pool.attribution.column(region) if region in mine.executions else 0 for region in mine.regions)
    columns = np.fromiter(numbers, np.int64, len(mine.regions))
    # An execution that is not joined gets no length, and so overlaps nothing.
    ends = np.where(near, activities.ends, activities.starts)
    activities = activities._replace(ends=ends, columns=columns[activities.columns])
    # As at the end of a program: the data until then decide for which signals the last samples are awaited.
    pool.take(activities, pool.watermark_ns(end_ns))
    pool.take(activities, pool.watermark_ns(end_ns), final=True)
    return pool


def _near(sampled_ns: tuple[int, int] | None, activities: Activities) -> npt.NDArray[np.bool_]:
    """Which executions are joined. The limit keeps a stray time stamp from stretching time to decades."""
    if sampled_ns is None:
        middle = int(np.median(activities.starts))
        sampled_ns = middle - 29 * _FAR_NS, middle + 29 * _FAR_NS
    return (activities.starts >= sampled_ns[0] - _FAR_NS) & (activities.ends <= sampled_ns[1] + _FAR_NS)
