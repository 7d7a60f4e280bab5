"""The study of unmixing: how right it is, whether it knows how right it is, and what it costs.

`python -m benchmarks.unmixing [ROW ...]` prints the rows with these numbers, all by default, each when it is there.
Worlds and their truth are made up (`unmixing_worlds`). A seed's error is the mean over its regions, where a refusal
counts as 100 %. A row's is the median over its seeds, and must be within the row's reach. The figure also shows the
error of the numbers alone, and the share of regions that have one.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.rows import HEADER, Row
from benchmarks.unmixing_cost import cost
from benchmarks.unmixing_worlds import MS, ORIGIN_NS, Feed, World, sensor_of
from gpu_profile.catalogue import Signal, signals
from gpu_profile.catalogue.signals import ENERGY, POWER_AVERAGE
from gpu_profile.units import NS_PER_S

#: Worlds of a row. Rows that compare many sensors or stamps take three fifths of them for each.
SEEDS: Final = 10


# ---------------------------------------------------------------------- from a world to rates


class Estimate(NamedTuple):
    """One region's rate in W as the pool gives it (None: refused, `reason` says why), and the truth."""

    value: float | None
    half_width: float
    true: float
    reason: str

    @property
    def error(self) -> float:
        """Relative error; 100 % for a refusal."""
        return 1.0 if self.value is None else abs(self.value / self.true - 1)

    @property
    def covers_all_gpus(self) -> bool:
        """Whether the truth lies in the interval."""
        return self.value is not None and abs(self.value - self.true) <= self.half_width


class Outcome(NamedTuple):
    """What a pool made of a world: a rate per region, and what it found the sensor to be."""

    regions: list[Estimate]
    sensor: Any

    @property
    def given(self) -> list[Estimate]:
        """The regions that have a number."""
        return [region for region in self.regions if region.value is not None]


def estimate(world: World) -> Outcome:
    """What a session would say of a world."""
    feed = Feed(world)
    end = ORIGIN_NS + world.seconds * NS_PER_S
    for piece in feed.slices():
        feed.advance(piece, final=piece.until_ns >= end)
    found = []
    for k, true in enumerate(world.truth.tolist()):
        pooled = feed.pool.pooled(f"r{k}")
        rate = pooled.alone.get(world.signal, pooled.rates.get(world.signal))
        if rate is None:
            found.append(Estimate(None, np.inf, true, "no rate"))
        else:
            found.append(Estimate(None if rate.reason else rate.value, rate.half_width, true, rate.reason))
    return Outcome(found, feed.pool.sensor(world.signal))


@cache
def _workers() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(mp_context=get_context("spawn"))


def _runs(seeds: int, *, signal: Signal = POWER_AVERAGE, **options: Any) -> tuple[list[World], list[Outcome]]:
    worlds = [World(seed, signal=signal, **options) for seed in range(seeds)]
    # Signals are compared by identity, which does not pass to another process.
    run = partial(_estimated, signal.key, options)
    return worlds, list(_workers().map(run, range(seeds)))


def _estimated(key: str, options: dict[str, Any], seed: int) -> Outcome:
    return estimate(World(seed, signal=signals.signal(key), **options))


def _fewer(seeds: int) -> int:
    return max(2, seeds * 3 // 5)


def _percent(value: float) -> str:
    return f"{value * 100:.3g} %"


def _error(found: Sequence[Outcome]) -> float:
    """Median over the seeds of the mean relative error of the numbers given; infinite if there are none."""
    means = [np.mean([region.error for region in outcome.given]) for outcome in found if outcome.given]
    return float(np.median(means)) if means else np.inf


def _cost(found: Sequence[Outcome]) -> float:
    """The same with refusals as errors of 100 %."""
    return float(np.median([np.mean([region.error for region in outcome.regions]) for outcome in found]))


def _answered(found: Sequence[Outcome]) -> float:
    """The share of regions with a number."""
    return sum(len(outcome.given) for outcome in found) / sum(len(outcome.regions) for outcome in found)


def _refused(found: Sequence[Outcome]) -> str:
    """How often which reason was given, in its first words."""
    reasons = [region.reason.split(":")[-1 if "lock" in region.reason else 0] for o in found for region in o.regions]
    counts = {reason.strip(): reasons.count(reason) for reason in sorted(set(reasons)) if reason}
    return ", ".join(f"{reason} {n}x" for reason, n in counts.items())


# ---------------------------------------------------------------------- errors


def _accuracy(name: str, reach: float, seeds: int, *, whole: bool = False, **options: Any) -> Row:
    """Error against the overlap mean's; `whole`: also the share answered and the half-widths have to be right."""
    worlds, found = _runs(seeds, **options)
    error, cost = _error(found), _cost(found)
    naive = float(np.median([np.mean(np.abs(w.overlap_mean() / w.truth - 1)) for w in worlds]))
    regions = [region for outcome in found for region in outcome.regions]
    given = [region for outcome in found for region in outcome.given]
    can = np.concatenate([world.identifiable() for world in worlds])
    answered = sum(c and region.value is not None for c, region in zip(can, regions, strict=True)) / max(1, can.sum())
    width = float(np.median([region.half_width / region.true for region in given])) if given else np.inf
    figure = (
        f"{_percent(cost)} median error with refusals as 100 %, {_percent(error)} of numbers, "
        f"{_percent(answered)} of {can.sum()} identifiable answered, median half-width {_percent(width)}"
    )
    if given:
        figure += f" ({width / max(cost, 1e-9):.1f}x the error), {_percent(_covered(found))} of intervals cover"
    if len(given) < len(regions):
        figure += f"; refused: {_refused(found)}"
    ok = cost <= reach and (not whole or (answered >= 0.95 and width <= 3 * cost))
    wanted = f"<={_percent(reach)}" + ", >=95 % answered, half-width <=3x the error" * whole
    ratio = f"{naive / max(cost, 1e-9):.0f}x"
    return Row(name, figure, f"overlap mean {_percent(naive)}", ratio, wanted, ok, cost)


def _covered(found: Sequence[Outcome]) -> float:
    given = [region for outcome in found for region in outcome.given]
    return float(np.mean([region.covers_all_gpus for region in given])) if given else 0.0


def random_order(seeds: int = SEEDS) -> Iterator[Row]:
    """Row 1."""
    for signal in (POWER_AVERAGE, ENERGY):
        name = f"unmix {sensor_of(signal)}, 6 regions of 2-20 ms, 100 ms window, random order, 60 s, ±1 ms"
        yield _accuracy(name, 0.02, seeds, whole=True, signal=signal)


def fixed_order(seeds: int) -> Iterator[Row]:
    """Row 2."""
    for signal in (POWER_AVERAGE, ENERGY):
        name = f"unmix {sensor_of(signal)}, 100 ms window, fixed order with 5 % jitter, 120 s"
        yield _accuracy(name, 0.07, seeds, whole=True, order="fixed", jitter=0.05, seconds=120, signal=signal)


def long_window(seeds: int) -> Iterator[Row]:
    """Row 3."""
    yield _accuracy("unmix mean power, 1 s window, random order, 100 s", 0.05, seeds, window_ns=NS_PER_S, seconds=100)


def coverage(seeds: int) -> Iterator[Row]:
    """Row 4."""
    for signal in (POWER_AVERAGE, ENERGY):
        shares, answered, errors, costs = [], [], [], []
        for error_ms in (1, 5, 20, 50):
            _, found = _runs(_fewer(seeds), seconds=300, stamp_error_ns=error_ms * MS, signal=signal)
            shares.append(_covered(found))
            answered.append(_answered(found))
            errors.append(_error(found))
            costs.append(_cost(found))
        yield Row(
            f"95 % intervals cover, {sensor_of(signal)}, stamps ±1/5/20/50 ms, random order, 300 s",
            f"{_list(shares)} % cover; answered {_list(answered)} %, median error of numbers {_list(errors)} %",
            reach=">=88 % each",
            ok=all(share >= 0.88 for share in shares),
            cost=max(costs),
        )


def phase_locked(seeds: int) -> Iterator[Row]:
    """Row 5."""
    for signal in (POWER_AVERAGE, ENERGY):
        _, found = _runs(seeds, order="fixed", jitter=0.0, loop_ns=50 * MS, seconds=120, signal=signal)
        given = [region for outcome in found for region in outcome.given]
        worst = f", the worst {_percent(max(region.error for region in given))} wrong" if given else ""
        yield Row(
            f"phase-locked loop of 50 ms, {sensor_of(signal)}, 100 ms window, 120 s",
            f"{len(given)} numbers given of {6 * seeds}{worst}",
            reach="0 numbers",
            ok=not given,
            cost=len(given),
        )


def near_lock_step(seeds: int) -> Iterator[Row]:
    """Row 10: loops that hardly vary, near the length at which nothing can be told."""
    loops = ((ENERGY, (45.0, 49.0, 49.5, 50.5, 53.7), max(1, seeds // 5)), (POWER_AVERAGE, (49.0, 53.7), 1))
    for signal, lengths, each in loops:
        shares, off = [], [0.0]
        for loop_ms in lengths:
            given = []
            for jitter in (0.0, 0.005, 0.02):
                loop = {"order": "fixed", "jitter": jitter, "loop_ns": int(loop_ms * MS)}
                regions = [r for o in _runs(each, seconds=120, signal=signal, **loop)[1] for r in o.given]
                given += [r.error * r.true / r.half_width for r in regions]
            shares.append(len(given) / (18 * each))
            off += given
        yield Row(
            f"loops of {_list([ms / 100 for ms in lengths])} ms with 0-2 % jitter, {sensor_of(signal)}, 100 ms window",
            f"{_list(shares)} % given, at most {max(off):.1f} half-widths from the truth",
            reach="none further than 3 half-widths",
            ok=max(off) <= 3,
            cost=1 - float(np.mean(shares)),
        )


def sensor_found(seeds: int) -> Iterator[Row]:
    """Row 6."""
    sensors = [("boxcar", 25), ("boxcar", 100), ("boxcar", 1000), ("exponential", 50), ("exponential", 100)]
    for shape, window_ms in sensors:
        for lag_ms in (0, 5, 20):
            seconds = 100 if window_ms == 1000 else 60
            worlds, found = _runs(
                _fewer(seeds), shape=shape, window_ns=window_ms * MS, lag_ns=lag_ms * MS, seconds=seconds
            )
            known = float(np.median([np.mean(np.abs(w.known_sensor() / w.truth - 1)) for w in worlds]))
            error, cost, answered = _error(found), _cost(found), _answered(found)
            yield Row(
                f"sensor found from the data: {shape} of {window_ms} ms, lag {lag_ms} ms, {seconds} s",
                f"{_percent(cost)} median error with refusals as 100 %, {_percent(error)} of numbers, "
                f"{_percent(answered)} answered; {_found(found)}",
                f"known sensor {_percent(known)}",
                f"{known / max(cost, 1e-9):.2f}x",
                "<=2x the known sensor's error or <=5 %",
                cost <= max(2 * known, 0.05),
                cost,
            )


def _found(found: Sequence[Outcome]) -> str:
    """The length of the sensors' windows or their time constant, over the seeds."""
    sensors = [outcome.sensor for outcome in found if outcome.sensor is not None]
    if not sensors:
        return "no sensor found"
    numbers = np.array([sensor.window_ns for sensor in sensors]) / MS
    shapes = {"exponential" if sensor.smooth else "boxcar" for sensor in sensors}
    spread = f"{np.median(numbers):.4g} ({numbers.min():.4g} to {numbers.max():.4g}) ms"
    return f"found {' or '.join(sorted(shapes))} of {spread}"


def concurrency(seeds: int) -> Iterator[Row]:
    """Row 7."""
    for signal in (POWER_AVERAGE, ENERGY):
        name = f"power alone of 2 streams' regions on a device that saturates at 600 W, {sensor_of(signal)}, 120 s"
        yield _accuracy(name, 0.05, seeds, streams=2, limit_w=600.0, gap_ns=4 * MS, seconds=120, signal=signal)


def backlog(seeds: int) -> Iterator[Row]:
    """Row 9."""
    _, ideal = _runs(_fewer(seeds), seconds=60, signal=ENERGY)
    _, found = _runs(_fewer(seeds), seconds=60, backlog_ns=3 * MS, signal=ENERGY)
    yield Row(
        "known limit: random backlog on the device (exponential, 3 ms), intervals of the host, energy counter, 60 s",
        f"{_percent(_error(found))} median error of numbers, {_percent(_answered(found))} answered, "
        f"{_percent(_covered(found))} cover",
        f"intervals of the device {_percent(_error(ideal))}",
        cost=_cost(found),
    )


def _list(shares: Sequence[float]) -> str:
    return "/".join(f"{share * 100:.3g}" for share in shares)


# ---------------------------------------------------------------------- which rows there are


ROWS: Final[dict[str, Callable[[int], Iterator[Row]]]] = {
    "1": random_order,
    "2": fixed_order,
    "3": long_window,
    "4": coverage,
    "5": phase_locked,
    "6": sensor_found,
    "7": concurrency,
    "8": lambda _: cost(),
    "9": backlog,
    "10": near_lock_step,
}


def rows(seeds: int = SEEDS) -> Iterator[Row]:
    """All rows of the study."""
    for group in ROWS.values():
        yield from group(seeds)


def main(arguments: list[str]) -> int:
    """Print the rows that are asked for; 1 if one falls short."""
    unknown = [number for number in arguments if number not in ROWS]
    if unknown:
        sys.stderr.write(f"no rows {', '.join(unknown)}: one of {', '.join(ROWS)}\n")
        return 2
    short = 0
    print(HEADER, flush=True)
    for number in arguments or ROWS:
        started = time.perf_counter()
        for row in ROWS[number](SEEDS):
            short += not row.ok
            print(f"{number} | {row} | {time.perf_counter() - started:.1f} s", flush=True)
            started = time.perf_counter()
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
