"""PyTorch's devices as machines: the processor, CUDA's and Intel's GPUs timed by events, Apple's by waiting.

Creating a machine imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Final, TypeVar

from gpu_profile.errors import UsageError
from gpu_profile.roofline.machines.host_machine import Host, allocated, flush_bytes
from gpu_profile.roofline.machines.machine import Memory, Timing
from gpu_profile.roofline.machines.nvml_facts import driver_uuid, nvml_facts
from gpu_profile.roofline.machines.processor import processor

T = TypeVar("T")

#: Name in a machine's key -> PyTorch's property of the device. Not every device has all of them.
_FACTS: Final = (
    ("driver", "driver_version"),
    ("multiprocessors", "multi_processor_count"),
    ("capability", "gcnArchName"),
    ("uuid", "uuid"),
)


def load_torch(asked: str) -> Any:
    """The module `torch`. Raises UsageError if it cannot be imported. `asked`: the option or feature that needs it."""
    try:
        import torch
    except ImportError as missing:
        raise UsageError(f"{asked} needs PyTorch: pip install 'gpu-profile[roofline]' ({missing})") from missing
    return torch


class TorchCpu(Host):
    """The processor through PyTorch. An operation is done when its call returns, so the host's clock times it."""

    kind = "cpu"
    device = "cpu"

    def __init__(self) -> None:
        super().__init__()
        self._torch: Final = load_torch("device='cpu'")
        self._overwrite: Final = _Overwrite(self._torch, "cpu", self.cache_bytes)

    @property
    def key(self) -> Mapping[str, str]:
        """The processor, its cores and instructions, and PyTorch's version and its present number of threads."""
        return {
            "processor": self.processor.name,
            "cores": f"{self.processor.cores:g}",
            "instructions": str(self._torch.backends.cpu.get_cpu_capability()),
            "threads": str(self._torch.get_num_threads()),
            "torch": str(self._torch.__version__),
        }

    def flush(self) -> None:
        """Overwrite the caches of the cores of PyTorch's threads. Raises UsageError if there is no memory for it."""
        self._overwrite()


class TorchAccelerator:
    """A GPU that PyTorch drives with streams and events: `cuda` (ROCm too) or `xpu`.

    `run` and `flush` make it the current device for their duration, and create no context on another device. They raise
    UsageError, before they do anything, if the current stream is being captured into a graph. Work on other streams
    than the current one is not timed.
    """

    def __init__(self, kind: str = "cuda", ordinal: int | None = None) -> None:
        self.kind: Final = kind
        self._torch: Final = load_torch(f"device='{kind}'")
        self._module: Final = getattr(self._torch, kind)
        self.ordinal: Final = int(self._module.current_device()) if ordinal is None else ordinal
        #: The name of this device for `devices.machine`.
        self.device: Final = f"{kind}:{self.ordinal}"
        self._properties: Final = self._module.get_device_properties(self.ordinal)
        #: NVML and regions support only NVIDIA's devices.
        self._nvidia: Final = kind == "cuda" and not getattr(self._torch.version, "hip", None)
        self.uuid: Final = _nvidia_uuid(self.ordinal, self._properties) if self._nvidia else None
        self._overwrite: Final = _Overwrite(self._torch, self.device, self.cache_bytes)
        #: Unused pairs of events. Each was recorded once, because PyTorch creates an event when it is first recorded.
        self._pairs: Final[list[tuple[Any, Any]]] = []

    @property
    def name(self) -> str:
        """The driver's name of the device."""
        return str(self._properties.name)

    @property
    def region_device(self) -> int | str | None:
        """The UUID, or the ordinal if the UUID is unknown. None if the device is not NVIDIA's."""
        return (self.uuid or self.ordinal) if self._nvidia else None

    @property
    def key(self) -> Mapping[str, str]:
        """The device's identity, the versions of the software, and its present clocks and power limit from NVML.

        Unknown values are absent.
        """
        properties = self._properties
        key = {"device": self.name, "torch": str(self._torch.__version__), **_versions(self._torch)}
        key["uuid"] = self.uuid or ""
        key["capability"] = f"{properties.major}.{properties.minor}" if self._nvidia else ""
        for name, attribute in _FACTS:
            key[name] = key.get(name) or str(getattr(properties, attribute, ""))
        if self.uuid:
            key |= nvml_facts(self.uuid)
        return {name: value for name, value in key.items() if value}

    @property
    def cache_bytes(self) -> int | None:
        """Bytes of the L2 cache of a CUDA device, or of the last-level cache of an Intel one if PyTorch reports it."""
        names = ("L2_cache_size", "last_level_cache_size")
        return next((int(size) for name in names if (size := getattr(self._properties, name, 0))), None)

    def run(self, call: Callable[[], T]) -> tuple[T, Timing]:
        """Call once and wait for the event behind it. Returns the result and the timing; exceptions propagate.

        `device_s` is the time between two events on the current stream, before and after the call. It contains the time
        in which the device waits for the host, and excludes work that was queued before the call.
        """
        with self._module.device(self.ordinal):
            self._check_capture()
            stream = self._module.current_stream(self.ordinal)
            start, end = pair = self._pair(stream)
            try:
                start.record(stream)
                before = perf_counter()
                result = call()
                host_s = perf_counter() - before
                end.record(stream)
                end.synchronize()
                return result, Timing(start.elapsed_time(end) * 1e-3, host_s)
            finally:
                self._pairs.append(pair)

    def _pair(self, stream: Any) -> tuple[Any, Any]:
        try:
            return self._pairs.pop()
        except IndexError:
            pair = self._module.Event(enable_timing=True), self._module.Event(enable_timing=True)
            for event in pair:
                event.record(stream)
            return pair

    def _check_capture(self) -> None:
        capturing = getattr(self._module, "is_current_stream_capturing", None)
        if capturing is not None and capturing():
            raise UsageError(
                f"{self.device}: the current stream is being captured into a graph, where nothing runs that could be "
                f"timed; profile before the capture, or the graph's replay"
            )

    def flush(self) -> None:
        """Overwrite the cache on the current stream, and wait for it. UsageError: there is no memory for a buffer."""
        with self._module.device(self.ordinal):
            self._check_capture()
            self._overwrite()
            self._module.current_stream(self.ordinal).synchronize()

    def memory(self) -> Memory | None:
        """Bytes of PyTorch's allocator and of the device. A MIG instance has its own."""
        try:
            free, total = self._module.mem_get_info(self.ordinal)
            return Memory(
                int(self._module.memory_allocated(self.ordinal)),
                int(self._module.memory_reserved(self.ordinal)),
                int(self._module.max_memory_allocated(self.ordinal)),
                int(free),
                int(total),
            )
        except (AttributeError, RuntimeError):  # older PyTorch, or an Intel device that does not report it
            return None


class TorchMps:
    """An Apple GPU, timed by the host's clock from one wait for the device to the next."""

    kind = "mps"
    device = "mps"
    uuid: str | None = None
    region_device: int | str | None = None
    cache_bytes: int | None = None

    def __init__(self) -> None:
        self._chip: Final = processor().name
        self._torch: Final = load_torch("device='mps'")
        self._overwrite: Final = _Overwrite(self._torch, "mps", None)

    @property
    def name(self) -> str:
        """The chip's name."""
        return f"{self._chip} GPU"

    @property
    def key(self) -> Mapping[str, str]:
        """The chip and PyTorch's version."""
        return {"device": self.name, "torch": str(self._torch.__version__)}

    def run(self, call: Callable[[], T]) -> tuple[T, Timing]:
        """Wait for the device, call once, and wait again. `device_s` contains the cost of the second wait."""
        self._torch.mps.synchronize()
        before = perf_counter()
        result = call()
        host_s = perf_counter() - before
        self._torch.mps.synchronize()
        return result, Timing(perf_counter() - before, host_s)

    def flush(self) -> None:
        """Overwrite the caches, and wait until that is done."""
        self._overwrite()
        self._torch.mps.synchronize()

    def memory(self) -> None:
        """None: the memory is the host's, and PyTorch records no peak of its part."""


class _Overwrite:
    """Reads and writes a buffer that is larger than any cache. The first call allocates it; the machine owns it."""

    def __init__(self, torch: Any, device: str, cache_bytes: int | None) -> None:
        self._torch, self._device, self._size = torch, device, flush_bytes(cache_bytes)
        self._buffer: Any = None

    def __call__(self) -> None:
        # A tensor that is created in inference mode could not be written outside of that mode later.
        with self._torch.inference_mode(mode=False), self._torch.no_grad():
            if self._buffer is None:
                self._buffer = allocated(self._zeros, self._size, self._device)
            # Not zero_(): it runs in one thread and writes past the caches.
            self._buffer.add_(1)

    def _zeros(self, size: int) -> Any:
        return self._torch.zeros(size, dtype=self._torch.uint8, device=self._device)


def _versions(torch: Any) -> dict[str, str]:
    """The versions of CUDA, HIP or XPU that PyTorch was built with."""
    return {name: str(version) for name in ("cuda", "hip", "xpu") if (version := getattr(torch.version, name, None))}


def _nvidia_uuid(ordinal: int, properties: Any) -> str | None:
    """The CUDA driver's UUID, else PyTorch's, which is that of the GPU and has no prefix."""
    number = str(getattr(properties, "uuid", "")).removeprefix("GPU-")
    return driver_uuid(ordinal) or (f"GPU-{number}" if number else None)
