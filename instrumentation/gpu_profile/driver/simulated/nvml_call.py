"""Shared code of the simulated NVML functions: the end of a call, and reading and writing ctypes arguments."""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

import pynvml as nv

from gpu_profile.driver.simulated.node import Node
from gpu_profile.driver.simulated.scenario import Unit
from gpu_profile.driver.simulated.sensors import Sensors

_HANDLES: Final = 1 << 20


class ReturnCode(Exception):  # noqa: N818 - ends a call, is no error of this program
    """Ends a simulated call with this NVML return code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class SimulatedLibrary:
    """The state of the simulated library of one process."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.generation = 0
        self.next_object = 1
        self.gpm_samples: dict[int, Any] = {}
        self.event_sets: dict[int, Any] = {}

    def gpu(self, unit: Unit) -> Unit:
        """The GPU of a MIG instance; a GPU itself."""
        return unit if unit.parent is None else self.node.scenario.units[unit.parent]

    def address_of(self, unit: Unit) -> int:
        """The opaque handle of a device. Handles change when the driver is loaded again."""
        return (self.generation + 1) * _HANDLES + unit.slot + 1

    def unit(self, handle: Any) -> Unit:
        """The device of a handle. Done(INVALID_ARGUMENT) if the handle is unknown or from before a reload."""
        generation, slot = divmod(address(handle), _HANDLES)
        if generation != self.generation + 1 or not 0 < slot <= len(self.node.scenario.units):
            raise ReturnCode(nv.NVML_ERROR_INVALID_ARGUMENT)
        return self.node.scenario.units[slot - 1]

    def put_handle(self, out: Any, unit: Unit) -> None:
        """Store the handle of `unit` through a `byref` argument."""
        put_address(out, self.address_of(unit))

    def new_object(self) -> int:
        """An address for a new opaque object."""
        self.next_object += 1
        return self.next_object * 64


class NvmlCall(NamedTuple):
    """One call on a device. `now_ns`: the clock's time. `t_ns`: the moment that the sensors show."""

    library: SimulatedLibrary
    unit: Unit
    now_ns: int
    t_ns: int

    @property
    def sensors(self) -> Sensors:
        """The sensors of the device."""
        return self.library.node.sensors[self.unit.slot]

    def whole_gpu_only(self) -> None:
        """End the call for a MIG instance, and for a GPU in MIG mode."""
        needs(self.unit.parent is None and not self.unit.slices)


def needs(has: object) -> None:
    """End the call with NOT_SUPPORTED if `has` is false."""
    if not has:
        raise ReturnCode(nv.NVML_ERROR_NOT_SUPPORTED)


def text(buffer: Any, words: str) -> None:
    """Store a text in the caller's buffer."""
    buffer.value = words.encode()


def put(out: Any, value: Any) -> None:
    """Store a scalar through a `byref` argument."""
    out._obj.value = value


def put_address(out: Any, value: int) -> None:
    """Store an opaque handle through a `byref` argument."""
    ctypes.c_void_p.from_buffer(out._obj).value = value


def address(handle: Any) -> int:
    """The number behind an opaque handle."""
    if isinstance(handle, int):
        return handle
    return ctypes.c_void_p.from_buffer(handle).value or 0


def number(value: Any) -> int:
    """An integer argument, plain or as a ctypes scalar."""
    return int(getattr(value, "value", value))
