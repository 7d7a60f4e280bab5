"""A simulated node as one process sees it: the scenario, the logs read so far, and the sensors of every device."""

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
#: Sensors show the device as it was this long ago, so that work launched in another process has reached its log.
PUBLISHED_NS: Final = 2_000_000
_POLL_NS: Final = 1_000_000
_LONG_AGO_NS: Final = -1 << 62
#: For how long it is known whose kernel ran when: longer than any driver keeps its samples.
_KERNELS_NS: Final = 120 * NS_PER_S


@dataclass(slots=True)
class _Writer:
    """What one log says beside its work: who writes it, where, and what it holds of each device's memory."""

    pid: int
    slots: set[int] = field(default_factory=set)
    changes: list[tuple[int, int, int]] = field(default_factory=list)
    closed_ns: int | None = None

    def alive(self, t_ns: int) -> bool:
        return (self.closed_ns is None or t_ns < self.closed_ns) and runs(self.pid)

    def held(self, slot: int, t_ns: int) -> int:
        return sum(change for t, where, change in self.changes if where == slot and t <= t_ns)


def epoch(directory: Path, scenario: Scenario, clock: Clock) -> int:
    """When the node started: what the scenario says, else what its first user wrote down."""
    if scenario.start_ns is not None:
        return scenario.start_ns
    file = directory / EPOCH_FILE
    try:
        return int(file.read_text(encoding="ascii"))
    except FileNotFoundError:
        draft = directory / f".{EPOCH_FILE}-{os.getpid()}-{threading.get_ident()}"
        draft.write_text(f"{clock.now_ns()}\n", encoding="ascii")
        with suppress(FileExistsError):  # Another process was first: its epoch counts.
            os.link(draft, file)
        draft.unlink()
        return epoch(directory, scenario, clock)
    except ValueError:
        raise ScenarioError(f"{file}: [line 1]: expected nanoseconds since the epoch") from None


def create(directory: Path, text: str | None, clock: Clock) -> None:
    """Make the directory of a new node that starts now, with a scenario if there is one."""
    if text is not None:
        parse(text, str(directory / FILE))
    directory.mkdir(parents=True, exist_ok=True)
    if text is not None:
        with (directory / FILE).open("x", encoding="utf-8") as file:
            file.write(text)
    epoch(directory, load(directory), clock)


class Node:
    """The devices of a simulated node, read incrementally. Threads that read sensors hold `lock`."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        if not directory.is_dir():
            raise ScenarioError(f"{directory}: [directory]: there is none; make it with simulated.create()")
        self.directory, self.clock = directory, clock
        self.scenario = load(directory)
        self.epoch_ns = epoch(directory, self.scenario, clock)
        #: When the driver was loaded: at the start, and at the end of every reload.
        self.loads = [
            self.epoch_ns,
            *sorted(self.at(f.to_s) for f in self.scenario.faults if f.kind == "driver_reload"),
        ]
        #: Held while reading sensors: `refresh` rewrites what is still open of their history.
        self.lock = threading.RLock()
        self._reset()

    def _reset(self) -> None:
        self._reader = LogReader(self.directory, len(self.scenario.units))
        self._writers: dict[int, _Writer] = {}
        self._logged: dict[int, LoggedActivity] = {}
        #: By slot: batches of kernels as (pid, starts, ends), oldest first.
        self._kernels: dict[int, deque[tuple[int, Ints, Ints]]] = {}
        self._polled_ns = _LONG_AGO_NS
        found = activities(self.scenario, self.epoch_ns, self._log)
        self.sensors = [
            Sensors(
                unit.model,
                found[unit.slot],
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
        """Read what was logged, at most once per ms. Returns the moment that the sensors show."""
        if not 0 <= now_ns - self._polled_ns < _POLL_NS:
            with self.lock:
                if not self._take(self._reader.poll(), now_ns):
                    # A writer was held up for longer than history stays open: read everything again, in order.
                    self._reader.close()
                    self._reset()
                    self._take(self._reader.poll(), now_ns)
                self._polled_ns = now_ns
        return max(self.epoch_ns, now_ns - PUBLISHED_NS)

    def _take(self, batches: Sequence[LogBatch], now_ns: int) -> bool:
        if not batches:
            return True
        for batch in batches:
            self._bookkeeping(batch, now_ns)
        records = batches[0].records if len(batches) == 1 else np.concatenate([batch.records for batch in batches])
        records = records[records["kind"] <= RecordKind.COPY_OUT]
        for slot in np.unique(records["device"]):
            logged = self._logged.get(int(slot))
            if logged is None:
                raise ScenarioError(
                    f"{batches[0].path}: [byte {batches[0].offset}]: work for {self.scenario.units[slot].uuid}, "
                    "which follows a script or is cut into instances"
                )
            mine = records[records["device"] == slot]
            if not logged.extend(mine[np.argsort(mine["start"], kind="stable")], now_ns):
                return False
        for sensors in self.sensors:
            sensors.forget()
        return True

    def _bookkeeping(self, batch: LogBatch, now_ns: int) -> None:
        writer = self._writers.setdefault(batch.file, _Writer(batch.pid))
        kernels = batch.records[batch.records["kind"] == RecordKind.KERNEL]
        for slot in map(int, np.unique(batch.records["device"])):
            writer.slots.add(slot)
            mine = kernels[kernels["device"] == slot]
            if len(mine):
                known = self._kernels.setdefault(slot, deque())
                known.append((batch.pid, mine["start"].copy(), mine["end"].copy()))
                while known and known[0][2][-1] < now_ns - _KERNELS_NS:
                    known.popleft()
        for record in batch.records[batch.records["kind"] >= RecordKind.MEMORY]:
            if record["kind"] == RecordKind.CLOSE:
                writer.closed_ns = int(record["start"])
            else:
                writer.changes.append((int(record["start"]), int(record["device"]), int(record["bytes"])))

    def processes(self, unit: Unit, t_ns: int) -> list[tuple[int, int, int]]:
        """Who uses the device or one of its instances: (pid, slot, bytes held), by pid and slot."""
        held: dict[tuple[int, int], int] = {}
        for writer in list(self._writers.values()):
            if writer.alive(t_ns):
                for slot in writer.slots & {unit.slot, *unit.slices}:
                    key = (writer.pid, slot)
                    held[key] = held.get(key, 0) + writer.held(slot, t_ns)
        return [(pid, slot, max(0, size)) for (pid, slot), size in sorted(held.items())]

    def shares(self, unit: Unit, start_ns: int, end_ns: int) -> dict[int, float]:
        """Whose kernels ran on a device between two moments, by pid: shares of that time, split while several ran.

        They sum to the device's busy share. `start_ns` may lie at most two minutes back.
        """
        known = [
            (pid, np.maximum(starts, start_ns), np.minimum(ends, end_ns))
            for pid, starts, ends in self._kernels.get(unit.slot, ())
        ]
        known = [(pid, starts[starts < ends], ends[starts < ends]) for pid, starts, ends in known]
        edges = np.unique(np.concatenate([np.zeros(0, np.int64), *(each for _, *both in known for each in both)]))
        running: dict[int, Floats] = {}
        for pid, starts, ends in known:
            if len(starts):
                count = np.searchsorted(np.sort(starts), edges[:-1], "right")
                count = count - np.searchsorted(np.sort(ends), edges[:-1], "right")
                running[pid] = running.get(pid, np.zeros(len(count))) + count
        together = np.maximum(sum(running.values()), 1)
        lengths = np.diff(edges) / (end_ns - start_ns)
        return {pid: float((count / together * lengths).sum()) for pid, count in sorted(running.items())}

    def memory_used(self, unit: Unit, t_ns: int) -> int:
        """Device memory in use in bytes, without what driver and firmware keep."""
        stated = sum(self.scenario.units[slot].memory_used_mib for slot in (unit.slot, *unit.slices)) * MIB
        used = stated + sum(size for _, _, size in self.processes(unit, t_ns))
        return min(used, (unit.model.memory_mib - unit.model.reserved_mib) * MIB)

    def at(self, seconds: float) -> int:
        """A moment of the scenario, in ns since the epoch; far away for infinity."""
        return self.epoch_ns + round(min(seconds, 1e9) * NS_PER_S)

    def close(self) -> None:
        """Close the logs. Closing twice is fine."""
        self._reader.close()


def activities(
    scenario: Scenario, epoch_ns: int, logged: Callable[[Unit], SimulatedActivity]
) -> dict[int, SimulatedActivity]:
    """What every device does, by slot; `logged` tells it of those that run logged work."""
    found: dict[int, SimulatedActivity] = {}
    for unit in reversed(scenario.units):  # Instances before the GPU that is their sum.
        if unit.slices:
            parts = [scenario.units[slot] for slot in unit.slices]
            found[unit.slot] = Sum([found[slot] for slot in unit.slices], _weights(unit.model, parts))
        elif unit.phases:
            found[unit.slot] = Shifted(script(unit.phases, unit.model, loop=unit.loop), epoch_ns)
        else:
            found[unit.slot] = logged(unit)
    return found


def _weights(whole: DeviceModel, parts: Sequence[Unit]) -> Floats:
    """What one unit of an instance's total adds to its GPU's: shares of ceilings shrink, amounts do not."""
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
