"""Measures what a machine can do at most, within seconds.

A ceiling is what can be reached, so the shortest run counts, not the usual one: whatever else goes on makes runs
longer, never shorter. A clock that is wrong now and then can make one shorter, so the shortest twentieth of the runs,
or of three or more the shortest one, does not count.
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

#: Seconds that a calibration takes, without what it takes to allocate and to load libraries.
BUDGET_S: Final = 3.0
#: Parts of the budget for the memory in three turns, for each cache, for all products together, for empty launches.
MEMORY_SHARE, CACHE_SHARE, PRODUCT_SHARE, LAUNCH_SHARE = 0.25, 0.05, 0.55, 0.05
#: One timed run lasts at least this long: short calls are repeated within it, so that neither the clock's resolution
#: nor the way to it counts.
RUN_S: Final = 2e-3
MOST_CALLS: Final = 1000
#: A bandwidth is of so many runs at least, and at most.
RUNS, MOST_RUNS = 5, 200
#: As many runs of each small operation after the caches were overwritten, which takes milliseconds each.
COLD_LAUNCHES: Final = 9
#: An array of this size is in memory that no allocator had before, and has so many pages at least, even huge ones.
FRESH_BYTES: Final = 64 << 20
LEAST_FAULTS: Final = 16
#: An empty launch is the median of so many at least.
LAUNCHES: Final = 101
#: Three arrays are of so many times the last cache in all: the two that a copy touches are four times as large as it,
#: as STREAM wants it, so that next to nothing of them is found there. Less than half of that measures the cache.
BEYOND_CACHE: Final = 6
#: Nor are fewer bytes than this any measure of a memory.
LEAST_BYTES: Final = 16 << 20
#: Sizes of matrices, growing. Processors are saturated early, GPUs late.
PROCESSOR_SIZES: Final = (256, 512, 1024, 2048, 4096)
GPU_SIZES: Final = (1024, 2048, 4096, 8192)
#: The least working set for memory, in bytes: kernels start and end at full speed only if they are long.
PROCESSOR_LEAST: Final = 256 << 20
GPU_LEAST: Final = 1 << 30
#: What is allocated at most, as a part of the memory that is free.
OF_FREE: Final = 0.25
#: A cache that is not faster than what is behind it by this is no roof of its own.
FASTER: Final = 1.1
#: So many larger sizes that are not faster by more than this end a sweep.
STALLS, GAIN = 2, 1.01
#: Less than this of the data sheet's is worth a remark.
FAR_BELOW: Final = 0.5
#: Machines that no data sheet or formula is for.
HOSTS: Final = frozenset({"cpu", "host"})
#: How reasons say that memory was short.
NO_MEMORY: Final = "not enough free memory"


def ignore(text: str) -> None:
    """Say it to nobody."""


def calibrate(
    machine: Machine, *, budget_s: float = BUDGET_S, say: Callable[[str], None] = ignore, clock: Clock = SYSTEM_CLOCK
) -> Ceilings:
    """Measure the machine's ceilings in about `budget_s` seconds; `say` hears what is being measured.

    Bandwidth: the best of a copy (2 elements moved for each) and STREAM's triad (3 elements; McCalpin 1995), far beyond
    the last cache for the memory, and within half of each cache. As in STREAM, what a processor reads only to overwrite
    it (write-allocate) is not counted. Compute: the best of square matrix products of growing size, 2 n³ operations
    each. Launch: the median of operations on one element.

    What cannot be measured is the data sheet's where there is one, else `missing` says why; so are measurements that
    exceed what the data sheet says by more than `IMPOSSIBLE`. UsageError if the device cannot be timed at present.
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
            # Of what goes on beside it, much lasts about a second: the memory's turns are apart.
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
        """What `measure` gives; None, and the reason in `missing`, if it fails in whichever way."""
        try:
            found = measure()
        except GpuProfileError:  # not this part alone: no run can be timed now
            raise
        except Exception as error:  # noqa: BLE001 - a data type, a kernel or memory that is not there costs one ceiling
            self._missing[name] = _reason(error)
            return None
        self._measured = True
        return found

    def _ceiling(self, name: str, known: Ceiling | None, measured: float | None, unit: str) -> Ceiling | None:
        """The ceiling with this name, from what was measured and what is known of the device otherwise."""
        if measured is not None:
            self._missing.pop(name, None)  # one of several turns may have failed
            return believed(measured, None if name in self._expected.unsure else known, unit)
        if known is not None:
            return known._replace(note=f"{known.note}; not measured: {self._missing.pop(name)}")
        if not self._host and self._expected.reason:
            self._missing[name] += f"; {self._expected.reason}"
        return None

    def _memory(self) -> float | None:
        """Bytes per second of the memory, in one of its turns."""
        self._say("measuring the memory's bandwidth")
        return self._attempt("memory", lambda: self._bandwidth(self._memory_size(), MEMORY_SHARE / 3))

    def _caches(self) -> list[tuple[str, int, float]]:
        """Name, size and bytes per second of those that could be measured, the smallest first."""
        found = []
        for name, size in self._benchmarks.caches():
            self._say(f"measuring the {name} cache's bandwidth")
            rate = self._attempt(name, partial(self._bandwidth, size // 2, CACHE_SHARE))
            if rate is not None:
                found.append((name, size, rate))
        return found

    def _levels(self, memory: float | None, caches: list[tuple[str, int, float]]) -> tuple[Level, ...]:
        """The memory, and before it each cache that is faster than what is behind it."""
        known = self._ceiling("memory", self._expected.memory, memory, "B/s")
        levels = [Level("memory", None, known)] if known else []
        for name, size, rate in reversed(caches):
            if levels and rate < FASTER * levels[0].bandwidth.value:
                self._missing[name] = f"operations within it are no faster than with {levels[0].name} behind them"
            else:
                levels.insert(0, Level(name, size, Ceiling(rate, "measured")))
        return tuple(levels)

    def _memory_size(self) -> int:
        """Bytes of three arrays for the memory's bandwidth. MemoryError if those that fit would be in the cache."""
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
        """Bytes per second within three arrays of `size` bytes in all."""
        ways = self._benchmarks.traffic(size)
        budget_s = share * self._budget_s / len(ways)
        return max(way.bytes / self._seconds(way.call, _Budget(budget_s), runs=RUNS) for way in ways)

    def _compute(self) -> dict[Precision, Ceiling]:
        reasons = self._benchmarks.precisions()
        share_s = PRODUCT_SHARE * self._budget_s / max(1, sum(not reason for reason in reasons.values()))
        found: dict[Precision, Ceiling] = {}
        for precision, reason in reasons.items():
            name, measured = str(precision), None
            if reason:
                self._missing[name] = reason
            else:
                self._say(f"measuring {name} arithmetic")
                measured = self._attempt(name, partial(self._rate, precision, share_s))
            ceiling = self._ceiling(name, self._expected.compute.get(precision), measured, "FLOP/s")
            if ceiling is not None:
                found[precision] = ceiling
        return found

    def _rate(self, precision: Precision, share_s: float) -> float:
        """FLOPs per second of products that grow until they get no faster, or the next would take too long.

        What is left of the time then goes to the best size: on a busy machine, more runs come nearer to the ceiling.
        """
        best, best_n, stalls, budget = 0.0, 0, 0, _Budget(share_s)
        with self._benchmarks.arithmetic(precision):
            for n in PROCESSOR_SIZES if self._host else GPU_SIZES:
                fits = self._fits(precision, n)
                # A size costs two runs at least.
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
        """The median device time of an operation that does next to nothing."""
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
        """The median device time of a small operation whose code is in no cache, of the one that takes longest.

        As in `_launch` and a single run of the user's, the device has nothing else to do: its wait for the host is in.
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
        """How long a page takes that is touched for the first time, beyond writing it. ArithmeticError if none is."""
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
        """How long one call takes on the device: of at least `runs` runs, and up to `most` as the budget allows."""
        # The first loads libraries and touches memory, which may take longer than all the rest: it is not counted as it
        # is, but as one more of the second.
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
    """Seconds that runs may take, and how many of them are left."""

    def __init__(self, budget_s: float) -> None:
        self.left = budget_s

    def add(self, timing: Timing) -> float:
        """Count a run; its time on the device."""
        self.left -= max(timing.device_s, timing.host_s)
        return timing.device_s

    @property
    def over(self) -> bool:
        return self.left <= 0


def repeat(call: Call, times: int) -> None:
    """Call so often."""
    for _ in range(times):
        call()


def believed(measured: float, sheet: Ceiling | None, unit: str) -> Ceiling:
    """The ceiling, given what was measured and what the data sheet says, if a sure one does."""
    if sheet is None or sheet.source != "datasheet":
        return Ceiling(measured, "measured")
    share = measured / sheet.value
    if share > IMPOSSIBLE:
        note = f"{sheet.note}; measured {si(measured, unit)}, which is more than can be"
        return sheet._replace(note=note)
    if share < FAR_BELOW:
        note = f"reaches {percent(share, 0)} of the data sheet's {si(sheet.value, unit)}: throttled, shared or limited?"
        return Ceiling(measured, "measured", note)
    return Ceiling(measured, "measured")


def _positive(seconds: float) -> float:
    """A device so fast that its clock sees nothing has no rate."""
    if not seconds > 0:
        raise ArithmeticError("it took no time that the device's clock can tell")
    return seconds


def _reason(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    short = isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__
    if short or "out of memory" in text.lower() or "allocate memory" in text.lower():
        return NO_MEMORY
    return f"{type(error).__name__}: {text[:160]}" if text else type(error).__name__


def benchmarks_for(machine: Machine) -> Benchmarks:
    """What the machine's own library can have it do. ImportError if the library is not there."""
    if machine.kind == "host":
        import numpy

        from gpu_profile.roofline.ceilings.array_benchmarks import ArrayBenchmarks

        return ArrayBenchmarks(machine, numpy)
    if machine.kind == "cupy":
        from gpu_profile.roofline.ceilings.array_benchmarks import ArrayBenchmarks

        return ArrayBenchmarks(machine, import_module("cupy"))
    from gpu_profile.roofline.ceilings.torch_benchmarks import TorchBenchmarks

    return TorchBenchmarks(machine)
