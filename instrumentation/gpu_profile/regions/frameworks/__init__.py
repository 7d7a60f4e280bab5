"""Device intervals, waiting and the current device, by the frameworks that the program has loaded by itself.

PyTorch, CuPy, Numba and JAX are looked up in `sys.modules`, never imported, and no CUDA context is ever created. A
program may begin to use the GPU late: ask again until there is an answer, which costs a few look-ups in dictionaries.

Read in this order:

- this module: the current stream of a thread, and how to wait for it, as regions ask for them.
- `libraries`: what each framework says of itself, one class for each.
- `torch_profiler`: regions as ranges in the traces of PyTorch's profiler.
- `events`: a stream whose moments are CUDA events. `libcuda`: the functions of the CUDA driver that this takes.

Imports the streams' interface, and no session. A new framework is a class in `libraries` and a row of its `LIBRARIES`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.regions.frameworks import libcuda
from gpu_profile.regions.frameworks.events import EventStream
from gpu_profile.regions.frameworks.libraries import LIBRARIES, Framework
from gpu_profile.regions.streams import Stream
from gpu_profile.units import NS_PER_S

__all__ = ["current_device", "find_stream", "find_sync"]

_log = logging.getLogger("gpu_profile")

#: A device on which no stream could be made is not tried again within this time.
RETRY_S: Final = 1.0


class _CurrentStream:
    """Gives the calling thread's current stream. Made once for each framework, as its events are shared."""

    def __init__(self, library: Framework, clock: Clock) -> None:
        self._library = library
        self._clock = clock
        self._forget()

    def _forget(self) -> None:
        self._streams: dict[int, EventStream] = {}
        self._failed_ns: dict[int, int] = {}
        self._lock = threading.Lock()

    def __call__(self) -> Stream | None:
        try:
            ordinal = self._library.ordinal()
            if ordinal is None:
                return None
            stream = self._streams.get(ordinal) or self._make(ordinal)
        except Exception as error:  # noqa: BLE001 - a framework's failure must not fail the user's region
            _log.debug("gpu-profile: no stream of %s: %r", self._library.name, error)
            return None
        return None if stream is None or stream.lost else stream

    def _make(self, ordinal: int) -> EventStream | None:
        driver, now = libcuda.loaded(), self._clock.now_ns()
        if driver is None or now - self._failed_ns.get(ordinal, 0) < RETRY_S * NS_PER_S:
            return None
        with self._lock:
            if ordinal in self._streams:
                return self._streams[ordinal]
            handle = self._library.stream_of(ordinal)
            if handle is None or not driver.active(ordinal) or driver.capturing(handle):
                return None
            try:
                made = EventStream(driver, ordinal, self._library.stream_of, self._clock)
            except libcuda.CudaError as error:
                self._failed_ns[ordinal] = now
                _log.debug("gpu-profile: no device intervals on CUDA device %d: %s", ordinal, error)
                return None
            self._streams[ordinal] = made
            return made


_known: dict[tuple[str, int], _CurrentStream] = {}


def find_stream(*, clock: Clock = SYSTEM_CLOCK) -> Callable[[], Stream | None] | None:
    """A function that gives the calling thread's current stream, once PyTorch, CuPy or Numba uses a GPU; else None.

    The function gives None in a thread whose current device has no context, while a CUDA graph is being captured before
    the first mark, and once the device's context is lost. It costs about 1 µs. With several frameworks alive it asks
    the first of those named. JAX has neither events nor streams for others, so none is found for it. To be asked from
    any thread.
    """
    for library in LIBRARIES:
        if library.name != "jax" and _alive(library) and libcuda.loaded() is not None:
            key = library.name, id(clock)
            if key not in _known:
                _known[key] = _CurrentStream(library, clock)
            return _known[key]
    return None


def find_sync() -> Callable[[], None] | None:
    """A function that waits, in the calling thread, for what every framework in use has queued on its current device.

    None where no framework has a context, so ask anew before each wait. The wait does nothing in the midst of a graph's
    capture, which it would spoil. What the framework raises reaches the caller: often an earlier kernel's failure.
    """
    alive = [library for library in LIBRARIES if _alive(library)]
    if not alive:
        return None

    def wait() -> None:
        for library in alive:
            library.wait()

    return wait


def current_device() -> int | None:
    """The CUDA ordinal that a framework in use says is the calling thread's current device; None if none says so."""
    for library in LIBRARIES:
        if _alive(library):
            try:
                ordinal = library.ordinal()
            except Exception:  # noqa: BLE001, S112 - the next may know
                continue
            if ordinal is not None:
                return ordinal
    return None


def _alive(library: Framework) -> bool:
    try:
        return library.alive()
    except Exception:  # noqa: BLE001 - half imported, or failing: not alive
        return False


def forget() -> None:
    """In a forked child, which must not touch its parent's events: know no streams."""
    for stream in _known.values():
        stream._forget()
