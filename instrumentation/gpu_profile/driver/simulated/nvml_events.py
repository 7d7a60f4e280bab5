"""Simulated NVML events: XID errors at the moments in the scenario."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pynvml as nv

from gpu_profile.driver.simulated.nvml_call import (
    NvmlCall,
    ReturnCode,
    SimulatedLibrary,
    address,
    needs,
    number,
    put,
    put_address,
)
from gpu_profile.units import NS_PER_S

_SUPPORTED: Final = nv.nvmlEventTypeXidCriticalError
_NO_INSTANCE: Final = 0xFFFFFFFF
#: The XID of a GPU that falls off the bus.
_FELL_OFF: Final = 79


@dataclass(slots=True)
class EventSet:
    """GPU index -> moment of registration, and the events that were delivered."""

    registered: dict[int, int] = field(default_factory=dict)
    taken: set[tuple[int, int, int]] = field(default_factory=set)


def _events(library: SimulatedLibrary, chosen: EventSet) -> Iterator[tuple[int, int, int]]:
    """Events after registration that were not delivered yet: (moment, GPU, XID)."""
    for fault in library.node.scenario.faults:
        since = chosen.registered.get(fault.device)
        xid = {"xid": fault.xid, "gpu_lost": _FELL_OFF}.get(fault.kind)
        event = (library.node.at(fault.from_s), fault.device, xid or 0)
        if xid and since is not None and event[0] >= since and event not in chosen.taken:
            yield event


def _create(library: SimulatedLibrary, out: Any) -> None:
    where = library.new_object()
    library.event_sets[where] = EventSet()
    put_address(out, where)


def _find(library: SimulatedLibrary, where: Any) -> EventSet:
    chosen = library.event_sets.get(address(where))
    if not isinstance(chosen, EventSet):
        raise ReturnCode(nv.NVML_ERROR_INVALID_ARGUMENT)
    return chosen


def _register(call: NvmlCall, types: Any, where: Any) -> None:
    chosen = _find(call.library, where)
    needs(not number(types) & ~_SUPPORTED)
    if number(types):
        chosen.registered.setdefault(call.unit.index, call.now_ns)


def _wait(library: SimulatedLibrary, where: Any, out: Any, timeout_ms: Any) -> None:
    chosen, clock = _find(library, where), library.node.clock
    now = clock.now_ns()
    deadline = now + number(timeout_ms) * 1_000_000
    while True:
        event = min(_events(library, chosen), default=None)
        if event is not None and event[0] <= now:
            break
        if now >= deadline:
            raise ReturnCode(nv.NVML_ERROR_TIMEOUT)
        until = deadline if event is None else min(deadline, event[0])
        clock.wait(threading.Event(), (until - now) / NS_PER_S)
        # With a clock that does not advance, this would wait for ever.
        now = clock.now_ns() if clock.now_ns() > now else deadline
    chosen.taken.add(event)
    data = out._obj
    # The handle is the struct's first field.
    ctypes.c_void_p.from_buffer(data).value = library.address_of(library.node.scenario.gpus[event[1]])
    data.eventType, data.eventData = _SUPPORTED, event[2]
    data.gpuInstanceId = data.computeInstanceId = _NO_INSTANCE


def _free(library: SimulatedLibrary, where: Any) -> None:
    _find(library, where)
    del library.event_sets[address(where)]


GPU_TABLE: Final[dict[str, Callable[..., None]]] = {
    "nvmlDeviceRegisterEvents": _register,
    "nvmlDeviceGetSupportedEventTypes": lambda _, out: put(out, _SUPPORTED),
}
TABLE: Final[dict[str, Callable[..., None]]] = {
    "nvmlEventSetCreate": _create,
    "nvmlEventSetWait_v2": _wait,
    "nvmlEventSetFree": _free,
}
