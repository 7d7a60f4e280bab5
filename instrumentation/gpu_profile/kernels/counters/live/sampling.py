"""Hardware counters of regions, sampled for the length of a `with` block."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Any, Final, Self

from gpu_profile.clock import SYSTEM_CLOCK
from gpu_profile.errors import GpuBackendError, GpuProfileError, UsageError
from gpu_profile.kernels.claim import forget_in_children
from gpu_profile.kernels.counters.live.overlaps import Samples, sums_of
from gpu_profile.kernels.counters.sums import CounterSums
from gpu_profile.kernels.windows.window import MOST_EXECUTIONS, Watch, running_from
from gpu_profile.regions.execution import AWAIT_S, Execution
from gpu_profile.regions.running import begun

_log = logging.getLogger("gpu_profile")

_PIPE: Final = subprocess.PIPE
_SAMPLER: Final = "gpu_profile.kernels.counters.live.sampler"
#: The sampler's process makes a CUDA context and loads CUPTI, which takes seconds; it ends within less.
_START_S: Final = 60.0
_END_S: Final = 10.0
#: The least interval: below, reading takes longer than sampling.
_LEAST_S: Final = 1e-5


@dataclass(frozen=True, slots=True)
class CounterReport:
    """What counters said of `regions`, by name, and of the whole block (`total`); None and absent without samples.

    `device` is the GPU's UUID and `chip` its kind. `left_out` executions were too many to be collected; `unplaced` ones
    ran on another GPU, or have no known time on this one.
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
        self._lock = threading.Lock()
        self._executions: list[Execution] = []
        self._known: set[int] = set()
        self._left_out = 0
        self._watch = Watch(self)
        self._process: subprocess.Popen[str] | None = None
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._head: dict[str, Any] = {}
        self._report: CounterReport | None = None
        self._error: GpuProfileError | None = None
        self._start_ns = 0
        forget_in_children(self)

    # ------------------------------------------------------------------ life

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", _SAMPLER, str(self._device), str(round(self._interval_s * 1e9))]
        self._process = process = subprocess.Popen(
            [*command, *self._metrics], stdin=_PIPE, stdout=_PIPE, stderr=subprocess.DEVNULL, text=True
        )
        threading.Thread(target=_read, args=(process.stdout, self._lines), daemon=True).start()
        try:
            self._head = self._first_line()
        except BaseException:
            self._end()
            raise
        self._start_ns = SYSTEM_CLOCK.now_ns()
        for execution in reversed(list(running_from(begun.get()))):
            self._collect(execution)
        self._watch.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        end_ns = SYSTEM_CLOCK.now_ns()
        self._watch.end()
        with self._lock:
            executions, self._executions = self._executions, []
        try:
            self._await_marks(executions)
            self._report = self._joined(executions, end_ns)
        except GpuProfileError as problem:  # `report` raises it: the block's own exception comes first
            self._error = problem
        finally:
            self._end()

    @property
    def report(self) -> CounterReport:
        """What was counted. UsageError before the block has ended, GpuBackendError if the sampling failed meanwhile."""
        if self._error is not None:
            raise self._error
        if self._report is None:
            raise UsageError("there is no report yet: the block that is sampled must end first")
        return self._report

    def forget(self) -> None:
        """The sampler is the parent process's: a forked child neither asks it nor ends it."""
        self._process, self._lock = None, threading.Lock()

    # ------------------------------------------------------------------ what executions tell

    def begun(self, execution: Execution, *, nested: bool) -> None:  # noqa: ARG002 - a watcher is told
        """An execution has begun."""
        self._collect(execution)

    def ended(self, execution: Execution) -> None:
        """It has ended: its times are read afterwards."""

    def _collect(self, execution: Execution) -> None:
        with self._lock:
            if id(execution) in self._known:
                return
            if len(self._executions) >= MOST_EXECUTIONS:
                self._left_out += 1
                return
            self._known.add(id(execution))
            self._executions.append(execution)

    def _await_marks(self, executions: Sequence[Execution]) -> None:
        """Until the GPU has passed the ends of what has ended: samples of it are still to come."""
        latest_ns, never = SYSTEM_CLOCK.now_ns() + round(AWAIT_S * 1e9), threading.Event()
        while SYSTEM_CLOCK.now_ns() < latest_ns and any(each.end_ns and each.interval() is None for each in executions):
            SYSTEM_CLOCK.wait(never, 0.005)

    # ------------------------------------------------------------------ what the sampler tells

    def _first_line(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=_START_S)
        except Empty:
            raise GpuBackendError(f"counters: the sampler has not begun within {_START_S:g} s") from None
        if not line:
            raise GpuBackendError(f"counters: {self._death()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise GpuBackendError(f"counters: {found['error']}")
        return found

    def _joined(self, executions: Sequence[Execution], end_ns: int) -> CounterReport:
        rows = self._rows()
        samples = Samples.of(self._metrics, rows)
        uuid = str(self._head["device"])
        places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        unplaced = 0
        for execution in executions:
            found = execution.active()
            if found is None or (isinstance(execution.device, str) and execution.device != uuid):
                unplaced += 1
            else:
                # What still runs is counted up to here.
                places[execution.name].append((found[0], end_ns if found[1] is None else found[1]))
        sums = {name: sums_of(samples, intervals) for name, intervals in places.items()}
        return CounterReport(
            device=uuid,
            chip=str(self._head["chip"] or ""),
            regions={name: each for name, each in sums.items() if each is not None},
            total=sums_of(samples, [(self._start_ns, end_ns)]),
            left_out=self._left_out,
            unplaced=unplaced,
        )

    def _rows(self) -> list[list[float]]:
        """All samples, once the sampler was told to end. GpuBackendError if it failed, or ended by itself."""
        process = self._process
        if process is None:
            raise UsageError("counters: this is a forked child of the process that samples")
        if process.stdin is not None:
            process.stdin.close()
        rows: list[list[float]] = []
        while True:
            try:
                line = self._lines.get(timeout=_END_S)
            except Empty:
                raise GpuBackendError(f"counters: the sampler has not ended within {_END_S:g} s") from None
            if not line:
                break
            found = json.loads(line)
            if isinstance(found, dict):
                raise GpuBackendError(f"counters: {found['error']}")
            rows += found
        if process.wait(_END_S):
            raise GpuBackendError(f"counters: {self._death()}")
        return rows

    def _death(self) -> str:
        process = self._process
        code = process.wait(_END_S) if process is not None else 0
        how = f"by signal {-code}" if code < 0 else f"with {code}"
        return f"the sampler's process ended {how}: it is CUPTI's own failure, and nothing of this program"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.wait()


def _read(pipe: IO[str], lines: SimpleQueue[str]) -> None:
    try:
        for line in pipe:
            lines.put(line)
    except ValueError:  # it was closed
        pass
    lines.put("")


def sample_counters(metrics: Sequence[str], *, interval_s: float = 1e-4, device: int = 0) -> CounterSampling:
    """Sample hardware counters for the length of a `with` block, and join them with the regions that run in it.

    `metrics` are names as `smsp__inst_executed.sum` or `dram__bytes_read.sum` that one pass of the hardware can count
    together; `interval_s` is the time between two samples, at least 10 µs. `device` is the GPU's number as CUDA shows
    GPUs to this process. All that the GPU does is counted, whoever does it. Samples are taken by a process of its own,
    which has a CUDA context (some hundred MB of the GPU's memory) and takes seconds to start; nothing of this program
    is serialised or run again. The end of the block waits for the GPU to have done what ran in it.
    Raises UsageError for an interval or metrics that cannot be, and on entering the block GpuBackendError if nothing
    can sample: cupti-python 13.3 or newer is missing, counters are refused, another profiler holds them, or a metric is
    unknown or needs several passes.
    """
    if not metrics or any(not name or name.startswith("-") for name in metrics) or isinstance(metrics, str):
        raise UsageError("metrics is a list of names such as dram__bytes_read.sum")
    if not _LEAST_S <= interval_s <= 1.0:
        raise UsageError(f"interval_s is between {_LEAST_S:g} and 1, not {interval_s!r}")
    if device < 0:
        raise UsageError(f"device is a number of CUDA's, not {device}")
    return CounterSampling(metrics, interval_s=interval_s, device=device)
