"""`GpuMonitor`: a block of code, and what the GPU did while it ran."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from gpu_profile.errors import UsageError
from gpu_profile.monitor.gpu_summary import GpuSample, GpuSummary
from gpu_profile.monitor.options import SyncFn, options
from gpu_profile.monitor.pauses import Pauses, await_through, sleep_through
from gpu_profile.monitor.run import Run


class GpuMonitor:
    """Samples GPUs while a `with` (or `async with`) block runs; `summary` is there when the block has ended.

    `device`: a CUDA ordinal of this process, a UUID, `nvml:N` (NVML's index), or several of them in a list.
    `interval_s`: how often counters are read; one sampler serves all monitors, at the shortest interval of any.
    `backend`: `auto|nvml|smi|none|node[:DIR]|simulated[:DIR]|replay:DIR`; `auto` is what `configure` or the
    environment's GPU_PROFILE_BACKEND names, else NVML, else nvidia-smi. `strict`: raise GpuBackendError or UsageError
    when the block is entered and cannot be measured; without it there is one warning, and a note in the summary.
    `sync_fn`: called before the block and after it, to wait for what was launched; `auto` takes that of the framework
    that is loaded. `warmup_s`: so much of the run's beginning is left out of all but its duration.
    `keep_samples`: have `samples`.

    A monitor can be used again after its block has ended, not while it runs: UsageError. The end of the block waits
    for the driver's last samples, at most 0.25 s, which is not part of the duration.
    Raises ValueError for a time that makes no sense, TypeError for a `sync_fn` that is no function.
    """

    def __init__(
        self,
        device: Any = 0,
        interval_s: float = 0.2,
        backend: str = "auto",
        strict: bool = True,
        sync_fn: SyncFn = None,
        warmup_s: float = 0.0,
        keep_samples: bool = False,
    ) -> None:
        self._options = options(device, interval_s, backend, strict, sync_fn, warmup_s)
        self._keep_samples = keep_samples
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._running = False

    # ------------------------------------------------------------------ what it found

    @property
    def summary(self) -> GpuSummary | None:
        """What the device did; None before the block has ended. Of several devices, the first."""
        return self.summaries[0] if self.summaries else None

    @property
    def summaries(self) -> tuple[GpuSummary, ...]:
        """A summary for each device, in their order; empty before the block has ended."""
        return () if self._run is None else self._run.summaries

    @property
    def samples(self) -> list[GpuSample]:
        """The samples so far, oldest first; of several devices, the first's. Empty without `keep_samples`."""
        found = self.device_samples
        return found[0] if found else []

    @property
    def device_samples(self) -> list[list[GpuSample]]:
        """The samples of each device, in the order of `summaries`."""
        return [] if self._run is None else self._run.samples()

    # ------------------------------------------------------------------ the block

    def __enter__(self) -> Self:
        sleep_through(self._opening(self._begin()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sleep_through(self._closing(error))

    async def __aenter__(self) -> Self:
        await await_through(self._opening(self._begin()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await await_through(self._closing(error))

    def _begin(self) -> Run:
        with self._lock:
            if self._running:
                raise UsageError("this GpuMonitor is running already: make one for each block")
            self._run = Run(self._options, keeps=self._keep_samples)
            self._running = True
            return self._run

    def _opening(self, run: Run) -> Pauses:
        try:
            yield from run.opening()
        except BaseException:
            self._running = False
            raise

    def _closing(self, error: BaseException | None) -> Pauses:
        try:
            if self._run is not None:
                yield from self._run.closing(error)
        finally:
            self._running = False
