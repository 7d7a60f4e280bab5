"""Device intervals, synchronisation and the current device, from the frameworks that the program has loaded.

PyTorch, CuPy, Numba and JAX are looked up in `sys.modules`, never imported, and no CUDA context is ever created. A
program may begin to use the GPU late: call again until there is an answer. A call costs a few dictionary look-ups.

Read in this order:

- this module: a thread's current stream, a wait for the GPU, and the current device.
- `libraries`: the adapters, one class for each framework.
- `torch_profiler`: regions as ranges in the traces of PyTorch's profiler.
- `events`: a stream with CUDA events as marks. `libcuda`: the functions of the CUDA driver that it needs.

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

#: The pause after a failure to make a stream on a device.
RETRY_S: Final = 1.0


class _CurrentStream:
    """Returns the calling thread's current stream. One for each framework and clock, because its events are shared."""

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


_current_streams: dict[tuple[str, int], _CurrentStream] = {}


def find_stream(*, clock: Clock = SYSTEM_CLOCK) -> Callable[[], Stream | None] | None:
    """A function that returns the calling thread's current stream; None until PyTorch, CuPy or Numba uses a GPU.

    With several frameworks in use, the stream is the first one's, in this order. The function takes about 1 µs. It
    returns None if the thread's current device has no context, or its context is lost. It also returns None during the
    capture of a CUDA graph before the first mark. JAX exposes neither events nor streams, so it has no function.
    Thread-safe.
    """
    for library in LIBRARIES:
        if library.name != "jax" and _alive(library) and libcuda.loaded() is not None:
            key = library.name, id(clock)
            if key not in _current_streams:
                _current_streams[key] = _CurrentStream(library, clock)
            return _current_streams[key]
    return None


def find_sync() -> Callable[[], None] | None:
    """A function that waits in the calling thread for the work that all frameworks in use have queued on its device.

    None if no framework has a context, so call this before each wait. The wait does nothing during the capture of a
    CUDA graph, which it would invalidate. Errors of the framework reach the caller: often an earlier kernel's failure.
    """
    alive = [library for library in LIBRARIES if _alive(library)]
    if not alive:
        return None

    def wait() -> None:
        for library in alive:
            library.wait()

    return wait


def current_device() -> int | None:
    """The CUDA ordinal of the calling thread's current device, by the first framework in use that reports one."""
    for library in LIBRARIES:
        if _alive(library):
            try:
                ordinal = library.ordinal()
            except Exception:  # noqa: BLE001, S112 - the next framework may report it
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
    """In a forked child: drop all streams. Its parent's events must not be used."""
    for stream in _current_streams.values():
        stream._forget()
