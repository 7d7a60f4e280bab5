"""CuPy's devices as machines. Creating a machine imports CuPy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Final, TypeVar

from gpu_profile.errors import UsageError
from gpu_profile.roofline.machines.host_machine import allocated, flush_bytes
from gpu_profile.roofline.machines.machine import Memory, Timing
from gpu_profile.roofline.machines.nvml_facts import driver_uuid, nvml_facts

T = TypeVar("T")


def load_cupy(asked: str) -> Any:
    """The module `cupy`. Raises UsageError if it cannot be imported. `asked`: the option or feature that needs it."""
    try:
        return importlib.import_module("cupy")
    except ImportError as missing:
        raise UsageError(f"{asked} needs CuPy: pip install cupy-cuda12x, or your CUDA's ({missing})") from missing


class CupyDevice:
    """A GPU through CuPy, timed by its events. It follows the rules of `TorchAccelerator`, except for one.

    CuPy restores the previously current device, and from CUDA 12 on this creates a context on that device.
    """

    kind = "cupy"

    def __init__(self, ordinal: int | None = None) -> None:
        self._cupy: Final = load_cupy("device='cupy'")
        self._cuda: Final = self._cupy.cuda
        self.ordinal: Final = int(self._cuda.runtime.getDevice()) if ordinal is None else ordinal
        #: The name of this device for `devices.machine`.
        self.device: Final = f"cupy:{self.ordinal}"
        self._properties: Final[Mapping[str, Any]] = self._cuda.runtime.getDeviceProperties(self.ordinal)
        self._amd: Final = bool(getattr(self._cuda.runtime, "is_hip", False))
        self.uuid: Final = None if self._amd else driver_uuid(self.ordinal)
        self._buffer: Any = None
        #: Unused pairs of events.
        self._pairs: Final[list[tuple[Any, Any]]] = []

    @property
    def name(self) -> str:
        """The driver's name of the device."""
        name = self._properties["name"]
        return name.decode(errors="replace") if isinstance(name, bytes) else str(name)

    @property
    def region_device(self) -> int | str | None:
        """The UUID, or the ordinal if the UUID is unknown. None for AMD's devices."""
        return None if self._amd else self.uuid or self.ordinal

    @property
    def key(self) -> Mapping[str, str]:
        """The device's identity, the versions of the software, and its present clocks and power limit from NVML."""
        properties = self._properties
        key = {
            "device": self.name,
            "cupy": str(self._cupy.__version__),
            "cuda": str(self._cuda.runtime.runtimeGetVersion()),
            "capability": f"{properties['major']}.{properties['minor']}" if "major" in properties else "",
            "multiprocessors": str(properties.get("multiProcessorCount", "")),
            "uuid": self.uuid or "",
        }
        if self.uuid:
            key |= nvml_facts(self.uuid)
        return {name: value for name, value in key.items() if value}

    @property
    def cache_bytes(self) -> int | None:
        """Bytes of the L2 cache. None if unknown."""
        return int(self._properties.get("l2CacheSize", 0)) or None

    def run(self, call: Callable[[], T]) -> tuple[T, Timing]:
        """Call once and wait for the event behind it. Returns the result and the timing; exceptions propagate."""
        with self._cuda.Device(self.ordinal):
            stream = self._stream()
            start, end = pair = self._pair()
            try:
                start.record(stream)
                before = perf_counter()
                result = call()
                host_s = perf_counter() - before
                end.record(stream)
                end.synchronize()
                return result, Timing(self._cuda.get_elapsed_time(start, end) * 1e-3, host_s)
            finally:
                self._pairs.append(pair)

    def _pair(self) -> tuple[Any, Any]:
        try:
            return self._pairs.pop()
        except IndexError:
            return self._cuda.Event(), self._cuda.Event()

    def _stream(self) -> Any:
        """The current stream. Raises UsageError if it is being captured into a graph."""
        stream = self._cuda.get_current_stream()
        capturing = getattr(stream, "is_capturing", None)
        if capturing is not None and capturing():
            raise UsageError(
                f"{self.device}: the current stream is being captured into a graph, where nothing runs that could be "
                f"timed; profile before the capture, or the graph's launch"
            )
        return stream

    def flush(self) -> None:
        """Overwrite the cache on the current stream, and wait for it. UsageError: there is no memory for a buffer."""
        with self._cuda.Device(self.ordinal):
            stream = self._stream()
            if self._buffer is None:
                self._buffer = allocated(self._zeros, flush_bytes(self.cache_bytes), self.device)
            self._buffer += 1
            stream.synchronize()

    def _zeros(self, size: int) -> Any:
        return self._cupy.zeros(size, dtype="uint8")

    def memory(self) -> Memory | None:
        """Bytes of CuPy's default pool and of the device. None if another allocator has replaced the pool.

        The pool records no peak, so `peak` is its total size. That is at least the true peak, until the pool frees
        blocks.
        """
        pool = self._cupy.get_default_memory_pool()
        if self._cuda.get_allocator() != pool.malloc:
            return None
        with self._cuda.Device(self.ordinal):
            free, total = self._cuda.runtime.memGetInfo()
            held = int(pool.total_bytes())
            return Memory(int(pool.used_bytes()), held, held, int(free), int(total))
