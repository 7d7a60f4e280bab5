"""XID errors, as the driver reports them through an event set."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any, Final

from gpu_profile.catalogue.samples import Event
from gpu_profile.clock import Clock
from gpu_profile.driver.nvml.library import NvmlLibrary
from gpu_profile.errors import DeviceLost
from gpu_profile.units import NS_PER_S

_NO_WAIT: Final = ctypes.c_uint(0)
#: The most events of one poll. The rest wait for the next, so that a storm does not delay the sampler.
_MOST: Final = 64
#: The first pause after a failed registration of a GPU. It doubles each time, up to `_LONGEST_PAUSE_NS`.
_PAUSE_NS: Final = NS_PER_S
_LONGEST_PAUSE_NS: Final = 300 * NS_PER_S


class XidEvents:
    """The event set of this process. NVML reports no events from before a device was registered."""

    def __init__(self, library: NvmlLibrary, clock: Clock) -> None:
        self._library = library
        self._clock = clock
        #: The event set, and the buffer of one event.
        self._set: Any = None
        self._data: Any = None
        self._watched: dict[int, str] = {}
        #: By UUID: the moment of the next registration, in elapsed time, and the pause after it.
        self._failed: dict[str, tuple[int, int]] = {}

    @property
    def watched(self) -> frozenset[str]:
        """UUIDs of the GPUs whose events are registered, or that support no XID events."""
        return frozenset(self._watched.values())

    def watch(self, uuid: str, handle: Any) -> None:
        """Register for the XID events of a GPU, if it supports them. After a failure, waits for the pause to pass."""
        address = _address(handle)
        due_ns, pause_ns = self._failed.get(uuid, (0, _PAUSE_NS))
        now_ns = self._clock.elapsed_ns()
        if self._watched.get(address) == uuid or now_ns < due_ns:
            return
        api, errors = self._library.api, self._library.errors
        self._failed[uuid] = now_ns + pause_ns, min(2 * pause_ns, _LONGEST_PAUSE_NS)
        try:
            if api.nvmlDeviceGetSupportedEventTypes(handle) & api.nvmlEventTypeXidCriticalError:
                if self._set is None:
                    self._set, self._data = api.nvmlEventSetCreate(), api.c_nvmlEventData_t()
                api.nvmlDeviceRegisterEvents(handle, api.nvmlEventTypeXidCriticalError, self._set)
        except errors.failures as failure:
            with suppress(DeviceLost):
                errors.judge(failure, "XID events", uuid)
            return
        self._watched[address] = uuid
        del self._failed[uuid]

    def poll(self) -> list[Event]:
        """Events since the last poll, without waiting. A timeout is the normal end."""
        api, wait = self._library.api, self._library.event_wait
        events: list[Event] = []
        if self._set is None or wait is None:
            return events
        data = self._data
        for _ in range(_MOST):
            code = wait(self._set, ctypes.byref(data), _NO_WAIT)
            if code == api.NVML_ERROR_TIMEOUT:
                break
            if code and events:
                break  # an exception would lose them; the next poll meets the error too
            if code:
                # The error does not name the lost device. Its own next read raises DeviceLost.
                with suppress(DeviceLost):
                    self._library.errors.judge(code, "nvmlEventSetWait_v2")
                break
            if data.eventType & api.nvmlEventTypeXidCriticalError:
                code = int(data.eventData)
                uuid = self._watched.get(_address(data.device), "")
                events.append(Event(uuid, self._clock.now_ns(), "xid", code, f"XID {code}"))
        return events

    def close(self) -> None:
        """Free the event set."""
        events, self._set = self._set, None
        self._watched.clear()
        self._failed.clear()
        if events is not None:
            self._library.errors.release(self._library.api.nvmlEventSetFree, events)


def _address(handle: Any) -> int:
    """An opaque handle as a number, which the driver keeps the same for a device."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
