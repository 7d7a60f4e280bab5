"""`GpuMonitor`: measures GPUs while a block of code runs."""

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
    """Samples GPUs while a `with` (or `async with`) block runs. `summary` is available after the block.

    `device`: a CUDA ordinal of this process, a UUID, `nvml:N` (NVML's index), or several of them in a list.
    `interval_s`: seconds between readings; all monitors share one sampler, at the shortest interval of any.
    `backend`: `auto|nvml|smi|none|node[:DIR]|simulated[:DIR]|replay:DIR`; `auto`: the backend of `configure` or of the
    environment's GPU_PROFILE_BACKEND, else NVML, else nvidia-smi. `strict`: raise GpuBackendError or UsageError on
    entering a block that cannot be measured; without `strict`, log one warning and add a note to the summary.
    `sync_fn`: called before and after the block to wait for launched work; `auto`: the synchronisation of the loaded
    framework. `warmup_s`: seconds at the start of the run that are left out of everything except the duration.
    `keep_samples`: fill `samples`.

    A monitor can be used again after its block has ended; using it while it runs raises UsageError. The end of the
    block waits up to 0.25 s for the driver's last samples. The duration does not include this wait.
    Raises ValueError for an invalid time, TypeError for a `sync_fn` that is not callable.
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

    # ------------------------------------------------------------------ results

    @property
    def summary(self) -> GpuSummary | None:
        """The summary of the first device; None before the block has ended."""
        return self.summaries[0] if self.summaries else None

    @property
    def summaries(self) -> tuple[GpuSummary, ...]:
        """A summary for each device, in their order; empty before the block has ended."""
        return () if self._run is None else self._run.summaries

    @property
    def samples(self) -> list[GpuSample]:
        """The samples of the first device so far, oldest first. Empty without `keep_samples`."""
        by_device = self.device_samples
        return by_device[0] if by_device else []

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
