"""The results of one refresh, and the readings to publish from them at a given time. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from gpu_profile.catalogue.allocation import (
    ALLOCATION_INFO,
    ATTRIBUTION_UP,
    LEFT_OUT,
    PROCESS_COUNT,
    PROCESS_MEMORY,
    PROCESS_UTILIZATION,
)
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.attribution.allocation import DeviceHolder
from gpu_profile_exporter.attribution.shares import ProcessShare
from gpu_profile_exporter.attribution.sources import HolderSource, OmissionReason, Reason
from gpu_profile_exporter.readings.health import DeviceStatus
from gpu_profile_exporter.readings.readings import MetricReading

#: The driver's list of processes is renewed every second. An older list counts as outdated.
_OLDEST_LIST_NS: Final = 10 * NS_PER_S

#: Reasons for omitting an item of a source with its own device names.
_NAMED: Final = {OmissionReason.AMBIGUOUS, OmissionReason.BUDGET, OmissionReason.GARBAGE, OmissionReason.UNKNOWN_DEVICE}
#: Possible reasons for omissions by source. Published from 0 on, so that increase() sees the first omission.
LEFT_OUT_OF: Final = {
    HolderSource.KUBELET: sorted(_NAMED | {OmissionReason.CONFLICT}),
    HolderSource.DRA: sorted(_NAMED),
    HolderSource.SLURM: sorted(_NAMED | {OmissionReason.LINK, OmissionReason.TOO_LARGE}),
    HolderSource.CONTAINERS: [OmissionReason.BUDGET],
    HolderSource.PROCESSES: [
        OmissionReason.BUDGET,
        OmissionReason.EXCEEDS_DEVICE,
        OmissionReason.GARBAGE,
        OmissionReason.PID_REUSED,
    ],
}


def is_listed(state: DeviceStatus, now_ns: int) -> bool:
    """Whether the device answers and its list of processes is recent."""
    listed_ns = state.processes_ns
    return state.up and listed_ns is not None and now_ns - listed_ns <= _OLDEST_LIST_NS


class ProcessUsage(NamedTuple):
    """The number of processes that the driver lists for a device, and shares with attributes where available."""

    listed: int
    rows: tuple[tuple[ProcessShare, Mapping[str, str]], ...]


class Snapshot(NamedTuple):
    """The results of one refresh at `taken_ns` of elapsed time. `left_out` are the counts since the start."""

    taken_ns: int
    status: Mapping[HolderSource, Reason | None]
    left_out: Mapping[tuple[HolderSource, OmissionReason], int]
    allocations: Sequence[DeviceHolder] = ()
    labels: Mapping[str, Mapping[str, str]] = {}
    processes: Mapping[str, ProcessUsage] = {}

    def health(self, *, fresh: bool) -> Iterator[MetricReading]:
        """Whether each source answers, and the number of items that were omitted."""
        for source, reason in self.status.items():
            why = reason if fresh or reason is Reason.STARTING else Reason.STALE
            about = {"source": source.value}
            yield MetricReading(
                ATTRIBUTION_UP, about if why is None else {**about, "reason": why.value}, float(why is None)
            )
            for left_out in LEFT_OUT_OF[source]:
                count = self.left_out.get((source, left_out), 0)
                yield MetricReading(LEFT_OUT, {**about, "reason": left_out.value}, count)

    def holders(self, states: Mapping[str, DeviceStatus], now_ns: int) -> Iterator[MetricReading]:
        """Holders of devices that still exist, and the use of processes that still exist."""
        for row in self.allocations:
            if row.uuid in states:
                about = {"hw.id": row.uuid, "source": row.source.value}
                yield MetricReading(ALLOCATION_INFO, {**about, **dict(row.attributes)}, 1)
        for uuid, processes in self.processes.items():
            state = states.get(uuid)
            if state is not None and is_listed(state, now_ns):
                yield MetricReading(PROCESS_COUNT, {"hw.id": uuid}, processes.listed)
                yield from _processes(processes, {use.pid for use in state.processes})


def _processes(processes: ProcessUsage, pids: set[int]) -> Iterator[MetricReading]:
    for share, attributes in processes.rows:
        # A process that has ended since the refresh is omitted.
        if share.pid is not None and share.pid not in pids:
            continue
        if share.memory_bytes is not None:
            yield MetricReading(PROCESS_MEMORY, attributes, share.memory_bytes)
        if share.utilization is not None:
            yield MetricReading(PROCESS_UTILIZATION, attributes, share.utilization)
