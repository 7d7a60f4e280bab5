"""The fallback if NVML cannot be loaded: `nvidia-smi`, one process for all devices."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpu_profile.catalogue import SIGNALS, Kind, Signal, Tier
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver.null import SilentDriver
from gpu_profile.driver.protocol import Capability
from gpu_profile.errors import DeviceLost, GpuBackendError
from gpu_profile.units import MIB, NS_PER_S

#: Runs a command for at most the given seconds. Raises the errors of `subprocess.run`.
Run = Callable[[Sequence[str], float], "subprocess.CompletedProcess[str]"]

_IDENTITY: Final = ("uuid", "index", "name", "pci.bus_id", "memory.total", "driver_version")
#: Field of nvidia-smi -> signal, and the factor from the field's unit to the signal's base unit.
_FIELDS: Final[Mapping[str, tuple[Signal, float]]] = {
    "utilization.gpu": (rows.UTILIZATION, 0.01),
    "utilization.memory": (rows.MEMORY_CONTROLLER, 0.01),
    "memory.used": (rows.MEMORY_USED, MIB),
    "memory.reserved": (rows.MEMORY_RESERVED, MIB),
    "power.draw": (rows.POWER_AVERAGE, 1),
    "temperature.gpu": (rows.TEMPERATURE, 1),
    "clocks.sm": (rows.CLOCK_SM, 1e6),
    "clocks.mem": (rows.CLOCK_MEMORY, 1e6),
}
_UNKNOWN_FIELD: Final = re.compile(r'Field "([^"]*)" is not a valid field to query')
#: At most 15 digits: exact in a float, and more than any field has.
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]{1,64}")
_LOST: Final = "GPU is lost"

#: A table older than this is never served, not even to a device and tier that have not used it.
_TABLE_AGE_NS: Final = NS_PER_S // 2
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class SmiRow:
    """One device of a table: its values in quanta, and the reason for each absent value."""

    device: Device
    driver_version: str
    values: Mapping[Signal, int]
    absent: Mapping[Signal, str]

    @property
    def lost(self) -> bool:
        """Whether nvidia-smi prints "GPU is lost" for any quantity."""
        return _LOST in self.absent.values()


def parse_table(text: str, fields: Sequence[str]) -> dict[str, SmiRow]:
    """The devices in nvidia-smi's CSV (no header, no units), by UUID. GpuBackendError if `text` is no such table.

    A device without a UUID has fallen off the bus and is left out.
    """
    table = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(fields):
            reason = f"{len(cells)} values where {len(fields)} were asked for: {_short(line)}"
            raise GpuBackendError(f"nvidia-smi: line {number}: {reason}")
        row = _row(dict(zip(fields, cells, strict=True)), number)
        if row is not None:
            table[row.device.uuid] = row
    return table


def _row(cells: Mapping[str, str], number: int) -> SmiRow | None:
    uuid = cells["uuid"]
    if _absence(uuid):
        return None
    if not _UUID.fullmatch(uuid):
        raise GpuBackendError(f"nvidia-smi: line {number}: not the UUID of a GPU: {_short(uuid)}")
    values: dict[Signal, int] = {}
    absent: dict[Signal, str] = {}
    for field, (signal, scale) in _FIELDS.items():
        if field not in cells:
            absent[signal] = f"this nvidia-smi has no field {field}"
            continue
        cell = cells[field]
        quanta = signal.quanta(float(cell) * scale) if _NUMBER.fullmatch(cell) else None
        if quanta is not None and abs(quanta) <= signal.limit:
            values[signal] = quanta
        else:
            absent[signal] = _absence(cell) or f"nvidia-smi says {_short(cell)}"
    index, total = cells["index"], cells["memory.total"]
    device = Device(
        uuid,
        index=int(index) if re.fullmatch("[0-9]{1,4}", index) else None,
        name="" if _absence(cells["name"]) else cells["name"],
        pci_bus_id="" if _absence(cells["pci.bus_id"]) else cells["pci.bus_id"],
        memory_bytes=round(float(total) * MIB) if _NUMBER.fullmatch(total) else None,
    )
    version = cells["driver_version"]
    return SmiRow(device, "" if _absence(version) else version, values, absent)


def _absence(cell: str) -> str:
    """The reason in a cell such as `[N/A]`, `[Not Supported]`, `ERR!`; empty if the cell has a value."""
    if cell.startswith("[") and cell.endswith("]"):
        return cell[1:-1].strip() or "empty"
    return {"": "empty", "N/A": "N/A", "ERR!": "nvidia-smi could not read it (ERR!)"}.get(cell, "")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


class SmiDriver(SilentDriver):
    """Reads the output of `nvidia-smi`. GpuBackendError if it is missing, fails, or does not end within 10 s.

    One process serves a whole tick: its table is used once for each device and tier, for up to half a second. Samples
    have the time at which the process ended. MIG instances, sample buffers, GPM, events and the processes on a device
    need NVML.
    """

    name: Final = "smi"

    def __init__(self, *, run: Run | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._run = run or _Runner()
        self._clock = clock
        self._fields = [*_IDENTITY, *_FIELDS]
        self._served: set[tuple[str, Tier]] = set()
        self._ends: dict[tuple[str, Signal], int] = {}
        self._refresh()

    @property
    def version(self) -> str:
        """Version of the NVIDIA driver, or an empty string."""
        return next((row.driver_version for row in self._table.values()), "")

    def devices(self) -> Sequence[Device]:
        """The GPUs in the order of nvidia-smi, without lost ones."""
        if self._stale():
            self._refresh()
        return tuple(row.device for row in self._table.values() if not row.lost)

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        """The signals in the device's row of the latest table, and nvidia-smi's reasons for absent ones."""
        row = self._table.get(device.uuid)
        gone = "nvidia-smi no longer lists the device"
        absent = row.absent if row else dict.fromkeys((signal for signal, _ in _FIELDS.values()), gone)
        result = {signal: Capability(False, "not read from nvidia-smi; needs NVML") for signal in SIGNALS}
        result.update((signal, Capability(True)) for signal, _ in _FIELDS.values())
        result.update((signal, Capability(False, reason)) for signal, reason in absent.items())
        return result

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        """The device's signals of `tier`. DeviceLost if nvidia-smi no longer lists it or calls it lost."""
        if (device.uuid, tier) in self._served or self._stale():
            self._refresh()
        self._served.add((device.uuid, tier))
        row = self._table.get(device.uuid)
        if row is None or row.lost:
            raise DeviceLost(f"{device.uuid}: {'lost' if row else 'no longer listed'}, says nvidia-smi")
        samples = []
        for signal, value in row.values.items():
            if signal.tier is tier:
                start = self._start(device.uuid, signal)
                if start < self._taken_ns or signal.kind is not Kind.WINDOW_MEAN:
                    samples.append(Sample(signal, start, self._taken_ns, value))
        return samples

    def _start(self, uuid: str, signal: Signal) -> int:
        """The start of the sample that ends with the table. Window means of one signal never overlap."""
        end = self._taken_ns
        if signal.kind is not Kind.WINDOW_MEAN:
            return end
        before = self._ends.get((uuid, signal), 0)
        self._ends[uuid, signal] = end
        # After the clock was set back, start as at the first reading.
        return max(before, end - signal.window_ns) if before <= end else end - signal.window_ns

    def _stale(self) -> bool:
        return not 0 <= self._clock.now_ns() - self._taken_ns <= _TABLE_AGE_NS

    def _refresh(self) -> None:
        while True:
            command = ["nvidia-smi", f"--query-gpu={','.join(self._fields)}", "--format=csv,noheader,nounits"]
            done = self._call(command)
            unknown = _UNKNOWN_FIELD.search(done.stdout + done.stderr)
            if unknown is None or unknown[1] not in self._fields or unknown[1] in _IDENTITY:
                break
            self._fields.remove(unknown[1])  # an older nvidia-smi: leave the field out from now on
        if done.returncode:
            said = next((line.strip() for line in (done.stdout + "\n" + done.stderr).split("\n") if line.strip()), "")
            raise GpuBackendError(f"nvidia-smi failed (exit {done.returncode}): {said or 'it said nothing'}")
        self._table = parse_table(done.stdout, self._fields)
        self._taken_ns = self._clock.now_ns()
        self._served.clear()

    def _call(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            return self._run(command, _TIMEOUT_S)
        except FileNotFoundError as error:
            hint = "install the NVIDIA driver, or give the container access to the GPUs"
            raise GpuBackendError(f"nvidia-smi not found on PATH: {hint}") from error
        except subprocess.TimeoutExpired as error:
            raise GpuBackendError(f"nvidia-smi did not end within {error.timeout:g} s: the driver hangs") from error
        except OSError as error:
            raise GpuBackendError(f"nvidia-smi cannot be run: {error.strerror or error}") from error


class _Runner:
    """Like `subprocess.run`, but does not wait for a process that survives SIGKILL because the driver hangs.

    While such a process lives, none is started: processes would accumulate.
    """

    def __init__(self) -> None:
        self._stuck: subprocess.Popen[str] | None = None

    def __call__(self, command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        if self._stuck is not None and self._stuck.poll() is None:
            raise subprocess.TimeoutExpired(command, timeout_s)
        self._stuck = None
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            try:
                process.communicate(timeout=1.0)
            except subprocess.TimeoutExpired:
                self._stuck = process
            raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
