"""A Python object that replaces the shared library under nvidia-ml-py.

`pynvml.nvmlLib = SimulatedNvml(...)`: pynvml looks functions up as attributes and calls them with ctypes arguments, so
its own code, structs and errors are in use.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final

import pynvml as nv

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver.simulated import nvml_device, nvml_events, nvml_fields, nvml_gpm
from gpu_profile.driver.simulated.node import Node
from gpu_profile.driver.simulated.nvml_call import NvmlCall, ReturnCode, SimulatedLibrary, needs, number, put, text
from gpu_profile.driver.simulated.scenario import FILE, Fault, Unit
from gpu_profile.errors import ScenarioError

_CUDA_VERSION: Final = 13_000


class SimulatedNvml(SimulatedLibrary):
    """The simulated library of one process, with the functions of NVML that gpu-profile uses and no others.

    Raises ScenarioError if the node's directory is invalid. A work log that breaks later raises it from the call that
    reads the log.
    """

    def __init__(self, directory: Path | str, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(Node(Path(directory), clock))
        self._inits = 0
        self._opened_ns = self._first_opened_ns = 0
        self._faults = sorted(self.node.scenario.faults, key=lambda fault: fault.from_s)
        self._reloads = [fault for fault in self._faults if fault.kind == "driver_reload"]
        self._removals = [fault for fault in self._faults if fault.kind == "gpu_removed"]
        self._check_names(set(_DEVICE))
        for name, body in _DEVICE.items():
            setattr(self, name, _function(partial(self._on_device, name, body)))
        for name, body in _NODE.items():
            setattr(self, name, _function(partial(self._on_node, body)))
        self.nvmlInitWithFlags = _function(self._init)
        # Not a method: pynvml sets its result type.
        self.nvmlErrorString = lambda code: nv.NVMLError._errcode_to_string.get(number(code), "Unknown Error").encode()

    def _check_names(self, functions: set[str]) -> None:
        names = functions | nvml_fields.NAMES | nvml_device.SAMPLE_NAMES | nvml_gpm.NAMES
        for unit in self.node.scenario.gpus:
            for name in sorted(unit.unsupported - names):
                raise self._unknown(f"device {unit.index}.unsupported", name, names)
        for place, fault in enumerate(self.node.scenario.faults):
            if fault.function not in functions | {"*"}:
                raise self._unknown(f"fault {place}.function", fault.function, functions)

    def _unknown(self, place: str, name: str, names: set[str]) -> ScenarioError:
        near = get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return ScenarioError(f"{self.node.directory / FILE}: [{place}]: unknown {name!r}{hint}")

    def _on_node(self, body: Callable[..., None], *arguments: Any) -> None:
        self._check_state()
        body(self, *arguments)

    def _on_device(self, name: str, body: Callable[..., None], handle: Any, *arguments: Any) -> None:
        now = self._check_state()
        unit = self.unit(handle)
        if self._faults:
            self._check_device(unit, name, now)
        needs(name not in unit.unsupported)
        with self.node.lock:
            body(NvmlCall(self, unit, now, self.node.refresh(now)), *arguments)

    def _init(self, _flags: Any) -> None:
        now = self._check_reloads(nv.NVML_ERROR_DRIVER_NOT_LOADED)
        if not self._inits:
            self._opened_ns = now
            self._first_opened_ns = self._first_opened_ns or now
        self._inits += 1

    def _shutdown(self) -> None:
        self._inits -= 1

    def _check_state(self) -> int:
        if not self._inits:
            raise ReturnCode(nv.NVML_ERROR_UNINITIALIZED)
        now = self._check_reloads(nv.NVML_ERROR_UNINITIALIZED) if self._reloads else self.node.clock.now_ns()
        if not self._inits:
            raise ReturnCode(nv.NVML_ERROR_UNINITIALIZED)
        return now

    def _check_reloads(self, while_gone: int) -> int:
        now = self.node.clock.now_ns()
        for reload in self._reloads:
            start = self.node.at(reload.from_s)
            if now < start:
                break
            if reload.mismatch and self._first_opened_ns and self._first_opened_ns < start:
                raise ReturnCode(nv.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
            if now < self.node.at(reload.to_s):
                raise ReturnCode(while_gone)
            if self._inits and self._opened_ns < start:
                self._inits = 0
                self.generation += 1
        return now

    @property
    def gpus(self) -> list[Unit]:
        """The GPUs that existed when NVML was started, in the order of their indices."""
        gone = {fault.device for fault in self._removals if self._within(fault, self._opened_ns)}
        return [unit for unit in self.node.scenario.gpus if unit.index not in gone]

    def _within(self, fault: Fault, t_ns: int) -> bool:
        return self.node.at(fault.from_s) <= t_ns < self.node.at(fault.to_s)

    def _check_device(self, unit: Unit, name: str, now: int) -> None:
        gpu = self.gpu(unit).index
        for removal in self._removals:
            if (
                removal.device == gpu
                and self._opened_ns < self.node.at(removal.to_s)
                and self.node.at(removal.from_s) <= now
            ):
                raise ReturnCode(nv.NVML_ERROR_GPU_IS_LOST)
        for fault in self._faults:
            if fault.kind in ("gpu_lost", "hang") and fault.device == gpu and self._within(fault, now):
                if fault.kind == "gpu_lost":
                    raise ReturnCode(nv.NVML_ERROR_GPU_IS_LOST)
                if fault.function in ("*", name):
                    self.node.clock.wait(threading.Event(), fault.hang_s)

    def distribute(self, out: Any, unit: Unit) -> None:
        """Store the handle of `unit`. Done(GPU_IS_LOST) if it is lost."""
        if self._faults:
            self._check_device(unit, "", self.node.clock.now_ns())
        self.put_handle(out, unit)


def _function(body: Callable[..., None]) -> Callable[..., int]:
    """The body as a C function that returns a code. A plain function, because pynvml sets attributes on it."""

    def call(*arguments: Any) -> int:
        try:
            body(*arguments)
        except ReturnCode as done:
            return done.code
        return int(nv.NVML_SUCCESS)

    return call


def _of_gpus(body: Callable[..., None], call: NvmlCall, *arguments: Any) -> None:
    needs(call.unit.parent is None)
    body(call, *arguments)


def _count(library: SimulatedNvml, out: Any) -> None:
    put(out, len(library.gpus))


def _confidential(_library: SimulatedNvml, out: Any) -> None:
    out._obj.ccFeature = nv.NVML_CC_SYSTEM_FEATURE_DISABLED


def _by_index(library: SimulatedNvml, index: Any, out: Any) -> None:
    gpus = library.gpus
    if number(index) >= len(gpus):
        raise ReturnCode(nv.NVML_ERROR_INVALID_ARGUMENT)
    library.distribute(out, gpus[number(index)])


def _by_uuid(library: SimulatedNvml, uuid: Any, out: Any) -> None:
    wanted = (uuid.value if isinstance(uuid, ctypes.c_char_p) else uuid) or b""
    there = library.gpus
    for unit in library.node.scenario.units:
        if unit.uuid.encode() == wanted and library.gpu(unit) in there:
            return library.distribute(out, unit)
    raise ReturnCode(nv.NVML_ERROR_NOT_FOUND)


#: Functions of the node. `_GPU`: of devices that are no MIG instances. `_DEVICE`: of any device.
_NODE: Final[dict[str, Callable[..., None]]] = {
    "nvmlShutdown": SimulatedNvml._shutdown,
    "nvmlSystemGetDriverVersion": lambda library, buffer, _size: text(buffer, library.node.scenario.driver_version),
    "nvmlSystemGetNVMLVersion": lambda library, buffer, _: text(buffer, f"13.{library.node.scenario.driver_version}"),
    "nvmlSystemGetCudaDriverVersion": lambda _, out: put(out, _CUDA_VERSION),
    "nvmlSystemGetCudaDriverVersion_v2": lambda _, out: put(out, _CUDA_VERSION),
    "nvmlSystemGetConfComputeState": _confidential,
    "nvmlDeviceGetCount_v2": _count,
    "nvmlDeviceGetHandleByIndex_v2": _by_index,
    "nvmlDeviceGetHandleByUUID": _by_uuid,
    **nvml_gpm.TABLE,
    **nvml_events.TABLE,
}
_GPU: Final = {**nvml_device.GPU_TABLE, **nvml_fields.GPU_TABLE, **nvml_events.GPU_TABLE}
_DEVICE: Final[dict[str, Callable[..., None]]] = {
    **nvml_device.TABLE,
    **nvml_gpm.DEVICE_TABLE,
    **{name: partial(_of_gpus, body) for name, body in _GPU.items()},
}
