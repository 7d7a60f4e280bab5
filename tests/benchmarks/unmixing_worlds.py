"""Loads whose truth is known, and what a sensor says of them: seeded, for the study of unmixing.

A world is a device that idles at 90 W and runs a few regions of 2-20 ms that draw 120-650 W each. Times inside a world
are ns after its origin; activities and samples carry times since the epoch, as a session's do.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import ENERGY, POWER_AVERAGE, POWER_LIMIT
from gpu_profile.history.timeline import Floats, Ints, Timeline
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.solving.rate import WIDEST_HALF_WIDTH, Z95
from gpu_profile.join.unmixing.windows.activities import DeviceExecution
from gpu_profile.units import NS_PER_S

MS: Final = 1_000_000
ORIGIN_NS: Final = 1_700_000_000 * NS_PER_S
IDLE_W: Final = 90.0
#: What a driver says that the board draws at most, as every one does that tells power.
LIMIT_W: Final = 700.0
#: Relative spread of an execution's power, and what a reading's error is made of.
POWER_SPREAD: Final = 0.05
NOISE_W: Final = 3.0
STEP_W: Final = 1.0
#: How often the driver renews its energy counter.
RENEWAL_NS: Final = 100 * MS
#: No execution is longer: 20 ms, half as long again, and as much of a fixed loop's stretching.
_LONGEST_NS: Final = 60 * MS


@dataclass(frozen=True)
class World:
    """A load and its sensor.

    `order`: every region equally often and at random, or one after the other as in a training loop; `jitter` is by how
    much an execution's length may differ from its region's, either way. `loop_ns` stretches a fixed order to a loop of
    that length exactly. `streams` run beside each other, each with its own queue; `limit_w` is what the device's power
    saturates towards. `backlog_ns` is the mean time that an execution waits on the device after the host began it:
    intervals are then the host's.

    `window_ns` is how far back a power reading looks (a boxcar), or the time constant of its exponential mean. Calls
    come every `step_ns`, earlier or later by up to `wander_ns`. A reading is stamped with the moment of its call, off
    by up to `stamp_error_ns`; what it says is `lag_ns` older.
    """

    seed: int
    order: Literal["random", "fixed"] = "random"
    jitter: float = 0.5
    regions: int = 6
    seconds: int = 60
    window_ns: int = 100 * MS
    step_ns: int = 100 * MS
    stamp_error_ns: int = MS
    lag_ns: int = 0
    wander_ns: int = 0
    shape: Literal["boxcar", "exponential"] = "boxcar"
    signal: Signal = POWER_AVERAGE
    gap_ns: int = MS // 5
    loop_ns: int = 0
    streams: int = 1
    limit_w: float = 0.0
    backlog_ns: int = 0

    # ------------------------------------------------------------------ the load

    @cached_property
    def _regions(self) -> tuple[Floats, Floats]:
        """Typical length in ns and power in W of each region."""
        rng = np.random.default_rng([self.seed, 1])
        lengths = np.exp(rng.uniform(np.log(2), np.log(20), self.regions)) * MS
        return lengths, rng.uniform(120, 650, self.regions)

    @cached_property
    def _load(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Floats]:
        """By execution in the order of their starts: the host's interval, the device's, whose it is, and its power."""
        parts = [self._stream(i) for i in range(self.streams)]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        a, b, c, d, owner, watts = (column[order] for column in columns)
        return a, b, c, d, owner, watts

    def _stream(self, number: int) -> tuple[Ints, Ints, Ints, Ints, Ints, Floats]:
        rng = np.random.default_rng([self.seed, 2, number])
        typical, watts = self._regions
        until = self.seconds * NS_PER_S
        n = int(until / (typical.min() * 0.5 if self.order == "random" else typical.mean() + self.gap_ns)) + 1
        n = int(n * (1 + self.jitter)) + self.regions
        owner = rng.integers(self.regions, size=n) if self.order == "random" else np.arange(n) % self.regions
        lengths = typical[owner] * rng.uniform(1 - self.jitter, 1 + self.jitter, n)
        gaps = rng.exponential(self.gap_ns, n)
        if self.loop_ns:
            gaps[:] = self.gap_ns
            lengths = typical[owner] * (self.loop_ns - self.regions * self.gap_ns) / typical.sum()
        ends = np.cumsum(lengths + gaps)
        starts = ends - lengths
        n = int(np.searchsorted(ends, until))
        a, b = starts[:n].astype(np.int64), ends[:n].astype(np.int64)
        on_a, on_b = a, b
        if self.backlog_ns:
            # One after the other: each begins when its wait is over and the one before it has ended.
            length = b - a
            before = np.cumsum(length) - length
            ready = a + rng.exponential(self.backlog_ns, n).astype(np.int64)
            on_a = np.maximum.accumulate(ready - before) + before
            on_b = on_a + length
        return a, b, on_a, on_b, owner[:n], watts[owner[:n]] * rng.normal(1, POWER_SPREAD, n)

    @property
    def starts(self) -> Ints:
        """When each execution began, as a session is told, in ascending order."""
        return self._load[0]

    @property
    def ends(self) -> Ints:
        """When each execution ended, as a session is told."""
        return self._load[1]

    @property
    def owner(self) -> Ints:
        """The region of each execution."""
        return self._load[4]

    @property
    def truth(self) -> Floats:
        """The power of the device while a region runs alone, in W."""
        return self._limited(self._regions[1])

    def _limited(self, watts: Floats) -> Floats:
        if not self.limit_w:
            return watts
        # Bends softly: 1 % below half the limit, 16 % at the limit, and never above it.
        return np.asarray(watts / (1 + (watts / self.limit_w) ** 4) ** 0.25)

    # ------------------------------------------------------------------ the sensor

    @cached_property
    def _pieces(self) -> tuple[Floats, Floats]:
        """Edges of the pieces of constant power, in ns, and the power in W from each edge to the next."""
        _, _, a, b, _, watts = self._load
        edges, levels = _pieces(a, b, watts - IDLE_W)
        return edges, self._limited(levels + IDLE_W)

    def response(self, edges: Floats, levels: Floats, moments: Floats) -> Floats:
        """What a mean over this sensor's window says at `moments` of a level that is constant from edge to edge."""
        if self.shape == "boxcar":
            mass = np.concatenate(([0.0], np.cumsum(np.diff(edges) * levels[:-1])))
            high = _integral(edges, levels, mass, moments)
            return (high - _integral(edges, levels, mass, moments - self.window_ns)) / self.window_ns
        decays = np.exp(-np.diff(edges) / self.window_ns).tolist()
        means, mean = [], float(levels[0])
        for level, decay in zip(levels.tolist(), [*decays, 0.0], strict=True):
            means.append(mean)
            mean = level + (mean - level) * decay
        at = np.maximum(np.searchsorted(edges, moments, side="right") - 1, 0)
        since = np.maximum(moments - edges[at], 0.0)
        return levels[at] + (np.array(means)[at] - levels[at]) * np.exp(-since / self.window_ns)

    @cached_property
    def readings(self) -> tuple[Ints, Floats]:
        """Stamps in ns and what was read: a mean in W, or the counter in J."""
        rng = np.random.default_rng([self.seed, 3])
        edges, levels = self._pieces
        phase = int(rng.integers(self.step_ns))
        moments = np.arange(self.step_ns + phase, self.seconds * NS_PER_S, self.step_ns)
        moments = moments + rng.uniform(-self.wander_ns, self.wander_ns, len(moments)).astype(np.int64)
        stamps = moments + rng.uniform(-self.stamp_error_ns, self.stamp_error_ns, len(moments)).astype(np.int64)
        moments = moments - self.lag_ns
        if self.signal is ENERGY:
            mass = np.concatenate(([0.0], np.cumsum(np.diff(edges) * levels[:-1])))
            renewals = np.arange(-2, self.seconds * NS_PER_S // RENEWAL_NS + 1) * RENEWAL_NS
            counted = _integral(edges, levels, mass, renewals.astype(np.float64)) / NS_PER_S
            counted += np.cumsum(rng.normal(0, NOISE_W * RENEWAL_NS / NS_PER_S, len(renewals)))
            return stamps, 1000.0 + counted[moments // RENEWAL_NS + 2]
        read = self.response(edges, levels, moments.astype(np.float64)) + rng.normal(0, NOISE_W, len(moments))
        return stamps, np.maximum(np.rint(read / STEP_W) * STEP_W, 0.0)

    def samples(self) -> list[Sample]:
        """The readings as NVML's driver hands them out.

        A polled mean covers the time since the reading before, at most a second; a counter is of its moment.
        """
        stamps, values = self.readings
        ends = (stamps + ORIGIN_NS).tolist()
        quanta = np.rint(values / self.signal.quantum).astype(np.int64).tolist()
        if self.signal.kind is Kind.COUNTER:
            return [Sample(self.signal, end, end, value) for end, value in zip(ends, quanta, strict=True)]
        befores = [ends[0] - self.step_ns, *ends[:-1]]
        return [
            Sample(self.signal, max(before, end - NS_PER_S), end, value)
            for before, end, value in zip(befores, ends, quanta, strict=True)
        ]

    # ------------------------------------------------------------------ what else could be made of it

    def overlap_mean(self) -> Floats:
        """The mean of the windows that overlap each region, weighted with their overlaps: W by region."""
        stamps, values = self.readings
        high = stamps.astype(np.float64)
        if self.signal is ENERGY:
            values, high, low = np.diff(values) * NS_PER_S / np.diff(stamps), high[1:], high[:-1]
        else:
            low = high - self.window_ns
        overlaps = np.array([_active(self.starts, self.ends, self.owner == k, low, high) for k in range(self.regions)])
        return np.asarray(overlaps @ values / overlaps.sum(axis=1))

    def known_sensor(self) -> Floats:
        """Plain least squares by someone who knows the sensor's lag, window and shape: W by region."""
        return self._least_squares[0]

    def identifiable(self) -> np.ndarray:
        """Which regions' 95 % intervals would be narrow enough to be given, if the power sensor were known."""
        rates, half_widths = replace(self, signal=POWER_AVERAGE)._least_squares
        return half_widths < WIDEST_HALF_WIDTH * np.maximum(rates, self.mean_w)

    @cached_property
    def mean_w(self) -> float:
        """The device's mean power."""
        return float(replace(self, signal=POWER_AVERAGE).readings[1].mean())

    @cached_property
    def _least_squares(self) -> tuple[Floats, Floats]:
        stamps, values = self.readings
        moments = (stamps - self.lag_ns).astype(np.float64)
        columns = []
        for k in range(self.regions):
            mine = self.owner == k
            columns.append(self.response(*_pieces(self.starts[mine], self.ends[mine], np.ones(mine.sum())), moments))
        rest = 1 - np.sum(columns, axis=0)
        keep = moments > 5 * self.window_ns
        design, values = np.column_stack([rest, *columns])[keep], values[keep]
        rates = np.linalg.lstsq(design, values, rcond=None)[0]
        noise = float(((values - design @ rates) ** 2).sum()) / max(1, len(values) - len(rates))
        spread = np.sqrt(np.maximum(np.diag(np.linalg.pinv(design.T @ design)), 0.0) * noise)
        return np.asarray(rates[1:]), Z95 * np.asarray(spread[1:])


def _pieces(starts: Ints, ends: Ints, levels: Floats) -> tuple[Floats, Floats]:
    """The sum of levels that each hold over one interval: edges, and the sum from each edge to the next."""
    edges = np.concatenate(([0], starts, ends))
    steps = np.concatenate(([0.0], levels, -levels))
    order = np.argsort(edges, kind="stable")
    return edges[order].astype(np.float64), np.cumsum(steps[order])


def _integral(edges: Floats, levels: Floats, mass: Floats, moments: Floats) -> Floats:
    """The integral of the levels up to `moments`; before the first edge and after the last, the level there holds."""
    inside = np.interp(moments, edges, mass)
    before, after = np.minimum(moments - edges[0], 0.0), np.maximum(moments - edges[-1], 0.0)
    return np.asarray(inside + levels[0] * before + levels[-1] * after)


def _active(starts: Ints, ends: Ints, mine: np.ndarray, low: Floats, high: Floats) -> Floats:
    edges, levels = _pieces(starts[mine], ends[mine], np.ones(int(mine.sum())))
    mass = np.concatenate(([0.0], np.cumsum(np.diff(edges) * levels[:-1])))
    return _integral(edges, levels, mass, high) - _integral(edges, levels, mass, low)


# ---------------------------------------------------------------------- how a pool is fed, and what it holds


def activities(first: int, names: list[str], starts: list[int], ends: list[int | None]) -> Any:
    """Executions in the form that `Pool.advance` takes; the only place that knows it. They are numbered from `first`.

    An end of None: it still runs.
    """
    return [
        DeviceExecution(first + i, None, name, start, end)
        for i, (name, start, end) in enumerate(zip(names, starts, ends, strict=True))
    ]


class Slice(NamedTuple):
    """What ran (as `activities` gives it), how many executions that is, and the end of the slice."""

    running: Any
    n: int
    until_ns: int


class Feed:
    """A pool that is fed a world as a session would, by slices of a second."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.samples = world.samples()
        timeline = Timeline(Device("GPU-bench"), [world.signal, POWER_LIMIT], capacity=len(self.samples) + 2)
        limit = round(LIMIT_W / POWER_LIMIT.quantum)
        timeline.append([Sample(POWER_LIMIT, ORIGIN_NS, ORIGIN_NS, limit)])
        self.pool = Pool(timeline, start_ns=ORIGIN_NS)
        self.starts = (world.starts + ORIGIN_NS).tolist()
        self.ends = (world.ends + ORIGIN_NS).tolist()
        self.names = [f"r{k}" for k in world.owner.tolist()]
        self._taken = 0

    def slices(self, from_s: int = 0, until_s: int = 0, *, step_s: int = 1) -> Iterator[Slice]:
        """The world's slices, in order; to its end if `until_s` is 0."""
        for at in range(from_s, until_s or self.world.seconds, step_s):
            a, b = at * NS_PER_S, (at + step_s) * NS_PER_S
            low = int(np.searchsorted(self.world.starts, a - _LONGEST_NS))
            high = int(np.searchsorted(self.world.starts, b))
            while low < high and self.ends[low] <= a + ORIGIN_NS:
                low += 1
            ends = [end if end <= b + ORIGIN_NS else None for end in self.ends[low:high]]
            running = activities(low, self.names[low:high], self.starts[low:high], ends)
            yield Slice(running, high - low, b + ORIGIN_NS)

    def append(self, until_ns: int) -> None:
        """Give the timeline the samples up to `until_ns`."""
        first = self._taken
        while self._taken < len(self.samples) and self.samples[self._taken].t_end_ns <= until_ns:
            self._taken += 1
        self.pool.timeline.append(self.samples[first : self._taken])

    def advance(self, piece: Slice, *, final: bool = False) -> None:
        """Give the pool the samples of a slice and what ran in it."""
        self.append(piece.until_ns)
        self.pool.advance(piece.running, piece.until_ns, final=final)


def bytes_of_arrays(thing: object) -> int:
    """Bytes of the numpy arrays that a mixture holds, without its timeline."""
    return sum(nbytes for nbytes, is_array in _walk(thing) if is_array)


def bytes_held(thing: object) -> int:
    """Bytes of all that a pool holds, without its timeline: arrays and Python's own objects."""
    return sum(nbytes for nbytes, _ in _walk(thing))


def _walk(root: object) -> Iterator[tuple[int, bool]]:
    seen: set[int] = set()
    todo = [root]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or thing is None or isinstance(thing, (Timeline, type)) or callable(thing):
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray):
            base: Floats | None = thing.base if isinstance(thing.base, np.ndarray) else None
            if base is None:
                yield thing.nbytes, True
            else:
                todo.append(base)
            continue
        yield sys.getsizeof(thing), False
        if isinstance(thing, dict):
            todo += [*thing.keys(), *thing.values()]
        elif isinstance(thing, (list, tuple, set, frozenset)) or type(thing).__name__ == "deque":
            todo += list(thing)  # type: ignore[call-overload]
        elif type(thing).__module__.startswith("gpu_profile") and "catalogue" not in type(thing).__module__:
            slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
            todo += [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, name, None) for name in slots)]


def sensor_of(signal: Signal) -> str:
    return "energy counter" if signal is ENERGY else "mean power"
