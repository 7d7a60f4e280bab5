"""Hardware counters of regions, sampled for the length of a `with` block."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from gpu_profile.clock import SYSTEM_CLOCK
from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile.kernels.claim import forget_in_children
from gpu_profile.kernels.counters.live.overlaps import Samples, sums_of
from gpu_profile.kernels.counters.live.running import RunningSampler
from gpu_profile.kernels.counters.sums import CounterSums
from gpu_profile.kernels.executions import MOST_EXECUTIONS, ExecutionWatch, running_from
from gpu_profile.regions.execution import AWAIT_S, Execution
from gpu_profile.regions.running import begun
from gpu_profile.regions.session import process

#: The least interval that was tried on hardware. CUPTI evaluates one sample after the other.
_LEAST_S: Final = 1e-4


@dataclass(frozen=True, slots=True)
class CounterReport:
    """The counters of `regions` by name, and of the whole block (`total`); absent and None without samples.

    `device` is the GPU's UUID and `chip` the chip's name. `left_out` executions exceeded the limit. `unplaced`
    executions ran on another GPU, or have no time on this one.
    """

    device: str
    chip: str
    regions: Mapping[str, CounterSums]
    total: CounterSums | None
    left_out: int
    unplaced: int


class CounterSampling:
    """`with sample_counters(...) as counters: …`, then `counters.report`. See `sample_counters`."""

    def __init__(self, metrics: Sequence[str], *, interval_s: float, device: int) -> None:
        self._metrics, self._interval_s, self._device = tuple(metrics), interval_s, device
        # Reentrant, since a signal's handler may run a region.
        self._lock = threading.RLock()
        self._watch = ExecutionWatch(self)
        self._sampler: RunningSampler | None = None
        self._entered = False
        self._begin()
        forget_in_children(self)

    def _begin(self) -> None:
        #: By `id`, which is unique while the execution is referenced here.
        self._executions: dict[int, Execution] = {}
        self._left_out = 0
        self._report: CounterReport | None = None
        self._error: GpuProfileError | None = None

    # ------------------------------------------------------------------ life

    def __enter__(self) -> Self:
        if self._entered:
            raise UsageError("this sampling has begun already: every block has one of its own")
        self._begin()
        self._entered = True
        try:
            self._sampler = RunningSampler(self._device, round(self._interval_s * 1e9), self._metrics)
        except BaseException:
            self._entered = False
            raise
        self._start_ns = SYSTEM_CLOCK.now_ns()
        self._watch.begin()
        session = process.running()
        all_executions = [] if session is None else [*session.joiner.backlog.all_executions(), *list(session.began)]
        for execution in [*running_from(begun.get()), *all_executions]:
            if not execution.end_ns:
                self._collect(execution)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        end_ns = SYSTEM_CLOCK.now_ns()
        self._watch.end()
        sampler, self._sampler, self._entered = self._sampler, None, False
        if sampler is None:  # a forked child's copy
            return
        try:
            executions = self._settled()
            self._report = self._joined(sampler, executions, end_ns)
        except GpuProfileError as problem:  # `report` raises it: the block's own exception comes first
            self._error = problem
        finally:
            sampler.close()

    @property
    def report(self) -> CounterReport:
        """The counters. UsageError before the block has ended, GpuBackendError if the sampling failed meanwhile."""
        if self._error is not None:
            raise self._error
        if self._report is None:
            raise UsageError("there is no report yet: the block that is sampled must end first")
        return self._report

    def forget(self) -> None:
        """Drop the parent process's sampler: a forked child neither asks it nor ends it."""
        self._lock, self._sampler, self._entered = threading.RLock(), None, False
        self._begin()

    # ------------------------------------------------------------------ executions

    def begun(self, execution: Execution, *, nested: bool) -> None:  # noqa: ARG002 - a watcher's signature
        """An execution has begun."""
        self._collect(execution)

    def ended(self, execution: Execution) -> None:
        """An execution has ended: its times are read afterwards."""

    def _collect(self, execution: Execution) -> None:
        with self._lock:
            if len(self._executions) < MOST_EXECUTIONS:
                self._executions[id(execution)] = execution
            elif id(execution) not in self._executions:
                self._left_out += 1

    def _settled(self) -> list[Execution]:
        """The collected executions, once the GPU has passed all their ends; earlier, samples would be missing."""
        with self._lock:
            executions = list(self._executions.values())
        latest_ns, never = SYSTEM_CLOCK.now_ns() + round(AWAIT_S * 1e9), threading.Event()
        while SYSTEM_CLOCK.now_ns() < latest_ns and any(each.end_ns and each.interval() is None for each in executions):
            SYSTEM_CLOCK.wait(never, 0.005)
        return executions

    def _joined(self, sampler: RunningSampler, executions: Sequence[Execution], end_ns: int) -> CounterReport:
        samples = Samples.of(self._metrics, sampler.samples())
        places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        unplaced, last_ns = 0, end_ns
        for execution in executions:
            active = execution.active()
            if active is None or not _is_on(execution, sampler.device):
                unplaced += 1
                continue
            # An execution that still runs is counted up to here.
            start, end = active[0], end_ns if active[1] is None else active[1]
            places[execution.name].append((start, end))
            last_ns = max(last_ns, end)
        sums = {name: sums_of(samples, intervals) for name, intervals in places.items()}
        return CounterReport(
            device=sampler.device,
            chip=sampler.chip,
            regions={name: each for name, each in sums.items() if each is not None},
            total=sums_of(samples, [(self._start_ns, last_ns)]),
            left_out=self._left_out,
            unplaced=unplaced,
        )


def _is_on(execution: Execution, uuid: str) -> bool:
    """Whether it ran on this GPU, as far as its devices are resolved or named. True if neither is the case."""
    session = process.running()
    devices = session.joiner.devices_of(execution) if session is not None else ()
    if devices:
        return any(device.uuid == uuid for device in devices)
    return not isinstance(execution.device, str) or execution.device == uuid


def sample_counters(metrics: Sequence[str], *, interval_s: float = 1e-4, device: int = 0) -> CounterSampling:
    """Sample hardware counters for the length of a `with` block, and join them with the regions that run in it.

    `metrics` are names such as `smsp__inst_executed.sum` or `dram__bytes_read.sum` that one pass of the hardware can
    count together. `interval_s` is the time between two samples, at least 0.1 ms. `device` is the CUDA ordinal of the
    GPU. Counters include the work of all processes on the GPU. A process of its own takes the samples. It has a CUDA
    context (some hundred MB of the GPU's memory) and takes seconds to start; nothing of this program is serialised or
    run again. The end of the block waits until the GPU has done the work of the block.
    Raises UsageError for invalid intervals or metrics. Entering the block raises GpuBackendError if nothing can sample:
    cupti-python 13.3 or newer is missing, counters are refused, another profiler holds them, or a metric is unknown or
    needs several passes.
    """
    if not metrics or isinstance(metrics, str) or any(not name or name.startswith("-") for name in metrics):
        raise UsageError("metrics is a list of names such as dram__bytes_read.sum")
    if not _LEAST_S <= interval_s <= 1.0:
        raise UsageError(f"interval_s is between {_LEAST_S:g} and 1, not {interval_s!r}")
    if device < 0:
        raise UsageError(f"device is a number of CUDA's, not {device}")
    return CounterSampling(metrics, interval_s=interval_s, device=device)
