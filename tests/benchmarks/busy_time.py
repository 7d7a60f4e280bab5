"""Busy time of single regions on a sensor that averages over a trailing window, against the truth and a naive poller.

Simulated GPUs behind the NVML driver and the sampler, on a clock that is moved by hand. Regions are 100 % busy after
idle time, or idle after work, at phases as they come; each is judged as soon as a reading covers its end, with what the
process knows by then. The naive poller is what people write: the mean of the readings that it got during the region.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple
from unittest.mock import patch

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rows import Row
from gpu_profile.catalogue.samples import Interval
from gpu_profile.catalogue.signals import UTILIZATION
from gpu_profile.driver import simulated
from gpu_profile.driver.grammar import open_driver
from gpu_profile.driver.nvml.queries import RATES
from gpu_profile.driver.nvml.readers import READERS
from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work
from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.busy import busy_time, settled
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import START_NS, FakeClock
from gpu_profile.units import NS_PER_S, nanoseconds

Kind = Literal["busy", "idle", "bursty"]

_MS: Final = 1_000_000
LENGTHS_S: Final = (0.15, 0.5, 1.0, 2.0, 5.0)
PHASES: Final = 200
#: What comes before and after a region, s: longer than any window and what polls leave open.
_GAPS_S: Final = (1.2, 1.6)
#: The longest that a region is waited for.
_PATIENCE_S: Final = 1.0
#: Of a device's functions at every round, only utilisation is there: the rest costs time, and says nothing here.
_SILENT: Final = (
    *(reader.field for reader in READERS.values() if reader.field),
    *dict.fromkeys(
        name
        for reader in READERS.values()
        if reader.query not in (None, RATES) and (name := reader.query.needs[0]).startswith("nvmlDevice")
    ),
    "nvmlDeviceGetMemoryInfo_v2",
    "NVML_MEMORY_UTILIZATION_SAMPLES",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A sensor's window and refresh in ms, and how it is read: every `poll_ms`, or by its driver's own buffer (0).

    `counters`: the GPU has activity counters beside it, sampled as often as they allow.
    """

    window_ms: float = 1000.0
    refresh_ms: float = 100.0
    poll_ms: int = 0
    counters: bool = False

    @property
    def words(self) -> str:
        """How it is read."""
        return f"polled every {self.poll_ms} ms" if self.poll_ms else "driver's buffer"

    @property
    def sensor(self) -> str:
        """What it is."""
        if self.counters:
            return "activity counters"
        return f"{self.window_ms:.0f} ms window every {self.refresh_ms:.0f} ms, {self.words}"


class Case(NamedTuple):
    """One region: what it was said to be and what it was, as shares of its length."""

    kind: Kind
    length_s: float
    value: float | None
    low: float
    high: float
    sure: bool
    truth: float
    naive: float | None
    waited_s: float

    @property
    def off(self) -> float:
        """The error, as a share of the region's length."""
        return float("inf") if self.value is None else abs(self.value - self.truth)


class World:
    """A process on one simulated GPU of a `Setting`, sampling."""

    def __init__(self, directory: Path, setting: Setting, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        # A process's clock ticks in nanoseconds, and knows nothing of the sensor's.
        self.clock = FakeClock(START_NS + int(self.rng.integers(NS_PER_S)))
        names = ", ".join(
            f'"{name}"' for name in (*_SILENT, *(["NVML_GPU_UTILIZATION_SAMPLES"] if setting.poll_ms else []))
        )
        text = f'start_ns = {START_NS}\n[[device]]\nmodel = "trailing"\nunsupported = [{names}]\n'
        self.node = simulated.create(directory, text, clock=self.clock)
        self.queue = SimulatedQueue(self.node, clock=self.clock)
        self.sampler = Sampler(
            lambda: open_driver(f"simulated:{self.node}", clock=self.clock),
            clock=self.clock,
            interval_s=setting.poll_ms / 1000 or (0.1 if setting.counters else 1.0),
            retention_s=120,
        )
        self._due_ns = self.clock.now_ns()
        self.run(0.001)

    @property
    def timeline(self) -> Timeline:
        """The GPU's."""
        return self.sampler.timelines[0]

    def run(self, seconds: float, *, until_settled_ns: int | None = None) -> None:
        """Let time pass in which the sampler reads when it is due, up to 0.3 ms late."""
        end_ns = self.clock.now_ns() + nanoseconds(seconds)
        while (now := self.clock.now_ns()) < end_ns:
            if now >= self._due_ns:
                late = 1 + int(self.rng.integers(300_000))
                self._due_ns = now + nanoseconds(self.sampler.step()) + late
                if until_settled_ns is not None and settled(self.timeline, until_settled_ns):
                    return
            self.clock.advance((min(end_ns, max(self._due_ns, now + 1)) - now) / NS_PER_S)

    def work(self, seconds: float) -> None:
        """Keep the GPU busy for so long, from now on."""
        self.queue.launch(Work(seconds=seconds, flops=1e9, bytes=1e9))


def cases(setting: Setting, kind: Kind, lengths_s: Sequence[float], seed: int = 1) -> list[Case]:
    """Regions of these lengths, one after the other in one process."""
    window, refresh = (round(ms * _MS) for ms in (setting.window_ms, setting.refresh_ms))
    model = MODELS["H200 SXM" if setting.counters else "A10G"]
    model = replace(model, key="trailing", utilization_window_ns=window, utilization_refresh_ns=refresh)
    with tempfile.TemporaryDirectory() as directory, patch.dict(MODELS, {"trailing": model}):
        world = World(Path(directory) / "node", setting, seed)
        try:
            found = [_case(world, kind, length) for length in lengths_s]
            truth = Truth(world.node, clock=world.clock)
            return [case._replace(truth=_true(truth, world, at)) for case, at in found]
        finally:
            world.sampler.stop()
            world.queue.close()


def _true(truth: Truth, world: World, at: Interval) -> float:
    seconds = (at.end_ns - at.start_ns) / NS_PER_S
    return truth.device(world.queue.device_uuid, at.start_ns, at.end_ns).busy_s / seconds


def _case(world: World, kind: Kind, length: float) -> tuple[Case, Interval]:
    gap = float(world.rng.uniform(*_GAPS_S))
    left = world.queue.pending_ns / NS_PER_S
    if kind == "idle":
        world.work(gap)
    _pass(world, kind, left + gap)
    start = world.queue.record().passed_ns
    if kind == "busy":
        world.work(length)
    _pass(world, kind, length)
    at = Interval(start, start + nanoseconds(length), "device")
    if kind == "idle":
        world.work(_PATIENCE_S)
    before = world.clock.now_ns()
    world.run(_PATIENCE_S, until_settled_ns=at.end_ns)
    waited = (world.clock.now_ns() - before) / NS_PER_S
    busy = busy_time(world.timeline, at)
    column = world.timeline.columns[UTILIZATION]
    starts, ends, masses = column.edges(at.start_ns, at.end_ns)
    naive = float((masses / (ends - starts)).mean()) / 100 if len(ends) else None
    if busy is None:
        return Case(kind, length, None, 0.0, 1.0, False, 0.0, naive, waited), at
    low, high = busy.low_s / length, busy.high_s / length
    return Case(kind, length, busy.share, low, high, busy.sure, 0.0, naive, waited), at


def _pass(world: World, kind: Kind, seconds: float) -> None:
    """Let time pass; under a bursty load, with work for 30 to 70 ms of every 100."""
    end_ns = world.clock.now_ns() + nanoseconds(seconds)
    while kind == "bursty" and (left := (end_ns - world.clock.now_ns()) / NS_PER_S) > 0:
        world.work(float(world.rng.uniform(0.03, 0.07)))
        world.run(min(left, 0.1))
    world.run(max(0.0, (end_ns - world.clock.now_ns()) / NS_PER_S))


# ---------------------------------------------------------------------- the table


def rows(phases: int = PHASES) -> Iterator[Row]:
    """One row for each way of reading and length, then other sensors, first regions, and a load in bursts."""
    trailing = [Setting(), Setting(poll_ms=50), Setting(poll_ms=200)]
    others = [
        Setting(window, refresh, poll) for window, refresh in ((1000 / 6, 1000 / 6), (500.0, 100.0)) for poll in (0, 50)
    ]
    others.append(Setting(counters=True))
    plan: list[tuple[Setting, Kind, int]] = [(s, kind, phases) for s in trailing for kind in ("busy", "idle")]
    plan += [(s, kind, phases // 8) for s in others for kind in ("busy", "idle")]
    plan += [(s, "bursty", phases // 8) for s in trailing[:2]]
    order = np.random.default_rng(7)
    with ProcessPoolExecutor() as workers:
        tasks = [
            workers.submit(cases, setting, kind, order.permutation(np.repeat(LENGTHS_S, count)).tolist(), seed)
            for seed, (setting, kind, count) in enumerate(plan)
        ]
        first = [workers.submit(_first, seed) for seed in range(phases // 8)]
        results = [task.result() for task in tasks]
    found: dict[Setting, list[Case]] = {}
    for (setting, _, _), result in zip(plan, results, strict=True):
        found.setdefault(setting, []).extend(result)
    for setting in trailing:
        for length in LENGTHS_S:
            yield _length(setting, [c for c in found[setting] if c.length_s == length and c.kind != "bursty"])
    for setting in others:
        yield _overall(setting, found[setting])
    yield _firsts([case for task in first for case in task.result()])
    for setting in trailing[:2]:
        yield _bursty(setting, [c for c in found[setting] if c.kind == "bursty"])


def _length(setting: Setting, found: Sequence[Case]) -> Row:
    length = found[0].length_s
    limit = 0.05 if length >= 0.5 else 0.1
    good = {kind: _share(c.off <= limit for c in found if c.kind == kind) for kind in ("busy", "idle")}
    unflagged = [c for c in found if c.sure]
    wrong = sum(c.off > 0.1 for c in unflagged)
    refused = sum(c.value is None for c in found)
    waited = float(np.quantile([c.waited_s for c in found], 0.95)) * 1e3
    figure = (
        f"within {limit:.0%}: busy {good['busy']:.1%}, idle {good['idle']:.1%}; {len(found) - len(unflagged)} of"
        f" {len(found)} flagged, {refused} without an answer, {wrong} wrong but not flagged;"
        f" bounds hold {_held(found):.1%}; waited {waited:.0f} ms (95 %)"
    )
    naive = [abs(c.naive - c.truth) for c in found if c.naive is not None]
    baseline = f"naive poller off by {np.median(naive):.0%} (median), {_share(e <= limit for e in naive):.0%} within"
    name = f"busy time of {length:g} s regions, 1 s window every 100 ms, {setting.words}"
    if length >= 0.5:
        ok, reach = min(good.values()) >= 0.95 and not wrong, ">=95 % within 5 %"
    else:
        ok, reach = not wrong, "within 10 % or flagged"
    return Row(name, figure, baseline, "-", reach, ok, 1 - min(good.values()))


def _overall(setting: Setting, found: Sequence[Case]) -> Row:
    long = [c for c in found if c.length_s >= 0.5]
    good = {length: _share(c.off <= 0.05 for c in long if c.length_s == length) for length in LENGTHS_S[1:]}
    each = ", ".join(f"{length:g} s {share:.1%}" for length, share in good.items())
    wrong = sum(c.sure and c.off > 0.1 for c in found)
    flagged = sum(not c.sure for c in long)
    naive = [abs(c.naive - c.truth) for c in long if c.naive is not None]
    return Row(
        f"busy time, {setting.sensor}",
        f"within 5 %: {each}; {flagged} of {len(long)} flagged, {wrong} wrong but not flagged;"
        f" bounds hold {_held(found):.1%}",
        f"naive poller off by {np.median(naive):.0%} (median)",
        cost=1 - min(good.values()),
    )


def _first(seed: int) -> list[Case]:
    """The first regions of two processes that begin a second or so before them."""
    return [case for kind in ("busy", "idle") for case in cases(Setting(), kind, [1.0], seed)]


def _firsts(found: Sequence[Case]) -> Row:
    good, flagged = _share(c.off <= 0.05 for c in found), sum(not c.sure for c in found)
    wrong = sum(c.sure and c.off > 0.1 for c in found)
    return Row(
        "busy time of a process's first region, 1 s, 1 s window every 100 ms, driver's buffer",
        f"within 5 %: {good:.1%}; {flagged} of {len(found)} flagged, {wrong} wrong but not flagged;"
        f" bounds hold {_held(found):.1%}",
        reach="none wrong",
        ok=not wrong,
        cost=1 - good,
    )


def _bursty(setting: Setting, found: Sequence[Case]) -> Row:
    held, sure = _held(found), _share(c.sure for c in found if c.length_s >= 0.5)
    off = float(np.median([c.off for c in found if c.length_s >= 0.5]))
    return Row(
        f"busy time under bursts of 30-70 ms, 1 s window every 100 ms, {setting.words}",
        f"bounds hold {held:.1%} of {len(found)}; from 0.5 s on off by {off:.1%} (median), {sure:.0%} sure",
        "-",
        "-",
        "bounds hold >=95 %",
        held >= 0.95,
        1 - held,
    )


def _held(found: Sequence[Case]) -> float:
    """The share of regions whose true busy time lies between the bounds (to a millionth of their length)."""
    return _share(c.low - 1e-6 <= c.truth <= c.high + 1e-6 for c in found)


def _share(values: Iterator[bool]) -> float:
    every = list(values)
    return sum(every) / len(every) if every else 1.0


if __name__ == "__main__":
    for row in rows(int(sys.argv[1]) if len(sys.argv) > 1 else PHASES):
        print(row, flush=True)
