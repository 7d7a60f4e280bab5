"""A profiler of named ranges: `create_profiler()`, `init()`, `with profile_range("step"):`, `print_profiler_ranges()`.

The interface of the document "GMP Profiler Python Wrapper".
With `import gpu_profile.kernels as gmp_python` the document's examples run unchanged. Every range is a region as well,
with its span and metrics.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, ParamSpec, TypedDict, TypeVar, Unpack, overload

from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile.kernels.gmp import results as shown
from gpu_profile.kernels.gmp.collecting import Collecting, GmpSettings
from gpu_profile.kernels.gmp.ranges import ProfiledRange, decorate, pop, push
from gpu_profile.kernels.gmp.results import ProfileType, Reduction, Results, one_of
from gpu_profile.kernels.sources.opening import open_source
from gpu_profile.regions.session import process

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("gpu_profile")
_KERNELS: Final = ProfileType.CONCURRENT_KERNEL


class GmpOptions(TypedDict, total=False):
    """The options of a profiler; see `GmpProfiler`."""

    source: str
    output: str | os.PathLike[str] | None
    window_s: float
    most_executions: int
    name: str


class GmpProfiler:
    """Records the kernels, copies and memory of named ranges, in windows.

    A window opens when a range begins and none is open. It closes when results are requested and at `disable()`. It
    also closes when no range runs any more and it is older than `window_s` (10 s) or has seen more than
    `most_executions` (20,000) ranges. Closing waits for the GPU and reads the records; ranges of other threads wait
    meanwhile. A range that runs when its window closes counts in that window up to then, and once more in the next one.

    `source` is as for `record`: `torch`, `cupti`, or `auto`. `output` is the folder of the CSV
    files that each printing of kernels writes anew (`output`); None: no files. `name` is the profiler's name in
    messages. Only one profiler of a process records at a time; ranges of the others are reported as not recorded.
    With PyTorch's profiler, a window that opens in another thread than the program's main one records all threads, but
    no allocations. If it opens for a range of type MEMORY, it records that thread alone, with its allocations.
    Raises UsageError for an unknown source and for numbers that are not above 0.
    """

    def __init__(self, **options: Unpack[GmpOptions]) -> None:
        self._collecting = Collecting(_settings(options))
        self._ready = self._warned = False

    # ------------------------------------------------------------------ life

    def init(self) -> None:
        """Record from now on; calling it twice is allowed.

        If `source` is `auto`, CUPTI cannot be used and PyTorch is installed, this imports PyTorch. Otherwise a program
        that imports it within its first range would have no records of that range.
        """
        settings = self._collecting.settings
        if settings.source == "auto" and not process.disabled:
            _import_torch()
        self._ready = True
        self._collecting.enable()

    def enable(self) -> None:
        """Record again after `disable()`; UsageError before `init()`."""
        if not self._ready:
            raise UsageError("enable(): the profiler is not initialised: call init() first")
        self._collecting.enable()

    def disable(self) -> None:
        """Record no more; ranges continue as plain regions. Earlier records are kept."""
        self._collecting.disable()

    start_range_profiling = enable
    stop_range_profiling = disable

    # ------------------------------------------------------------------ ranges

    def profile_range(self, name: str, type: str = _KERNELS) -> ProfiledRange:  # noqa: A002 - as in the document
        """A `with` block that is a range. It may be nested, used again and in several threads.

        `type` is the list in which the range is shown: CONCURRENT_KERNEL or MEMORY. UsageError before `init()` and for
        another type, TypeError for an invalid name.
        """
        kind = one_of(ProfileType, type)
        if not self._ready:
            raise UsageError(f"the range {name!r} cannot begin before init(): call init() first")
        return ProfiledRange(self._collecting, name, kind)

    def profile_memory(self, name: str) -> ProfiledRange:
        """As `profile_range`, for a range of type MEMORY."""
        return self.profile_range(name, ProfileType.MEMORY)

    @overload
    def profile_function(self, name: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def profile_function(
        self, name: str | None = ..., type: str = ...
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def profile_function(self, name: Any = None, type: str = _KERNELS) -> Any:  # noqa: A002 - as above
        """Make every call of a function (plain, async, generator or async generator) a range.

        The default name is the function's. A call before `init()` is a plain region, because decorators stay in the
        code of programs that do not profile.
        """
        kind = one_of(ProfileType, type)
        if callable(name):  # used without brackets
            return decorate(self._collecting, name, None, kind)
        return lambda function: decorate(self._collecting, function, name, kind)

    def push_range(self, name: str, type: str = _KERNELS) -> None:  # noqa: A002 - as above
        """Begin a range that `pop_range` of the same type ends, in the same thread or task."""
        push(self.profile_range(name, type))

    def pop_range(self, type: str = _KERNELS) -> None:  # noqa: A002 - as above
        """End the range of this type that was pushed last in this thread or task; UsageError if there is none."""
        pop(self._collecting, one_of(ProfileType, type))

    # ------------------------------------------------------------------ results

    def results(self) -> Results:
        """The results of all ranges until now; closes the window."""
        return self._collecting.results()

    def print_profiler_ranges(self, reduction: str = Reduction.SUM) -> None:
        """Print the results of the ranges' kernels, and write the CSV files; UsageError for an unknown reduction."""
        how = one_of(Reduction, reduction)
        results, folder = self.results(), self._collecting.settings.output
        if folder is not None:
            try:
                shown.write(results, folder, how)
            except OSError as error:
                if not self._warned:
                    _log.warning("gpu-profile: %s: the results cannot be written: %s", folder, error.strerror or error)
                self._warned = True
        _print(shown.kernel_text(results, how))

    def print_memory_activity(self) -> None:
        """Print the memory that ranges of type MEMORY allocated and freed."""
        _print(shown.memory_text(self.results()))

    def get_memory_activity(self) -> list[dict[str, Any]]:
        """The ranges of type MEMORY, a dict each, in order of their first start.

        Keys: `name executions allocations allocated_bytes deallocations deallocated_bytes` (over all allocators; None:
        not recorded), `allocators` (the same for each, with `source device_id peak_bytes rise_bytes`), and `records`: a
        dict for each allocation (`ALLOC`) or deallocation (`FREE`) with `name memory_operation_type memory_kind
        correlation_id address bytes timestamp process_id device_id context_id stream_id is_async source`; `timestamp`
        in ns since the epoch, None for unknown values.
        """
        return shown.memory_activity(self.results())

    def write_results(self, path: str | os.PathLike[str], reduction: str = Reduction.SUM) -> None:
        """Write `result.csv` and `kernels.csv` into the folder `path`; UsageError if that is not possible."""
        how = one_of(Reduction, reduction)
        try:
            shown.write(self.results(), Path(path), how)
        except OSError as error:
            raise UsageError(f"{os.fspath(path)}: the results cannot be written: {error.strerror or error}") from error


_numbers: Final = itertools.count(1)


def _settings(options: GmpOptions) -> GmpSettings:
    given: dict[str, Any] = {"output": "output", **options}
    given["output"] = None if given["output"] is None else Path(given["output"])
    given["name"] = given.get("name") or f"profiler {next(_numbers)}"
    return GmpSettings(**given)


def _import_torch() -> None:
    if "torch" in sys.modules:
        return
    try:
        open_source("auto")
    except GpuProfileError:
        if importlib.util.find_spec("torch") is not None:
            # A program that uses a broken installation of it gets the error itself.
            with suppress(Exception):
                importlib.import_module("torch")


def _print(text: str) -> None:
    out = sys.stdout
    if out is None:  # closed when the program began; `print` ignores that, too
        return
    try:
        out.write(f"{text}\n")
    except UnicodeEncodeError:  # a console that lacks these characters
        encoding = out.encoding or "ascii"
        out.write(f"{text}\n".encode(encoding, "replace").decode(encoding))


# ---------------------------------------------------------------------- the global profiler


def create_profiler(**options: Unpack[GmpOptions]) -> GmpProfiler:
    """A new profiler; see `GmpProfiler` for the options."""
    return GmpProfiler(**options)


#: A shared profiler for programs that create none, and its ranges.
_GLOBAL: Final = GmpProfiler(name="the global profiler")
profile_range: Final = _GLOBAL.profile_range
profile_memory: Final = _GLOBAL.profile_memory
profile_function: Final = _GLOBAL.profile_function


def init_global_profiler(**options: Unpack[GmpOptions]) -> GmpProfiler:
    """Record with the global profiler from now on; calling it again is allowed. Given options replace earlier ones."""
    if options:
        collecting = _GLOBAL._collecting
        collecting.settings = _settings({"name": collecting.settings.name, **options})
    _GLOBAL.init()
    return _GLOBAL


def print_results(reduction: str = Reduction.SUM) -> None:
    """Print the global profiler's ranges of kernels and, if there are any, of memory; write the CSV files."""
    how = one_of(Reduction, reduction)
    _GLOBAL.print_profiler_ranges(how)
    if _GLOBAL.results().memory:
        _GLOBAL.print_memory_activity()
