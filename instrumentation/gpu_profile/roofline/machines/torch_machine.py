"""PyTorch's devices as machines: the processor, CUDA's and Intel's GPUs by their events, Apple's by waiting.

PyTorch is imported when a machine is made.
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

#: Name in a machine's key -> PyTorch's property of the device, where it has it.
_FACTS: Final = (
    ("driver", "driver_version"),
    ("multiprocessors", "multi_processor_count"),
    ("capability", "gcnArchName"),
    ("uuid", "uuid"),
)


def load_torch(asked: str) -> Any:
    """The module. UsageError if it cannot be imported; `asked` is what needs it."""
    try:
        import torch
    except ImportError as missing:
        raise UsageError(f"{asked} needs PyTorch: pip install 'gpu-profile[roofline]' ({missing})") from missing
    return torch


class TorchCpu(Host):
    """The processor through PyTorch. What returned has run, so the host's clock times it."""

    kind = "cpu"
    device = "cpu"

    def __init__(self) -> None:
        super().__init__()
        self._torch: Final = load_torch("device='cpu'")
        self._overwrite: Final = _Overwrite(self._torch, "cpu", self.cache_bytes)

    @property
    def key(self) -> Mapping[str, str]:
        """The processor, its cores and instructions, and PyTorch's version and number of threads now."""
        return {
            "processor": self.processor.name,
            "cores": f"{self.processor.cores:g}",
            "instructions": str(self._torch.backends.cpu.get_cpu_capability()),
            "threads": str(self._torch.get_num_threads()),
            "torch": str(self._torch.__version__),
        }

    def flush(self) -> None:
        """Overwrite the caches of the cores that PyTorch's threads run on. UsageError if there is no memory for it."""
        self._overwrite()


class TorchAccelerator:
    """A GPU that PyTorch drives by streams and events: `cuda` (ROCm's too) or `xpu`.

    `run` and `flush` make it the current device meanwhile, and raise UsageError, before they do anything, where the
    current stream is being captured into a graph. What a call leaves running on a stream other than the current one is
    not in its time. No context is made on any other device.
    """

    def __init__(self, kind: str = "cuda", ordinal: int | None = None) -> None:
        self.kind: Final = kind
        self._torch: Final = load_torch(f"device='{kind}'")
        self._module: Final = getattr(self._torch, kind)
        self.ordinal: Final = int(self._module.current_device()) if ordinal is None else ordinal
        #: What `machines.machine` takes for it.
        self.device: Final = f"{kind}:{self.ordinal}"
        self._properties: Final = self._module.get_device_properties(self.ordinal)
        #: NVML and regions know NVIDIA's devices alone.
        self._nvidia: Final = kind == "cuda" and not getattr(self._torch.version, "hip", None)
        self.uuid: Final = _nvidia_uuid(self.ordinal, self._properties) if self._nvidia else None
        self._overwrite: Final = _Overwrite(self._torch, self.device, self.cache_bytes)
        #: Pairs of events that are not in use, each recorded once, as it is only made then.
        self._pairs: Final[list[tuple[Any, Any]]] = []

    @property
    def name(self) -> str:
        """As the driver has it."""
        return str(self._properties.name)

    @property
    def region_device(self) -> int | str | None:
        """The UUID, or the ordinal if that is not known; None for what is not NVIDIA's."""
        return (self.uuid or self.ordinal) if self._nvidia else None

    @property
    def key(self) -> Mapping[str, str]:
        """The device's identity, the versions above it, and, through NVML, its clocks and power limit now.

        What is not known is left out.
        """
        properties = self._properties
        found = {"device": self.name, "torch": str(self._torch.__version__), **_versions(self._torch)}
        found["uuid"] = self.uuid or ""
        found["capability"] = f"{properties.major}.{properties.minor}" if self._nvidia else ""
        for name, attribute in _FACTS:
            found[name] = found.get(name) or str(getattr(properties, attribute, ""))
        if self.uuid:
            found |= nvml_facts(self.uuid)
        return {name: value for name, value in found.items() if value}

    @property
    def cache_bytes(self) -> int | None:
        """The L2 cache of a CUDA device, the last-level cache of an Intel one where PyTorch tells it."""
        names = ("L2_cache_size", "last_level_cache_size")
        return next((int(size) for name in names if (size := getattr(self._properties, name, 0))), None)

    def run(self, call: Callable[[], T]) -> tuple[T, Timing]:
        """Call once, wait for the event behind it, and say how long it took; its exceptions pass through.

        `device_s` is from one event to the other on the stream that is current before the call: if the device has to
        wait for the host in between, that is in it. What was queued before the call is not.
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
        """Overwrite the cache, on the current stream, and wait for it. UsageError if there is no memory for it."""
        with self._module.device(self.ordinal):
            self._check_capture()
            self._overwrite()
            self._module.current_stream(self.ordinal).synchronize()

    def memory(self) -> Memory | None:
        """PyTorch's allocator's and the device's bytes; a MIG instance's are its own."""
        try:
            free, total = self._module.mem_get_info(self.ordinal)
            return Memory(
                int(self._module.memory_allocated(self.ordinal)),
                int(self._module.memory_reserved(self.ordinal)),
                int(self._module.max_memory_allocated(self.ordinal)),
                int(free),
                int(total),
            )
        except (AttributeError, RuntimeError):  # older PyTorch, or a device of Intel's that does not tell
            return None


class TorchMps:
    """An Apple GPU. It is timed by the host's clock from one wait for the device to the next."""

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
        """The chip's."""
        return f"{self._chip} GPU"

    @property
    def key(self) -> Mapping[str, str]:
        """The chip and PyTorch's version."""
        return {"device": self.name, "torch": str(self._torch.__version__)}

    def run(self, call: Callable[[], T]) -> tuple[T, Timing]:
        """Wait for the device, call once, and wait again; both waits' cost is in `device_s`."""
        self._torch.mps.synchronize()
        before = perf_counter()
        result = call()
        host_s = perf_counter() - before
        self._torch.mps.synchronize()
        return result, Timing(perf_counter() - before, host_s)

    def flush(self) -> None:
        """Overwrite the caches, and wait for it."""
        self._overwrite()
        self._torch.mps.synchronize()

    def memory(self) -> None:
        """None: its memory is the host's, and PyTorch keeps no peak of its own part."""


class _Overwrite:
    """Reads and writes a buffer that no cache holds; made at the first call, freed with its machine."""

    def __init__(self, torch: Any, device: str, cache_bytes: int | None) -> None:
        self._torch, self._device, self._size = torch, device, flush_bytes(cache_bytes)
        self._buffer: Any = None

    def __call__(self) -> None:
        # A tensor that is made in inference mode could not be written outside of it later.
        with self._torch.inference_mode(mode=False), self._torch.no_grad():
            if self._buffer is None:
                self._buffer = allocated(self._zeros, self._size, self._device)
            # Not zero_(), which one thread does, past the caches.
            self._buffer.add_(1)

    def _zeros(self, size: int) -> Any:
        return self._torch.zeros(size, dtype=self._torch.uint8, device=self._device)


def _versions(torch: Any) -> dict[str, str]:
    """Of what PyTorch was built against, where it was."""
    return {name: str(found) for name in ("cuda", "hip", "xpu") if (found := getattr(torch.version, name, None))}


def _nvidia_uuid(ordinal: int, properties: Any) -> str | None:
    """As the CUDA driver has it, else as PyTorch does, which gives the GPU's number without a prefix."""
    number = str(getattr(properties, "uuid", "")).removeprefix("GPU-")
    return driver_uuid(ordinal) or (f"GPU-{number}" if number else None)
