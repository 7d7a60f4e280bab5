"""The exact results of a simulated node: totals per device and tag, and the regime by the physics model.

No value here depends on a sensor, a window or a threshold of the classifier, so tests can judge all of them by it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver.simulated.activity import RunningTotals, SimulatedActivity, integrated, pieces
from gpu_profile.driver.simulated.models import PRECISIONS, DeviceModel
from gpu_profile.driver.simulated.node import activities, epoch
from gpu_profile.driver.simulated.physics import (
    COMPUTE_EFFICIENCY,
    MEMORY_EFFICIENCY,
    SHORTEST_KERNEL_NS,
    Ints,
    SimulatedQuantity,
)
from gpu_profile.driver.simulated.scenario import Unit, load
from gpu_profile.driver.simulated.script import Phase, step
from gpu_profile.driver.simulated.worklog import RECORD, LogReader, RecordKind, Records
from gpu_profile.errors import UsageError
from gpu_profile.units import NS_PER_S, nanoseconds

#: Between two records of one tag and queue, a gap up to this long is a launch. A longer gap is other work of the host.
_LAUNCH_GAP_NS: Final = 100_000
#: A longer gap is between two executions, not inside one.
_PAUSE_NS: Final = NS_PER_S
_FOREVER_NS: Final = 1 << 62
#: Compute and memory times that differ by less than this share bound a kernel together.
_TIE: Final = 0.1
#: A kernel below this share of every ceiling is latency-bound. So is a compute kernel that fills fewer multiprocessors.
_FULL: Final = 0.5


@dataclass(frozen=True, slots=True)
class DeviceTruth:
    """The exact totals of a device in an interval. Energy includes idle power; a MIG instance has no idle power."""

    busy_s: float
    energy_j: float
    flops: float
    bytes: float
    pcie_rx_bytes: float
    pcie_tx_bytes: float
    means: dict[str, float]


class TrueShare(NamedTuple):
    """The share of a device's busy time and energy that belongs to one tag.

    At each moment, running kernels share the busy time equally. Kernels and copies share the device's power equally.
    Over all tags, busy time sums to the device's.
    """

    busy_s: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class Amounts:
    """The work of one tag. `running_s`: the time in which any of its kernels ran, alone or not."""

    launches: int
    running_s: float
    flops: float
    bytes: float


class Truth:
    """Exact results of the node in `directory`, from its scenario and its logs at the time of construction."""

    def __init__(self, directory: Path | str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        path = Path(directory)
        self._scenario = load(path)
        self.epoch_ns = epoch(path, self._scenario, clock)
        self._tags: list[str | None] = [None]
        self._files: Ints = np.zeros(0, np.int64)
        self._records, self._tag_of = self._read(path)
        #: By slot, for devices with logged work: integrals of busy time and power, divided by the number of sharers.
        self._splits: dict[int, tuple[RunningTotals, RunningTotals]] = {}
        self._activity = activities(self._scenario, self.epoch_ns, self._exact)

    def _read(self, path: Path) -> tuple[Records, Ints]:
        reader = LogReader(path, len(self._scenario.units))
        numbers: dict[str | None, int] = {None: 0}
        all_records, all_tags, all_files = [np.zeros(0, RECORD)], [np.zeros(0, np.int64)], [self._files]
        for batch in reader.poll():
            records = batch.records[batch.records["kind"] <= RecordKind.COPY_OUT]
            tags = np.zeros(len(records), np.int64)
            for number in np.unique(records["tag"]):
                name = reader.name(batch.file, int(number))
                tags[records["tag"] == number] = numbers.setdefault(name, len(numbers))
            all_records.append(records)
            all_tags.append(tags)
            all_files.append(np.full(len(records), batch.file))
        reader.close()
        self._tags = list(numbers)
        records = np.concatenate(all_records)
        order = np.argsort(records["start"], kind="stable")
        self._files = np.concatenate(all_files)[order]
        return records[order], np.concatenate(all_tags)[order]

    def _exact(self, unit: Unit) -> SimulatedActivity:
        records = self._records[self._records["device"] == unit.slot]
        first = min(self.epoch_ns, int(records["start"].min(initial=_FOREVER_NS)))
        edges, together, running = pieces(unit.model, records, first)
        watts = unit.model.idle_w + together[:, SimulatedQuantity.ENERGY]
        kernels = pieces(unit.model, records[records["kind"] == RecordKind.KERNEL], first)
        self._splits[unit.slot] = (
            integrated(kernels[0], (1 / np.maximum(kernels[2], 1))[:, None]),
            integrated(edges, (watts / np.maximum(running, 1))[:, None]),
        )
        return integrated(edges, together)

    def _unit(self, device: int | str) -> Unit:
        unit = self._scenario.find(device)
        if unit is None:
            raise UsageError(f"no device {device!r}; the simulated node has {self.uuids}")
        return unit

    def device(self, device: int | str, start_ns: int, end_ns: int) -> DeviceTruth:
        """Exact totals of a device (GPU index or UUID) in [start_ns, end_ns). `means`: time means of shares, 0-1."""
        unit = self._unit(device)
        activity, seconds = self._activity[unit.slot], (end_ns - start_ns) / NS_PER_S
        growth = activity.totals(end_ns) - activity.totals(start_ns)
        return DeviceTruth(
            busy_s=float(growth[SimulatedQuantity.BUSY]),
            energy_j=float(growth[SimulatedQuantity.ENERGY]) + unit.model.idle_w * seconds,
            flops=float(growth[SimulatedQuantity.FLOPS]),
            bytes=float(growth[SimulatedQuantity.BYTES]),
            pcie_rx_bytes=float(growth[SimulatedQuantity.PCIE_RX]),
            pcie_tx_bytes=float(growth[SimulatedQuantity.PCIE_TX]),
            means={
                c.name.lower(): float(growth[c]) / seconds for c in SimulatedQuantity if c < SimulatedQuantity.ENERGY
            }
            if seconds
            else {},
        )

    @property
    def uuids(self) -> list[str]:
        """The devices: GPUs, each followed by its MIG instances."""
        return [unit.uuid for unit in self._scenario.units]

    @property
    def tags(self) -> list[str]:
        """The tags of all logs."""
        return [tag for tag in self._tags if tag is not None]

    def _of(self, tag: str | None) -> Ints:
        if tag not in self._tags:
            raise UsageError(f"no work is tagged {tag!r}; there are {self.tags}")
        return np.flatnonzero(self._tag_of == self._tags.index(tag))

    def _clipped(self, device: int | str, tag: str | None, start_ns: int, end_ns: int) -> tuple[Records, Ints, Ints]:
        records = self._records[self._of(tag)]
        records = records[records["device"] == self._unit(device).slot]
        start, end = np.maximum(records["start"], start_ns), np.minimum(records["end"], end_ns)
        inside = end > start
        return records[inside], start[inside], end[inside]

    def tag(self, device: int | str, tag: str | None, start_ns: int = 0, end_ns: int = _FOREVER_NS) -> TrueShare:
        """The share of a device that belongs to a tag (None: untagged) within [start_ns, end_ns)."""
        records, start, end = self._clipped(device, tag, start_ns, end_ns)
        if not len(records):
            return TrueShare(0.0, 0.0)
        busy, energy = self._splits[self._unit(device).slot]
        kernel = records["kind"] == RecordKind.KERNEL
        return TrueShare(
            float((busy.many(end[kernel]) - busy.many(start[kernel])).sum()),
            float((energy.many(end) - energy.many(start)).sum()),
        )

    def amounts(self, device: int | str, tag: str | None, start_ns: int = 0, end_ns: int = _FOREVER_NS) -> Amounts:
        """A tag's work (None: untagged) on a device within [start_ns, end_ns). Records across an edge count in part."""
        records, start, end = self._clipped(device, tag, start_ns, end_ns)
        part = (end - start) / (records["end"] - records["start"])
        kernel = records["kind"] == RecordKind.KERNEL
        return Amounts(
            launches=int(kernel.sum()),
            running_s=_union_ns(start[kernel], end[kernel]) / NS_PER_S,
            flops=float((records["flops"] * part).sum()),
            bytes=float((records["bytes"] * part).sum()),
        )

    def label(self, tag: str | None) -> str:
        """The regime to which most of a tag's time belongs.

        A log has no reasons for waits. Between records of one queue and tag, gaps up to 100 µs count as launches
        (overhead), and longer ones as the host's. Gaps beyond a second are between executions and do not count.
        """
        chosen, spent = self._of(tag), _Spent()
        for slot in np.unique(self._records["device"][chosen]):
            on_device = chosen[self._records["device"][chosen] == slot]
            spent.add(self._scenario.units[int(slot)].model, self._records[on_device])
            for file in np.unique(self._files[on_device]):
                queue = np.flatnonzero((self._files == file) & (self._records["device"] == slot))
                records = self._records[queue]
                same = (self._tag_of[queue][1:] == self._tag_of[chosen[0]]) & (np.diff(self._tag_of[queue]) == 0)
                gaps = (records["start"][1:] - records["end"][:-1])[same]
                spent.wait("OVERHEAD_BOUND", int(gaps[(gaps > 0) & (gaps <= _LAUNCH_GAP_NS)].sum()))
                spent.wait("HOST_BOUND", int(gaps[(gaps > _LAUNCH_GAP_NS) & (gaps <= _PAUSE_NS)].sum()))
        return spent.label()


def label(phase: Phase, model: DeviceModel) -> str:
    """The regime of a scripted phase on a model, from the phase's stated work."""
    one, spent = step(phase, model), _Spent()
    spent.add(model, one.records)
    kernels = int((one.records["kind"] == RecordKind.KERNEL).sum())
    spent.wait("OVERHEAD_BOUND", kernels * nanoseconds(phase.launch_gap_s))
    spent.wait("HOST_BOUND", one.length_ns - one.busy_ns - kernels * nanoseconds(phase.launch_gap_s))
    return spent.label()


class _Spent:
    """Time in ns by regime."""

    def __init__(self) -> None:
        self._ns: dict[str, float] = defaultdict(float)
        self._worked = False

    def wait(self, regime: str, ns: int) -> None:
        self._ns[regime] += ns

    def add(self, model: DeviceModel, records: Records) -> None:
        """Add each record's time to the regime of its nearest ceiling."""
        length = (records["end"] - records["start"]).astype(np.float64)
        peak = np.array([model.peak_flops.get(precision, np.inf) for precision in PRECISIONS])[records["precision"]]
        times = np.column_stack(
            [
                records["flops"] / (peak * COMPUTE_EFFICIENCY),
                records["bytes"] / (model.dram_bytes_per_s * MEMORY_EFFICIENCY),
                records["pcie"] / model.pcie_bytes_per_s,
                records["nvlink"] / (model.nvlink_bytes_per_s or np.inf),
            ]
        )
        reached = times * NS_PER_S / np.maximum(length, 1)[:, None]
        kernel = records["kind"] == RecordKind.KERNEL
        names = np.array(["COMPUTE_BOUND", "MEMORY_BOUND", "TRANSFER_BOUND", "COMMUNICATION_BOUND"], object)
        verdict = names[np.argmax(reached, axis=1)]
        top = reached.max(axis=1, initial=0.0)
        tied = np.abs(reached[:, 0] - reached[:, 1]) < _TIE * top
        verdict[tied & (np.argmax(reached, axis=1) < 2)] = "BALANCED"
        verdict[kernel & ((top < _FULL) | (records["sms"] < _FULL) & (np.argmax(reached, axis=1) == 0))] = (
            "LATENCY_BOUND"
        )
        verdict[kernel & (length <= SHORTEST_KERNEL_NS)] = "OVERHEAD_BOUND"
        verdict[~kernel] = "TRANSFER_BOUND"
        for regime in set(verdict):
            self._ns[regime] += float(length[verdict == regime].sum())
        self._worked |= len(records) > 0

    def label(self) -> str:
        if not self._worked:
            return "IDLE"
        return max(self._ns, key=lambda regime: self._ns[regime])


def _union_ns(start: Ints, end: Ints) -> int:
    if not len(start):
        return 0
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    fresh = np.maximum(start[1:], end[:-1])
    return int(end[0] - start[0] + np.maximum(end[1:] - fresh, 0).sum())
