"""A simulated node in one process: the scenario, the logs read so far, and the sensors of every device."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from gpu_profile.clock import Clock
from gpu_profile.driver.own_process import runs
from gpu_profile.driver.simulated.activity import LoggedActivity, Shifted, SimulatedActivity, Sum
from gpu_profile.driver.simulated.models import DeviceModel
from gpu_profile.driver.simulated.physics import WIDTH, Floats, Ints, SimulatedQuantity
from gpu_profile.driver.simulated.scenario import FILE, Scenario, Unit, load, parse
from gpu_profile.driver.simulated.script import script
from gpu_profile.driver.simulated.sensors import Sensors
from gpu_profile.driver.simulated.worklog import LogBatch, LogReader, RecordKind
from gpu_profile.errors import ScenarioError
from gpu_profile.units import MIB, NS_PER_S

EPOCH_FILE: Final = "epoch"
#: Sensors show the device's state of this long ago, so that work of other processes has reached its log.
PUBLISHED_NS: Final = 2_000_000
_POLL_NS: Final = 1_000_000
_LONG_AGO_NS: Final = -1 << 62
#: Kernels are kept by process for this long, which is longer than any driver keeps its samples.
_KERNELS_NS: Final = 120 * NS_PER_S


@dataclass(slots=True)
class _Writer:
    """The writer of one log: its process, its devices, and its changes of device memory."""

    pid: int
    slots: set[int] = field(default_factory=set)
    changes: list[tuple[int, int, int]] = field(default_factory=list)
    closed_ns: int | None = None

    def alive(self, t_ns: int) -> bool:
        return (self.closed_ns is None or t_ns < self.closed_ns) and runs(self.pid)

    def allocated(self, slot: int, t_ns: int) -> int:
        return sum(change for t, where, change in self.changes if where == slot and t <= t_ns)


def epoch(directory: Path, scenario: Scenario, clock: Clock) -> int:
    """The start of the node, in ns since the epoch: from the scenario, else from the file that its first user wrote."""
    if scenario.start_ns is not None:
        return scenario.start_ns
    file = directory / EPOCH_FILE
    try:
        return int(file.read_text(encoding="ascii"))
    except FileNotFoundError:
        draft = directory / f".{EPOCH_FILE}-{os.getpid()}-{threading.get_ident()}"
        draft.write_text(f"{clock.now_ns()}\n", encoding="ascii")
        with suppress(FileExistsError):  # another process was first: its epoch counts
            os.link(draft, file)
        draft.unlink()
        return epoch(directory, scenario, clock)
    except ValueError:
        raise ScenarioError(f"{file}: [line 1]: expected nanoseconds since the epoch") from None


def create(directory: Path, text: str | None, clock: Clock) -> None:
    """Create the directory of a new node that starts now, with the scenario `text` if given."""
    if text is not None:
        parse(text, str(directory / FILE))
    directory.mkdir(parents=True, exist_ok=True)
    if text is not None:
        with (directory / FILE).open("x", encoding="utf-8") as file:
            file.write(text)
    epoch(directory, load(directory), clock)


class Node:
    """The devices of a simulated node, read incrementally. Threads acquire `lock` to read sensors."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        if not directory.is_dir():
            raise ScenarioError(f"{directory}: no such directory; make it (mkdir) for a new simulated node")
        self.directory, self.clock = directory, clock
        self.scenario = load(directory)
        self.epoch_ns = epoch(directory, self.scenario, clock)
        #: The moments at which the driver was loaded: the start, and the end of every reload.
        self.loads = [
            self.epoch_ns,
            *sorted(self.at(f.to_s) for f in self.scenario.faults if f.kind == "driver_reload"),
        ]
        #: Held while reading sensors, because `refresh` rewrites the newest part of their totals.
        self.lock = threading.RLock()
        self._reset()

    def _reset(self) -> None:
        self._reader = LogReader(self.directory, len(self.scenario.units))
        self._writers: dict[int, _Writer] = {}
        self._logged: dict[int, LoggedActivity] = {}
        #: By slot: batches of kernels as (pid, starts, ends), oldest first.
        self._kernels: dict[int, deque[tuple[int, Ints, Ints]]] = {}
        self._polled_ns = _LONG_AGO_NS
        by_slot = activities(self.scenario, self.epoch_ns, self._log)
        self.sensors = [
            Sensors(
                unit.model,
                by_slot[unit.slot],
                self.epoch_ns,
                noise=self.scenario.noise,
                seed=self.scenario.seed * 1000 + unit.slot,
            )
            for unit in self.scenario.units
        ]

    def _log(self, unit: Unit) -> SimulatedActivity:
        logged = self._logged[unit.slot] = LoggedActivity(unit.model, self.loads[1:])
        return logged

    def refresh(self, now_ns: int) -> int:
        """Read new log records, at most once per ms. Returns the moment that the sensors show."""
        if not 0 <= now_ns - self._polled_ns < _POLL_NS:
            with self.lock:
                if not self._take(self._reader.poll(), now_ns):
                    # A writer was delayed for longer than totals can be rewritten: read all logs again, in order.
                    self._reader.close()
                    self._reset()
                    self._take(self._reader.poll(), now_ns)
                self._polled_ns = now_ns
        return max(self.epoch_ns, now_ns - PUBLISHED_NS)

    def _take(self, batches: Sequence[LogBatch], now_ns: int) -> bool:
        if not batches:
            return True
        for batch in batches:
            self._note_writer(batch, now_ns)
        records = batches[0].records if len(batches) == 1 else np.concatenate([batch.records for batch in batches])
        records = records[records["kind"] <= RecordKind.COPY_OUT]
        for slot in np.unique(records["device"]):
            logged = self._logged.get(int(slot))
            if logged is None:
                raise ScenarioError(
                    f"{batches[0].path}: [byte {batches[0].offset}]: work for {self.scenario.units[slot].uuid}, "
                    "which follows a script or is cut into instances"
                )
            part = records[records["device"] == slot]
            if not logged.extend(part[np.argsort(part["start"], kind="stable")], now_ns):
                return False
        for sensors in self.sensors:
            sensors.forget()
        return True

    def _note_writer(self, batch: LogBatch, now_ns: int) -> None:
        writer = self._writers.setdefault(batch.file, _Writer(batch.pid))
        kernels = batch.records[batch.records["kind"] == RecordKind.KERNEL]
        for slot in map(int, np.unique(batch.records["device"])):
            writer.slots.add(slot)
            part = kernels[kernels["device"] == slot]
            if len(part):
                kept = self._kernels.setdefault(slot, deque())
                kept.append((batch.pid, part["start"].copy(), part["end"].copy()))
                while kept and kept[0][2][-1] < now_ns - _KERNELS_NS:
                    kept.popleft()
        for record in batch.records[batch.records["kind"] >= RecordKind.MEMORY]:
            if record["kind"] == RecordKind.CLOSE:
                writer.closed_ns = int(record["start"])
            else:
                writer.changes.append((int(record["start"]), int(record["device"]), int(record["bytes"])))

    def processes(self, unit: Unit, t_ns: int) -> list[tuple[int, int, int]]:
        """The processes on the device or its instances: (pid, slot, bytes of device memory), sorted."""
        sizes: dict[tuple[int, int], int] = {}
        for writer in list(self._writers.values()):
            if writer.alive(t_ns):
                for slot in writer.slots & {unit.slot, *unit.slices}:
                    key = (writer.pid, slot)
                    sizes[key] = sizes.get(key, 0) + writer.allocated(slot, t_ns)
        return [(pid, slot, max(0, size)) for (pid, slot), size in sorted(sizes.items())]

    def shares(self, unit: Unit, start_ns: int, end_ns: int) -> dict[int, float]:
        """The share of an interval in which each pid's kernels ran on a device. Processes that overlap share the time.

        The shares sum to the device's busy share. `start_ns` is at most two minutes ago.
        """
        kernels = [
            (pid, np.maximum(starts, start_ns), np.minimum(ends, end_ns))
            for pid, starts, ends in self._kernels.get(unit.slot, ())
        ]
        kernels = [(pid, starts[starts < ends], ends[starts < ends]) for pid, starts, ends in kernels]
        edges = np.unique(np.concatenate([np.zeros(0, np.int64), *(each for _, *both in kernels for each in both)]))
        running: dict[int, Floats] = {}
        for pid, starts, ends in kernels:
            if len(starts):
                count = np.searchsorted(np.sort(starts), edges[:-1], "right")
                count = count - np.searchsorted(np.sort(ends), edges[:-1], "right")
                running[pid] = running.get(pid, np.zeros(len(count))) + count
        together = np.maximum(sum(running.values()), 1)
        lengths = np.diff(edges) / (end_ns - start_ns)
        return {pid: float((count / together * lengths).sum()) for pid, count in sorted(running.items())}

    def memory_used(self, unit: Unit, t_ns: int) -> int:
        """Device memory in use in bytes, without the memory reserved by driver and firmware."""
        stated = sum(self.scenario.units[slot].memory_used_mib for slot in (unit.slot, *unit.slices)) * MIB
        used = stated + sum(size for _, _, size in self.processes(unit, t_ns))
        return min(used, (unit.model.memory_mib - unit.model.reserved_mib) * MIB)

    def at(self, seconds: float) -> int:
        """A moment of the scenario, in ns since the epoch. Infinity becomes 1e9 s after the start."""
        return self.epoch_ns + round(min(seconds, 1e9) * NS_PER_S)

    def close(self) -> None:
        """Close the logs. Closing twice is fine."""
        self._reader.close()


def activities(
    scenario: Scenario, epoch_ns: int, logged: Callable[[Unit], SimulatedActivity]
) -> dict[int, SimulatedActivity]:
    """The activity of every device, by slot. `logged` returns the activity of a device with logged work."""
    result: dict[int, SimulatedActivity] = {}
    for unit in reversed(scenario.units):  # instances before the GPU that is their sum
        if unit.slices:
            parts = [scenario.units[slot] for slot in unit.slices]
            result[unit.slot] = Sum([result[slot] for slot in unit.slices], _weights(unit.model, parts))
        elif unit.phases:
            result[unit.slot] = Shifted(script(unit.phases, unit.model, loop=unit.loop), epoch_ns)
        else:
            result[unit.slot] = logged(unit)
    return result


def _weights(whole: DeviceModel, parts: Sequence[Unit]) -> Floats:
    """Factors from an instance's totals to its GPU's. Shares of a ceiling are scaled down, amounts are not."""
    weights = np.ones((len(parts), WIDTH))
    compute = [
        SimulatedQuantity.BUSY,
        SimulatedQuantity.SM,
        SimulatedQuantity.OCCUPANCY,
        SimulatedQuantity.TENSOR,
        SimulatedQuantity.FP64,
        SimulatedQuantity.FP32,
        SimulatedQuantity.THROTTLED,
    ]
    memory = [SimulatedQuantity.MEMORY_BUSY, SimulatedQuantity.DRAM]
    for row, part in enumerate(parts):
        weights[row, compute] = part.model.sms / whole.sms
        weights[row, memory] = part.model.dram_bytes_per_s / whole.dram_bytes_per_s
    return weights
