"""PyTorch's own profiler as a source of records, read by way of the trace that it saves.

So the records of a running program and of a saved trace take one path. Starting costs 0.3 ms and stopping 7 µs per
operator (measured on a CPU with PyTorch 2.13). Saving and reading come on top, and may happen in another thread.
PyTorch waits for the current GPU when it stops. The first start imports PyTorch's compiler, which takes a second.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from gpu_profile.errors import GpuBackendError, UsageError
from gpu_profile.kernels.records import Allocation, Call, Operation, Operator, Range, Record
from gpu_profile.kernels.sources.source import ENDERS, WrongThreadError, has_driver
from gpu_profile.kernels.trace import Trace
from gpu_profile.regions.frameworks import libcuda
from gpu_profile.regions.frameworks.torch_profiler import without_ranges

#: Newer releases of Kineto write a line on stderr at every start and stop, unless this variable has its highest level.
LOG_VARIABLE: Final = "KINETO_LOG_LEVEL"
_SILENT: Final = "99"
#: Replaces PyTorch's True: if the value is no longer an int, another profiler has been started since.
_OURS: Final = 1
_BASE: Final = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,18}|[1-4]\d{18})\b')
_ENDS_BYTES: Final = 1 << 16
_HELD: Final = (
    "the GPU was in use, but PyTorch's profiler got no record of it: another tool holds CUPTI, "
    "such as Nsight, DCGM's profiling or a second profiler; end that one"
)


def waits_for_gpu() -> bool:
    """Whether PyTorch may use GPUs later, and has not so far: recording already would make a CUDA context.

    Does not count GPUs through PyTorch or the driver: after such a call the program must not fork.
    """
    torch = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    may = bool(getattr(version, "hip", None) or (getattr(version, "cuda", None) and has_driver()))
    cuda = getattr(torch, "cuda", None)  # not there while PyTorch is being imported
    return may and not (cuda is not None and cuda.is_initialized())


class TorchSource:
    """`torch.profiler` with all the activities that PyTorch supports on this machine.

    It records the operators and allocations of the thread that starts it, which alone may stop it, and the GPU calls of
    all threads. `all_threads`: it records the operators of all threads, but no allocations, and any thread may stop it.
    That needs about PyTorch 2.7, and has no effect before; `all_threads` is True if it took effect.
    Raises GpuBackendError if PyTorch, or Kineto in it, is missing.
    """

    name = "torch"
    dropped: int | None = None
    pushes = False

    def __init__(self, *, all_threads: bool = False) -> None:
        try:
            self._torch = importlib.import_module("torch")
            self._api = importlib.import_module("torch.profiler")
        except Exception as error:
            raise GpuBackendError(f"PyTorch cannot be imported ({error}): pip install 'gpu-profile[torch]'") from error
        if not self._api.kineto_available():
            raise GpuBackendError("this build of PyTorch records no GPU operations (no Kineto): install another")
        self.problem = ""
        self._config, self.all_threads = _config(all_threads)
        self._profiler: Any = None
        self._thread = threading.current_thread()
        self._pid = 0
        self._device: int | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Record from now on; GpuBackendError if PyTorch's profiler already runs, or does not start."""
        if self._profiler is not None:
            raise GpuBackendError("this source records already: stop it first")
        if self._torch.autograd._profiler_enabled() or self._state():
            # PyTorch would silently drop the running profiler's records.
            raise GpuBackendError("PyTorch's profiler runs already in this process: end it before kernels are recorded")
        self.problem = ""
        profiler = self._api.profile(
            activities=list(self._api.supported_activities()), profile_memory=True, experimental_config=self._config
        )
        try:
            with _quiet(), without_ranges():
                profiler.start()
        except Exception as error:
            raise GpuBackendError(f"PyTorch's profiler did not start: {first_line(error)}") from error
        if self._state() is not None:
            sys.modules["torch.autograd.profiler"]._is_profiler_enabled = _OURS  # type: ignore[attr-defined]
        self._profiler, self._thread, self._pid = profiler, threading.current_thread(), os.getpid()
        self._device = self._torch.cuda.current_device() if self._torch.cuda.is_initialized() else None
        # A profiler that is left open crashes the process when it exits.
        ENDERS.add(self._abandon)

    def stop(self) -> Iterator[Record]:
        """End; the trace is saved and read when the records are.

        Raises WrongThreadError in another thread than the one that started it. Raises GpuBackendError if that thread
        has ended, or if another profiler of PyTorch was started meanwhile, which has replaced this one.
        """
        if self._profiler is None:
            raise GpuBackendError("this source does not record: start it first")
        if self._pid != os.getpid():
            self._forget()
            raise GpuBackendError("PyTorch's profiler was started before the fork: its records are the parent's")
        here = threading.current_thread() is self._thread
        if not (here or self.all_threads) and self._thread.is_alive():
            raise WrongThreadError(f"PyTorch's profiler is stopped in the thread that started it: {self._thread.name}")
        profiler, gone = self._profiler, not (here or self.all_threads)
        if gone or self._displaced():
            self._abandon()
            what = "its thread ended before it was stopped" if gone else "another one was started meanwhile"
            raise GpuBackendError(f"what PyTorch's profiler recorded is lost: {what}")
        self._forget()
        try:
            with nullcontext() if here else self._on_device():
                profiler.stop()
        except Exception as error:
            raise GpuBackendError(f"PyTorch's profiler did not stop: {first_line(error)}") from error
        return self._records(profiler, used_gpu=self._device is not None)

    def push(self, range_id: int) -> None:
        """No effect: the trace records threads and times."""

    def pop(self) -> None:
        """No effect."""

    # ------------------------------------------------------------------ PyTorch's state

    def _state(self) -> Any:
        """PyTorch's flag of a running profiler; None if none runs."""
        return getattr(sys.modules["torch.autograd.profiler"], "_is_profiler_enabled", None)

    def _displaced(self) -> bool:
        """Whether another profiler has been started since. Stopping ours would crash, or take the other's records."""
        return type(self._state()) is bool

    def _on_device(self) -> AbstractContextManager[Any]:
        """The starter's GPU: PyTorch waits for the current GPU, and would make a context on another."""
        if self._device is None:
            return nullcontext()
        return cast("AbstractContextManager[Any]", self._torch.cuda.device(self._device))

    def _forget(self) -> None:
        self._profiler = None
        ENDERS.discard(self._abandon)

    def _abandon(self) -> None:
        """Stop, so that PyTorch can be used and can exit; the records may be lost."""
        profiler = self._profiler
        self._forget()
        if profiler is None or self._pid != os.getpid() or self._displaced():
            return
        # An error here would help nobody: lost records are reported in any case.
        with suppress(Exception), self._on_device():
            if not (self.all_threads or threading.current_thread() is self._thread):
                # Only its own thread may stop it, but a new one takes its place; not in PyTorch 2.4.
                profiler = self._api.profile(activities=[self._api.ProfilerActivity.CPU])
                profiler.start()
            profiler.stop()

    # ------------------------------------------------------------------ records

    def _records(self, profiler: Any, *, used_gpu: bool) -> Iterator[Record]:
        calls = launches = operations = 0
        # Kineto does not report a file that it could not write, so a failed read is the only sign.
        try:
            with tempfile.TemporaryDirectory(prefix="gpu-profile-") as folder:
                path = Path(folder) / "trace.json"
                profiler.export_chrome_trace(str(path))
                for record in _shifted(Trace(path), _base_ns(path)):
                    if type(record) is Operation:
                        operations += 1
                    elif type(record) is Call:
                        calls += 1
                        launches += "Launch" in record.name and "HostFunc" not in record.name
                    yield record
        except (OSError, RuntimeError, UsageError) as error:
            self.problem = (
                f"PyTorch's records could not be read ({first_line(error)}); is {tempfile.gettempdir()} full?"
            )
            raise UsageError(self.problem) from error
        if used_gpu and not operations and (launches or not calls):
            self.problem = _HELD


@cache
def warm_up() -> None:
    """Pay the cost of the first start now: the import of PyTorch's compiler, and CUPTI's own start."""
    cuda = libcuda.loaded()
    used = [] if cuda is None else [ordinal for ordinal in range(cuda.count()) if cuda.active(ordinal)]
    source = TorchSource()
    with importlib.import_module("torch").cuda.device(used[0]) if used else nullcontext():
        source.start()
        source.stop()


def _base_ns(path: Path) -> int:
    """The offset from the trace's times to nanoseconds since the epoch; Kineto writes it before or after the events."""
    with path.open("rb") as file:
        text = file.read(_ENDS_BYTES)
        file.seek(max(len(text), path.stat().st_size - _ENDS_BYTES))
        text += file.read()
    match = _BASE.search(text)
    return int(match[1]) if match else 0


def _shifted(records: Iterable[Record], by_ns: int) -> Iterator[Record]:
    for record in records:
        if isinstance(record, Operator):  # most are; made anew in half the time of `_replace`
            name, thread, start_ns, end_ns, sequence, backward = record
            yield Operator(name, thread, start_ns + by_ns, end_ns + by_ns, sequence, backward)
        elif isinstance(record, Operation | Call | Range):
            yield record._replace(start_ns=record.start_ns + by_ns, end_ns=record.end_ns + by_ns)
        elif isinstance(record, Allocation):
            yield record._replace(time_ns=record.time_ns + by_ns)
        else:
            yield record


@contextmanager
def _quiet() -> Iterator[None]:
    """Set Kineto's log level for the first start, which reads it, but not for programs that this one starts."""
    silenced = LOG_VARIABLE not in os.environ
    if silenced:
        os.environ[LOG_VARIABLE] = _SILENT
    try:
        yield
    finally:
        if silenced:
            os.environ.pop(LOG_VARIABLE, None)


def _config(all_threads: bool) -> tuple[Any, bool]:
    """The experimental settings that this PyTorch supports, and whether they include all threads."""
    try:
        config = importlib.import_module("torch._C._profiler")._ExperimentalConfig
    except (ImportError, AttributeError):
        return None, False
    wanted = {"profile_all_threads": True} if all_threads else {}
    # With `trace_only` PyTorch makes no Python object for each event.
    for options in ({"trace_only": True, **wanted}, wanted):
        try:
            return config(**options), bool(wanted)
        except TypeError:
            continue
    return None, False


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or the name of its class."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
