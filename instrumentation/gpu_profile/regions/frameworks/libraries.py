"""Adapters of the frameworks: whether one uses a GPU, its current device, its current stream, and its wait.

They use only modules that the program has imported, and create no CUDA context. Thread-safe.
"""

from __future__ import annotations

import sys
from typing import Any, Final, Protocol

from gpu_profile.regions.frameworks import libcuda

#: The handle of CUDA's per-thread default stream; 0 is the default stream that all threads share.
_PER_THREAD: Final = 2


class Framework(Protocol):
    """One framework. `ordinal`, `stream_of` and `wait` refer to the calling thread."""

    name: str

    def alive(self) -> bool:
        """Whether it is imported and has a CUDA context."""
        ...

    def ordinal(self) -> int | None:
        """The CUDA ordinal of its current device; None if that has no context or is unknown."""
        ...

    def stream_of(self, ordinal: int) -> int | None:
        """The handle of its current stream on a device; None if unknown."""
        ...

    def wait(self) -> None:
        """Wait for its work on the current device. Does nothing during the capture of a CUDA graph."""
        ...


class Torch:
    """PyTorch with CUDA."""

    name = "torch"

    @staticmethod
    def _cuda() -> Any:
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        is_initialized = getattr(cuda, "is_initialized", None)
        return cuda if is_initialized is not None and is_initialized() else None

    def alive(self) -> bool:
        """By `torch.cuda.is_initialized()`, which is false in a forked child."""
        return self._cuda() is not None

    def ordinal(self) -> int | None:
        """By `torch.cuda.current_device()`."""
        cuda = self._cuda()
        return None if cuda is None else int(cuda.current_device())

    def stream_of(self, ordinal: int) -> int | None:
        """The handle of `torch.cuda.current_stream(ordinal)`, by the faster function of compiled code if available."""
        torch = sys.modules["torch"]
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        return int(torch.cuda.current_stream(ordinal).cuda_stream if raw is None else raw(ordinal))

    def wait(self) -> None:
        """By `torch.cuda.synchronize()`."""
        cuda = self._cuda()
        if cuda is not None and _active(int(cuda.current_device())) and not cuda.is_current_stream_capturing():
            cuda.synchronize()


class Cupy:
    """CuPy."""

    name = "cupy"

    @staticmethod
    def _cuda() -> Any:
        return getattr(sys.modules.get("cupy"), "cuda", None)

    def alive(self) -> bool:
        """Whether it is imported and some device has its primary context, which is the one that CuPy uses."""
        driver = libcuda.loaded() if self._cuda() is not None else None
        return driver is not None and driver.any_active()

    def ordinal(self) -> int | None:
        """By `cupy.cuda.runtime.getDevice()`, which creates no context."""
        cuda = self._cuda()
        if cuda is None or libcuda.loaded() is None:
            return None
        ordinal = int(cuda.runtime.getDevice())
        return ordinal if _active(ordinal) else None

    def stream_of(self, ordinal: int) -> int | None:
        """By `cupy.cuda.get_current_stream()`, which is valid for the current device only."""
        cuda = self._cuda()
        return int(cuda.get_current_stream().ptr) if int(cuda.runtime.getDevice()) == ordinal else None

    def wait(self) -> None:
        """By `cupy.cuda.runtime.deviceSynchronize()`."""
        ordinal, driver = self.ordinal(), libcuda.loaded()
        if ordinal is not None and driver is not None and not driver.capturing(self.stream_of(ordinal) or 0):
            self._cuda().runtime.deviceSynchronize()


class Numba:
    """Numba's CUDA target. It has no current stream: kernels without an explicit stream run on the default stream."""

    name = "numba"

    @staticmethod
    def _cuda() -> Any:
        return sys.modules.get("numba.cuda")

    def alive(self) -> bool:
        """Whether it is imported and some device has its primary context, which is the one that Numba uses."""
        driver = libcuda.loaded() if self._cuda() is not None else None
        return driver is not None and driver.any_active()

    def ordinal(self) -> int | None:
        """The device of the thread's context. Without a context it is 0, which Numba would use."""
        driver = libcuda.loaded() if self._cuda() is not None else None
        if driver is None:
            return None
        ordinal = driver.current() or 0
        return ordinal if driver.active(ordinal) else None

    def stream_of(self, ordinal: int) -> int | None:  # noqa: ARG002 - the same on every device
        """The default stream, per thread if NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM is set."""
        config = getattr(sys.modules.get("numba"), "config", None)
        return _PER_THREAD if getattr(config, "CUDA_PER_THREAD_DEFAULT_STREAM", 0) else 0

    def wait(self) -> None:
        """By `numba.cuda.synchronize()`."""
        if self.ordinal() is not None:
            self._cuda().synchronize()


class Jax:
    """JAX. It exposes no events and no current stream, so it has no marks. It has no wait for a device either.

    Instead `wait` waits for every live array, because results are queued in order on each device.
    """

    name = "jax"

    @staticmethod
    def _jax() -> Any:
        """JAX if its GPU backend is initialised. Does not initialise a backend, as JAX's own functions would."""
        bridge, jax = sys.modules.get("jax._src.xla_bridge"), sys.modules.get("jax")
        started = getattr(bridge, "backends_are_initialized", None)
        return jax if started is not None and started() and jax is not None and jax.default_backend() == "gpu" else None

    def alive(self) -> bool:
        """Whether its default backend is initialised and is a GPU backend."""
        return self._jax() is not None

    def ordinal(self) -> int | None:
        """The configured default device, else the only local device. With several there is no current one: None."""
        jax = self._jax()
        if jax is None:
            return None
        default, devices = jax.config.jax_default_device, jax.local_devices()
        chosen = default if default is not None else devices[0] if len(devices) == 1 else None
        ordinal = getattr(chosen, "local_hardware_id", None)
        return None if ordinal is None else int(ordinal)

    def stream_of(self, ordinal: int) -> int | None:  # noqa: ARG002 - JAX does not expose its streams
        """None."""
        return None

    def wait(self) -> None:
        """By `jax.block_until_ready` on all live arrays, and `jax.effects_barrier()`."""
        jax = self._jax()
        if jax is not None:
            jax.block_until_ready([array for array in jax.live_arrays() if not array.is_deleted()])
            jax.effects_barrier()


def _active(ordinal: int) -> bool:
    """Whether the device has its primary context; True if libcuda is not loaded."""
    driver = libcuda.loaded()
    return driver is None or driver.active(ordinal)


#: In order of precedence for the device and the stream.
LIBRARIES: Final[tuple[Framework, ...]] = (Torch(), Cupy(), Numba(), Jax())
