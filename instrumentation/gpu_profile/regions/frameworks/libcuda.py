"""The functions of the CUDA driver library for events and contexts, once a framework has loaded it.

Nothing here loads libcuda, initialises it or creates a context. Calls that may wait for the device, or for another
thread's launch, release the GIL. The calls of `_SHORT` keep it: another thread that computes would not return it for up
to 5 ms.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from gpu_profile.units import NS_PER_S

_LIBRARY: Final = "libcuda.so.1"
_NOT_READY: Final = 600
#: The calling thread has another context, or none: see `Cuda.record`.
_WRONG_CONTEXT: Final = frozenset({201, 400})
#: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and similar: the stream is in a capture, or the call would invalidate one.
_OF_CAPTURES: Final = frozenset(range(900, 909))
_RELAXED: Final = 2
_NON_BLOCKING: Final = 1

Handle = ctypes.c_void_p
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "cuDeviceGetCount": (ctypes.POINTER(ctypes.c_int),),
    "cuDeviceGetUuid": (ctypes.c_char_p, ctypes.c_int),
    "cuDeviceGetUuid_v2": (ctypes.c_char_p, ctypes.c_int),
    "cuDevicePrimaryCtxGetState": (ctypes.c_int, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_int)),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(Handle), ctypes.c_int),
    "cuCtxGetCurrent": (ctypes.POINTER(Handle),),
    "cuCtxGetDevice": (ctypes.POINTER(ctypes.c_int),),
    "cuCtxPushCurrent_v2": (Handle,),
    "cuCtxPopCurrent_v2": (ctypes.POINTER(Handle),),
    "cuThreadExchangeStreamCaptureMode": (ctypes.POINTER(ctypes.c_int),),
    "cuStreamCreate": (ctypes.POINTER(Handle), ctypes.c_uint),
    "cuStreamIsCapturing": (Handle, ctypes.POINTER(ctypes.c_int)),
    "cuEventCreate": (ctypes.POINTER(Handle), ctypes.c_uint),
    "cuEventRecord": (Handle, Handle),
    "cuEventQuery": (Handle,),
    "cuEventElapsedTime": (ctypes.POINTER(ctypes.c_float), Handle, Handle),
}
#: Calls that affect the calling thread alone. PyTorch makes the last one with the GIL held, too.
_SHORT: Final = (
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamIsCapturing",
)


class CudaError(Exception):
    """A call of the CUDA driver failed; `code` is its CUresult."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.code = code


class Cuda:
    """Methods for `library`, libcuda. Ordinals follow CUDA_VISIBLE_DEVICES. Methods raise CudaError if a call fails."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        self._library = library
        self._record, self._elapsed = library.cuEventRecord, library.cuEventElapsedTime
        # The same library with separate function objects, which keep the GIL.
        short: Any = ctypes.PyDLL(None, handle=library._handle) if isinstance(library, ctypes.CDLL) else library
        for name in _SHORT:
            function = getattr(short, name)
            function.argtypes, function.restype = _SIGNATURES[name], ctypes.c_int
        self._push, self._pop = short.cuCtxPushCurrent_v2, short.cuCtxPopCurrent_v2
        self._exchange, self._is_capturing = short.cuThreadExchangeStreamCaptureMode, short.cuStreamIsCapturing

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise self._error(name, code)

    def _error(self, call: str, code: int) -> CudaError:
        name = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(name))
        return CudaError(call, code, (name.value or b"unknown error").decode())

    # ------------------------------------------------------------------ devices and contexts

    def _device(self, ordinal: int) -> int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        return device.value

    def count(self) -> int:
        """The number of devices visible to this process."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def active(self, ordinal: int) -> bool:
        """Whether the device's primary context exists; never creates it. False while CUDA is not initialised."""
        flags, active = ctypes.c_uint(), ctypes.c_int()
        try:
            device = self._device(ordinal)
            self._call("cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(active))
        except CudaError:  # not initialised: as in the child of a process that has used CUDA
            return False
        return bool(active.value)

    def any_active(self) -> bool:
        """Whether any device's primary context exists."""
        try:
            return any(self.active(ordinal) for ordinal in range(self.count()))
        except CudaError:
            return False

    def current(self) -> int | None:
        """The device of the calling thread's context; None if it has none."""
        context, device = Handle(), ctypes.c_int()
        if self._library.cuCtxGetCurrent(ctypes.byref(context)) or not context.value:
            return None
        return None if self._library.cuCtxGetDevice(ctypes.byref(device)) else device.value

    def uuid(self, ordinal: int) -> str:
        """The UUID in NVML's format: `GPU-…`, or `MIG-…` if the device is a MIG instance."""
        device, whole, own = self._device(ordinal), ctypes.create_string_buffer(16), ctypes.create_string_buffer(16)
        self._call("cuDeviceGetUuid", whole, device)
        self._call("cuDeviceGetUuid_v2", own, device)
        # The first is always the GPU's, the second the instance's where there is one.
        return f"{'GPU' if own.raw == whole.raw else 'MIG'}-{UUID(bytes=own.raw)}"

    def context(self, ordinal: int) -> int:
        """The primary context, which must be active. Keeps it alive until the process ends."""
        context = Handle()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(ordinal))
        return context.value or 0

    def inside(self, context: int) -> Inside:
        """A block of calls in this context that do not disturb the capture of a CUDA graph in another thread.

        An event query in any thread invalidates a capture in CUDA's default mode, unless the querying thread has set
        its own mode to relaxed. See https://github.com/pytorch/pytorch/pull/104555.
        """
        return Inside(self, context)

    def enter(self, context: int) -> ctypes.c_int:
        """Enter the block of `inside`; returns the argument for `leave`."""
        mode = ctypes.c_int(_RELAXED)
        if code := self._push(context):
            raise self._error("cuCtxPushCurrent_v2", code)
        if code := self._exchange(ctypes.byref(mode)):
            self._pop(ctypes.byref(Handle()))
            raise self._error("cuThreadExchangeStreamCaptureMode", code)
        return mode

    def leave(self, mode: ctypes.c_int) -> None:
        """Leave the block of `inside`."""
        self._exchange(ctypes.byref(mode))
        self._pop(ctypes.byref(Handle()))

    # ------------------------------------------------------------------ streams and events

    def stream(self) -> int:
        """A new stream in the current context. It does not synchronise with the default stream."""
        stream = Handle()
        self._call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        return stream.value or 0

    def capturing(self, stream: int, context: int = 0) -> bool:
        """Whether work on this stream is being captured into a graph, or a call on it would invalidate a capture.

        A thread outside the stream's context gets no answer: it asks again inside `context`, if given, else returns
        False. Also False in a context that an earlier kernel has broken: the next call raises its error.
        """
        status = ctypes.c_int()
        code = self._is_capturing(stream, ctypes.byref(status))
        if code in _WRONG_CONTEXT:
            if not context:
                return False
            with self.inside(context):
                code = self._is_capturing(stream, ctypes.byref(status))
        return code in _WRONG_CONTEXT | _OF_CAPTURES if code else bool(status.value)

    def event(self) -> int:
        """An event with timing in the current context."""
        event = Handle()
        self._call("cuEventCreate", ctypes.byref(event), 0)
        return event.value or 0

    def record(self, event: int, stream: int, context: int) -> None:
        """Record the event at the end of the work queued on the stream of this context."""
        code = self._record(event, stream)
        if code in _WRONG_CONTEXT:  # rare: checking before each call would add half of its cost
            if pushed := self._push(context):
                raise self._error("cuCtxPushCurrent_v2", pushed)
            code = self._record(event, stream)
            self._pop(ctypes.byref(Handle()))
        if code:
            raise self._error("cuEventRecord", code)

    def passed(self, event: int) -> bool:
        """Whether the device has passed the event."""
        code = self._library.cuEventQuery(event)
        if code and code != _NOT_READY:
            raise self._error("cuEventQuery", code)
        return not code

    def elapsed_ns(self, first: int, second: int) -> int | None:
        """The time between two events of one device, with a resolution of about 0.5 µs, coarser over hours.

        None until the device has passed both.
        """
        milliseconds = ctypes.c_float()
        code = self._elapsed(ctypes.byref(milliseconds), first, second)
        if code:
            if code == _NOT_READY:
                return None
            raise self._error("cuEventElapsedTime", code)
        return round(milliseconds.value * NS_PER_S / 1000)

    def elapsed_each(self, pairs: Iterable[tuple[int, int]]) -> list[int | None]:
        """`elapsed_ns` of many pairs of events, at a fraction of its cost."""
        milliseconds = ctypes.c_float()
        result: list[int | None] = []
        at, elapsed = ctypes.byref(milliseconds), self._elapsed
        for first, second in pairs:
            code = elapsed(at, first, second)
            if not code:
                result.append(round(milliseconds.value * 1_000_000))
            elif code == _NOT_READY:
                result.append(None)
            else:
                raise self._error("cuEventElapsedTime", code)
        return result


class Inside:
    """The `with` block of `Cuda.inside`. A class, because a generator would cost as much as the calls."""

    __slots__ = ("_context", "_cuda", "_mode")

    def __init__(self, cuda: Cuda, context: int) -> None:
        self._cuda, self._context = cuda, context

    def __enter__(self) -> None:
        self._mode = self._cuda.enter(self._context)

    def __exit__(self, *_: object) -> None:
        self._cuda.leave(self._mode)


_loaded: Cuda | None = None


def loaded() -> Cuda | None:
    """The driver library if this process has loaded it, else None."""
    global _loaded  # noqa: PLW0603 - a library is never unloaded
    if _loaded is None:
        try:
            _loaded = Cuda(ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW))
        except (OSError, AttributeError):  # not loaded, or older than CUDA 11.4
            return None
    return _loaded
