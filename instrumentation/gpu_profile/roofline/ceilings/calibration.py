"""Measures the ceilings of a machine within seconds.

A ceiling is the highest rate that can be reached, so the shortest run counts, not the median: other activity makes runs
longer, never shorter. An error of the clock can make a run look shorter. So the shortest 5 % of the runs are skipped,
and at least the shortest of three or more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Final

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.errors import GpuProfileError
from gpu_profile.roofline.ceilings.benchmarks import ELEMENT_BYTES, Benchmarks, Call
from gpu_profile.roofline.ceilings.ceilings import IMPOSSIBLE, Ceiling, Ceilings, Level
from gpu_profile.roofline.ceilings.datasheet import Expected, expected, facts_of
from gpu_profile.roofline.machines.machine import Machine, Timing
from gpu_profile.roofline.precision import Precision
from gpu_profile.units import percent, si

#: Seconds that the timed runs of a calibration take, without allocation and loading of libraries.
BUDGET_S: Final = 3.0
#: Shares of the budget: for the memory in its three turns, for each cache, for all products, for empty launches.
MEMORY_SHARE, CACHE_SHARE, PRODUCT_SHARE, LAUNCH_SHARE = 0.25, 0.05, 0.55, 0.05
#: The least seconds of one timed run, which repeats short calls. The clock's resolution and the time to read it then do
#: not matter.
RUN_S: Final = 2e-3
MOST_CALLS: Final = 1000
#: The least and the largest number of runs of a bandwidth.
RUNS, MOST_RUNS = 5, 200
#: Runs of each small operation. Overwriting the caches before each takes milliseconds.
COLD_LAUNCHES: Final = 9
#: The allocator requests new memory for an array of this size. It has more than `LEAST_FAULTS` pages, even huge ones.
FRESH_BYTES: Final = 64 << 20
LEAST_FAULTS: Final = 16
#: An empty launch is the median of at least this many runs.
LAUNCHES: Final = 101
#: The size of three arrays together, as a multiple of the last-level cache. The two arrays of a copy are then four
#: times as large as the cache, as STREAM requires, so that almost none of their data is in it. Less than half of that
#: would measure the cache.
BEYOND_CACHE: Final = 6
#: The least bytes that measure a memory.
LEAST_BYTES: Final = 16 << 20
#: Rows of the square matrices, ascending. Small matrices saturate processors, GPUs need large ones.
PROCESSOR_SIZES: Final = (256, 512, 1024, 2048, 4096)
GPU_SIZES: Final = (1024, 2048, 4096, 8192)
#: The least working set for memory, in bytes: short kernels spend too much of their time to start and to end.
PROCESSOR_LEAST: Final = 256 << 20
GPU_LEAST: Final = 1 << 30
#: The largest share of the free memory to allocate.
OF_FREE: Final = 0.25
#: A cache is a roof of its own if it is faster by this factor than the next level.
FASTER: Final = 1.1
#: A series of growing products ends after `STALLS` sizes that are not faster than the best by the factor `GAIN`.
STALLS, GAIN = 2, 1.01
#: A measurement below this share of the data sheet's figure gets a note.
FAR_BELOW: Final = 0.5
#: Kinds of machines without data sheet or formula.
HOSTS: Final = frozenset({"cpu", "host"})
#: The reason for a ceiling that is missing for lack of memory.
NO_MEMORY: Final = "not enough free memory"


def ignore(text: str) -> None:
    """Discard the text."""


def calibrate(
    machine: Machine, *, budget_s: float = BUDGET_S, say: Callable[[str], None] = ignore, clock: Clock = SYSTEM_CLOCK
) -> Ceilings:
    """Measure the machine's ceilings in about `budget_s` seconds. `say` receives progress messages.

    Bandwidth: the best of a copy (2 elements moved for each) and STREAM's triad (3 elements; McCalpin 1995). The arrays
    are far larger than the last-level cache for the memory, and half as large as the cache for a cache. As in STREAM,
    lines that a processor reads only to overwrite them (write-allocate) do not count. Compute: the best of square
    matrix products of growing size, 2 n³ operations each. Launch: the median of operations on one element.

    A figure of the data sheet replaces a measurement that fails, or exceeds it by more than the factor `IMPOSSIBLE` if
    it is confirmed. Without a data sheet, clocks and widths replace a failed one, else `missing` has the reason.
    Raises UsageError if no run can be timed at present.
    """
    try:
        benchmarks = benchmarks_for(machine)
    except ImportError as error:
        missing = dict.fromkeys(("memory", *map(str, Precision), "launch"), f"needs {error.name} to be measured")
        return Ceilings(machine.name, dict(machine.key), missing=missing)
    return _Calibration(machine, benchmarks, budget_s, say).run(clock)


class _Calibration:
    def __init__(self, machine: Machine, benchmarks: Benchmarks, budget_s: float, say: Callable[[str], None]) -> None:
        self._machine, self._benchmarks, self._budget_s, self._say = machine, benchmarks, budget_s, say
        self._host = machine.kind in HOSTS
        self._expected = Expected()
        self._measured = False
        self._missing: dict[str, str] = {}

    def run(self, clock: Clock) -> Ceilings:
        with self._benchmarks.undisturbed():
            key, memory_now = dict(self._machine.key), self._machine.memory()
            total = None if memory_now is None else memory_now.total
            self._expected = expected(facts_of(self._machine.name, key, total))
            # Many disturbances last about a second, so the turns of the memory are spread over the calibration.
            turns = [self._memory()]
            compute = self._compute()
            turns.append(self._memory())
            caches = self._caches()
            turns.append(self._memory())
            launch_s = self._attempt("launch", self._launch)
            cold_launch_s = self._attempt("cold launch", self._cold_launch)
            fault_s = self._attempt("first touch", self._fault) if self._host else None
            memory = max((turn for turn in turns if turn is not None), default=None)
            levels = self._levels(memory, caches)
        return Ceilings(
            machine=self._machine.name,
            key=key,
            compute=compute,
            levels=levels,
            launch_s=launch_s,
            cold_launch_s=cold_launch_s,
            fault_s=fault_s,
            missing=self._missing,
            calibrated_ns=clock.now_ns() if self._measured else 0,
        )

    def _attempt(self, name: str, measure: Callable[[], float]) -> float | None:
        """The result of `measure`. If it fails: None, with the reason in `missing`."""
        try:
            value = measure()
        except GpuProfileError:  # concerns every measurement: no run can be timed now
            raise
        except Exception as error:  # noqa: BLE001 - a missing data type, kernel or memory costs one ceiling only
            self._missing[name] = _reason(error)
            return None
        self._measured = True
        return value

    def _ceiling(self, name: str, sheet: Ceiling | None, measured: float | None, unit: str) -> Ceiling | None:
        """The ceiling of this name: the measurement, else `sheet`, the figure of data sheet or formula, else None."""
        if measured is not None:
            self._missing.pop(name, None)  # one of several turns may have failed
            return believed(measured, None if name in self._expected.unsure else sheet, unit)
        if sheet is not None:
            return sheet._replace(note=f"{sheet.note}; not measured: {self._missing.pop(name)}")
        if not self._host and self._expected.reason:
            self._missing[name] += f"; {self._expected.reason}"
        return None

    def _memory(self) -> float | None:
        """Bytes per second of the memory, in one of its turns."""
        self._say("measuring the memory's bandwidth")
        return self._attempt("memory", lambda: self._bandwidth(self._memory_size(), MEMORY_SHARE / 3))

    def _caches(self) -> list[tuple[str, int, float]]:
        """`(name, bytes, bytes per second)` of each cache that could be measured, the smallest first."""
        caches = []
        for name, size in self._benchmarks.caches():
            self._say(f"measuring the {name} cache's bandwidth")
            rate = self._attempt(name, partial(self._bandwidth, size // 2, CACHE_SHARE))
            if rate is not None:
                caches.append((name, size, rate))
        return caches

    def _levels(self, memory: float | None, caches: list[tuple[str, int, float]]) -> tuple[Level, ...]:
        """The memory, preceded by each cache that is faster than the next level."""
        bandwidth = self._ceiling("memory", self._expected.memory, memory, "B/s")
        levels = [Level("memory", None, bandwidth)] if bandwidth else []
        for name, size, rate in reversed(caches):
            if levels and rate < FASTER * levels[0].bandwidth.value:
                self._missing[name] = f"operations within it are no faster than with {levels[0].name} behind them"
            else:
                levels.insert(0, Level(name, size, Ceiling(rate, "measured")))
        return tuple(levels)

    def _memory_size(self) -> int:
        """Bytes of three arrays for the memory's bandwidth. MemoryError: only arrays fit that the cache would hold."""
        cache = self._machine.cache_bytes or 0
        wanted, room = max(BEYOND_CACHE * cache, PROCESSOR_LEAST if self._host else GPU_LEAST), self._room()
        if room is None or room >= wanted:
            return wanted
        if room < max(BEYOND_CACHE * cache // 2, LEAST_BYTES):
            raise MemoryError
        return room

    def _room(self) -> int | None:
        memory = self._machine.memory()
        return None if memory is None else int(OF_FREE * memory.free)

    def _bandwidth(self, size: int, share: float) -> float:
        """Bytes per second within three arrays of `size` bytes together."""
        ways = self._benchmarks.traffic(size)
        budget_s = share * self._budget_s / len(ways)
        return max(way.bytes / self._seconds(way.call, _Budget(budget_s), runs=RUNS) for way in ways)

    def _compute(self) -> dict[Precision, Ceiling]:
        reasons = self._benchmarks.precisions()
        share_s = PRODUCT_SHARE * self._budget_s / max(1, sum(not reason for reason in reasons.values()))
        ceilings: dict[Precision, Ceiling] = {}
        for precision, reason in reasons.items():
            name, measured = str(precision), None
            if reason:
                self._missing[name] = reason
            else:
                self._say(f"measuring {name} arithmetic")
                measured = self._attempt(name, partial(self._rate, precision, share_s))
            ceiling = self._ceiling(name, self._expected.compute.get(precision), measured, "FLOP/s")
            if ceiling is not None:
                ceilings[precision] = ceiling
        return ceilings

    def _rate(self, precision: Precision, share_s: float) -> float:
        """FLOPs per second of products. They grow until they get no faster, or until the next would take too long.

        The rest of the budget goes to more runs of the best size: on a busy machine they come nearer to the ceiling.
        """
        best, best_n, stalls, budget = 0.0, 0, 0, _Budget(share_s)
        with self._benchmarks.arithmetic(precision):
            for n in PROCESSOR_SIZES if self._host else GPU_SIZES:
                fits = self._fits(precision, n)
                # A size costs at least two runs.
                if best and (stalls == STALLS or not fits or 4 * n**3 / best > budget.left):
                    break
                if not fits:
                    raise MemoryError
                rate = self._product_rate(precision, n, budget, most=RUNS)
                stalls = 0 if rate > GAIN * best else stalls + 1
                best, best_n = max((best, best_n), (rate, n))
            if not budget.over:
                best = max(best, self._product_rate(precision, best_n, budget))
        return best

    def _fits(self, precision: Precision, n: int) -> bool:
        room = self._room()
        return room is None or ELEMENT_BYTES[precision] * n * n <= room

    def _product_rate(self, precision: Precision, n: int, budget: _Budget, *, most: int = MOST_RUNS) -> float:
        call = self._benchmarks.product(precision, n)
        return 2 * n**3 / self._seconds(call, budget, runs=1, most=most)

    def _launch(self) -> float:
        """The median device time of an operation on one element, in seconds."""
        self._say("measuring an empty launch")
        call, budget = self._benchmarks.nothing(), _Budget(LAUNCH_SHARE * self._budget_s)
        for _ in range(5):
            self._machine.run(call)
        times: list[float] = []
        while len(times) < LAUNCHES or (not budget.over and len(times) < 10 * LAUNCHES):
            timing = self._machine.run(call)[1]
            budget.add(timing)
            times.append(timing.device_s)
        times.sort()
        return _positive(times[len(times) // 2])

    def _cold_launch(self) -> float:
        """The longest median device time of the small operations, in seconds. Their code is in no cache.

        As in `_launch` and in a single run by the user, the device is otherwise idle, so its wait for the host counts.
        """
        longest = 0.0
        for call in self._benchmarks.small():
            self._machine.run(call)
            times = list[float]()
            for _ in range(COLD_LAUNCHES):
                self._machine.flush()
                times.append(self._machine.run(call)[1].device_s)
            times.sort()
            longest = max(longest, times[len(times) // 2])
        return _positive(longest)

    def _fault(self) -> float:
        """Seconds that the first touch of a page adds to writing it. ArithmeticError: too few pages were new."""
        call = self._benchmarks.fresh(FRESH_BYTES)
        timings = [self._machine.run(call)[1] for _ in range(RUNS)]
        memory = self._benchmarks.traffic(FRESH_BYTES)[0]
        faults = sorted(timing.faults for timing in timings)[RUNS // 2]
        if faults < LEAST_FAULTS:
            raise ArithmeticError("memory that was just made had been touched before")
        took = sorted(timing.device_s for timing in timings)[RUNS // 2]
        written = FRESH_BYTES / memory.bytes * min(self._machine.run(memory.call)[1].device_s for _ in range(RUNS))
        return _positive((took - written) / faults)

    def _seconds(self, call: Call, budget: _Budget, *, runs: int, most: int = MOST_RUNS) -> float:
        """Device seconds of one call, from at least `runs` runs, and up to `most` as the budget allows."""
        # The first run loads libraries and touches memory, which may take longer than all others. The budget counts it
        # as one more run like the second.
        self._machine.run(call)
        timing = self._machine.run(call)[1]
        budget.add(timing)
        second = budget.add(timing)
        calls = max(1, min(MOST_CALLS, math.ceil(RUN_S / _positive(second))))
        times = [second] if calls == 1 else []
        while len(times) < runs or (not budget.over and len(times) < most):
            times.append(budget.add(self._machine.run(lambda: repeat(call, calls))[1]) / calls)
        times.sort()
        return _positive(times[max(len(times) // 20, int(len(times) >= 3))])


class _Budget:
    """The remaining seconds for runs."""

    def __init__(self, budget_s: float) -> None:
        self.left = budget_s

    def add(self, timing: Timing) -> float:
        """Subtract a run from the budget. Returns its device seconds."""
        self.left -= max(timing.device_s, timing.host_s)
        return timing.device_s

    @property
    def over(self) -> bool:
        return self.left <= 0


def repeat(call: Call, times: int) -> None:
    """Call `call` `times` times."""
    for _ in range(times):
        call()


def believed(measured: float, sheet: Ceiling | None, unit: str) -> Ceiling:
    """The measurement as a ceiling, unless it exceeds a figure of a data sheet by more than the factor `IMPOSSIBLE`."""
    if sheet is None or sheet.source != "datasheet":
        return Ceiling(measured, "measured")
    share = measured / sheet.value
    if share > IMPOSSIBLE:
        note = f"{sheet.note}; measured {si(measured, unit)}, which is impossible"
        return sheet._replace(note=note)
    if share < FAR_BELOW:
        note = f"reaches {percent(share, 0)} of the data sheet's {si(sheet.value, unit)}: throttled, shared or limited?"
        return Ceiling(measured, "measured", note)
    return Ceiling(measured, "measured")


def _positive(seconds: float) -> float:
    """The seconds. Raises ArithmeticError if they are 0: such a run has no rate."""
    if not seconds > 0:
        raise ArithmeticError("it took less time than the device's clock resolves")
    return seconds


def _reason(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    short = isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__
    if short or "out of memory" in text.lower() or "allocate memory" in text.lower():
        return NO_MEMORY
    return f"{type(error).__name__}: {text[:160]}" if text else type(error).__name__


def benchmarks_for(machine: Machine) -> Benchmarks:
    """The benchmarks of the machine's own library. Raises ImportError if it is not installed."""
    if machine.kind == "host":
        import numpy

        from gpu_profile.roofline.ceilings.array_benchmarks import ArrayBenchmarks

        return ArrayBenchmarks(machine, numpy)
    if machine.kind == "cupy":
        from gpu_profile.roofline.ceilings.array_benchmarks import ArrayBenchmarks

        return ArrayBenchmarks(machine, import_module("cupy"))
    from gpu_profile.roofline.ceilings.torch_benchmarks import TorchBenchmarks

    return TorchBenchmarks(machine)
