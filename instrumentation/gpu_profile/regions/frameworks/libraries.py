"""What each framework says of itself: whether it is alive, the current device, the current stream, how to wait.

Only modules that the program has imported are asked, nothing is imported, and no CUDA context is created. Each of these
may be called from any thread.
"""

from __future__ import annotations

import sys
from typing import Any, Final, Protocol

from gpu_profile.regions.frameworks import libcuda

#: The handle of CUDA's default stream for each thread; 0 is the one that all threads share.
_PER_THREAD: Final = 2


class Framework(Protocol):
    """One framework. `ordinal` and `wait` are about the calling thread."""

    name: str

    def alive(self) -> bool:
        """Whether it is imported and has a CUDA context."""
        ...

    def ordinal(self) -> int | None:
        """The CUDA ordinal of its current device; None where that has no context, or it cannot be told."""
        ...

    def stream_of(self, ordinal: int) -> int | None:
        """The handle of its current stream on a device; None where it cannot be told."""
        ...

    def wait(self) -> None:
        """Wait for what it has queued on the current device, but not in the midst of a graph's capture."""
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
        """Whether `torch.cuda.is_initialized()`, which is false in a forked child."""
        return self._cuda() is not None

    def ordinal(self) -> int | None:
        """Of `torch.cuda.current_device()`."""
        cuda = self._cuda()
        return None if cuda is None else int(cuda.current_device())

    def stream_of(self, ordinal: int) -> int | None:
        """Of `torch.cuda.current_stream(ordinal)`, by the shorter way that compiled code takes where there is one."""
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
        """Of `cupy.cuda.runtime.getDevice()`, which creates no context."""
        cuda = self._cuda()
        if cuda is None or libcuda.loaded() is None:
            return None
        ordinal = int(cuda.runtime.getDevice())
        return ordinal if _active(ordinal) else None

    def stream_of(self, ordinal: int) -> int | None:
        """Of `cupy.cuda.get_current_stream()`, which speaks of the current device only."""
        cuda = self._cuda()
        return int(cuda.get_current_stream().ptr) if int(cuda.runtime.getDevice()) == ordinal else None

    def wait(self) -> None:
        """By `cupy.cuda.runtime.deviceSynchronize()`."""
        ordinal, driver = self.ordinal(), libcuda.loaded()
        if ordinal is not None and driver is not None and not driver.capturing(self.stream_of(ordinal) or 0):
            self._cuda().runtime.deviceSynchronize()


class Numba:
    """Numba's CUDA target. It has no current stream: what is launched on no stream in particular is the default's."""

    name = "numba"

    @staticmethod
    def _cuda() -> Any:
        return sys.modules.get("numba.cuda")

    def alive(self) -> bool:
        """Whether it is imported and some device has its primary context, which is the one that Numba uses."""
        driver = libcuda.loaded() if self._cuda() is not None else None
        return driver is not None and driver.any_active()

    def ordinal(self) -> int | None:
        """Of the thread's context; without one Numba would take device 0."""
        driver = libcuda.loaded() if self._cuda() is not None else None
        if driver is None:
            return None
        ordinal = driver.current() or 0
        return ordinal if driver.active(ordinal) else None

    def stream_of(self, ordinal: int) -> int | None:  # noqa: ARG002 - the same on every device
        """The default stream's, as NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM has it."""
        config = getattr(sys.modules.get("numba"), "config", None)
        return _PER_THREAD if getattr(config, "CUDA_PER_THREAD_DEFAULT_STREAM", 0) else 0

    def wait(self) -> None:
        """By `numba.cuda.synchronize()`."""
        if self.ordinal() is not None:
            self._cuda().synchronize()


class Jax:
    """JAX. It has no events and no current stream, so no marks, and no wait for a device either.

    What can be waited for is every array that is alive: its results are queued in order on each device.
    """

    name = "jax"

    @staticmethod
    def _jax() -> Any:
        """JAX if it has a backend for GPUs; asking it for one would make one."""
        bridge, jax = sys.modules.get("jax._src.xla_bridge"), sys.modules.get("jax")
        started = getattr(bridge, "backends_are_initialized", None)
        return jax if started is not None and started() and jax is not None and jax.default_backend() == "gpu" else None

    def alive(self) -> bool:
        """Whether its default backend is up, and is a GPU's."""
        return self._jax() is not None

    def ordinal(self) -> int | None:
        """Of the default device if one is set, or of the only one; a program on several has no current one."""
        jax = self._jax()
        if jax is None:
            return None
        default, devices = jax.config.jax_default_device, jax.local_devices()
        chosen = default if default is not None else devices[0] if len(devices) == 1 else None
        ordinal = getattr(chosen, "local_hardware_id", None)
        return None if ordinal is None else int(ordinal)

    def stream_of(self, ordinal: int) -> int | None:  # noqa: ARG002 - it keeps its streams to itself
        """None."""
        return None

    def wait(self) -> None:
        """By `jax.block_until_ready` on all arrays that are alive, and `jax.effects_barrier()`."""
        jax = self._jax()
        if jax is not None:
            jax.block_until_ready([array for array in jax.live_arrays() if not array.is_deleted()])
            jax.effects_barrier()


def _active(ordinal: int) -> bool:
    """Whether the device has its primary context, as far as can be told."""
    driver = libcuda.loaded()
    return driver is None or driver.active(ordinal)


#: In the order in which they are asked for the device and the stream.
LIBRARIES: Final[tuple[Framework, ...]] = (Torch(), Cupy(), Numba(), Jax())
