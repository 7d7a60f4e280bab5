"""Two recordings, region by region: what became more, what became less, and how sure that is.

Durations: 95 % percentile intervals of a seeded bootstrap over executions (Efron and Tibshirani, *An Introduction to
the Bootstrap*, 1993, ch. 13). Failures: the interval for two shares of Newcombe (*Statistics in Medicine* 17, 1998,
method 10), which also holds where neither side failed. GPU-busy time and energy are rates recovered over all
executions, which cannot be drawn anew one by one: their intervals are normal approximations, from the half-width of the
rate and, for the time that a call was on its devices, the spread of its bootstrapped mean; those of their ratios are
Fieller's. Executions are taken to be independent of one another.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import hypot, isfinite, sqrt
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.analysis.account import Analysis, RegionUse
from gpu_profile.analysis.runs import Runs
from gpu_profile.errors import UsageError
from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.unmix import Z95
from gpu_profile.units import NS_PER_S

#: What is compared, and its unit (1: a share). `x/item` is x per unit of work.
QUANTITIES: Final = {
    "duration": "s",
    "p50": "s",
    "p95": "s",
    "busy": "s",
    "energy": "J",
    "duration/item": "s",
    "busy/item": "s",
    "energy/item": "J",
    "failures": "1",
}
#: Time on the devices, of which only the spread is used.
_JOINED: Final = "joined"
_SEED: Final = 20_260_101
_DRAWS: Final = 1000
#: Of more executions than this, so many are drawn at a time, and the spread is scaled by the square root (m out of n).
_MOST_DRAWN: Final = 4000
#: Executions below which an interval would say more about the method than about the region.
LEAST_CALLS: Final = 8
LEAST_FOR_P95: Final = 20

Edges = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Difference:
    """How one quantity of a region differs between the recordings, `a` and `b` per call (or per item), in `unit`.

    `interval` is the 95 % interval of `b - a`, `relative_interval` that of `b / a - 1`. None: not known, with `reason`.
    """

    region: str
    quantity: str
    unit: str
    a: float | None
    b: float | None
    interval: Edges | None = None
    relative_interval: Edges | None = None
    reason: str = ""

    @property
    def change(self) -> float | None:
        """`b - a`."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def relative(self) -> float | None:
        """`b / a - 1`."""
        return None if self.a is None or self.b is None or self.a <= 0 else self.b / self.a - 1

    @property
    def no_ratio(self) -> str:
        """Why a difference that has an interval has none for its ratio; empty if it has one, or neither."""
        if self.interval is None or self.relative_interval is not None:
            return ""
        return "A may be 0: the ratio has no interval" if self.a else "A is 0: there is no ratio"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences, region by region, and the regions that only one recording has."""

    differences: tuple[Difference, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    notes: tuple[str, ...]


class _Drawn(NamedTuple):
    """Bootstrapped values of one quantity, one per draw."""

    value: float
    draws: Floats


class _Known(NamedTuple):
    """A quantity of one side: its value, with draws, half-width or edges of a 95 % interval, or why there is none."""

    value: float | None
    draws: Floats | None = None
    half_width: float | None = None
    edges: Edges | None = None
    reason: str = ""


def compare(a: Analysis, b: Analysis) -> Comparison:
    """Compare what both recordings have. UsageError if they have no region in common."""
    common = [region for region in a.runs if region in b.runs]
    if not common:
        raise UsageError(
            "the recordings have no region in common: "
            f"the first has {', '.join(a.runs) or 'none'}, the second {', '.join(b.runs) or 'none'}"
        )
    return Comparison(
        tuple(found for region in common for found in _differences(region, _side(a, region, 0), _side(b, region, 1))),
        tuple(region for region in a.runs if region not in b.runs),
        tuple(region for region in b.runs if region not in a.runs),
        _notes(a, b, common),
    )


def _notes(a: Analysis, b: Analysis, common: list[str]) -> tuple[str, ...]:
    notes = [f"{side}: {note}" for side, analysis in (("A", a), ("B", b)) for note in analysis.notes]
    told: dict[str, Callable[[Analysis], set[str]]] = {
        "drivers": lambda side: {process.driver.partition(":")[0] for process in side.processes},
        "devices": lambda side: {use.device.name for use in side.devices},
        "sources of energy": lambda side: {u.summary.energy_source for u in side.regions if u.summary.region in common},
    }
    for what, of in told.items():
        left, right = (", ".join(sorted(of(side) - {""})) or "none" for side in (a, b))
        if left != right:
            notes.append(f"different {what}: {left} in A, {right} in B")
    return tuple(notes)


def _differences(region: str, a: dict[str, _Known], b: dict[str, _Known]) -> Iterator[Difference]:
    for quantity, unit in QUANTITIES.items():
        left, right = a[quantity], b[quantity]
        reasons = [f"{side}: {known.reason}" for side, known in (("A", left), ("B", right)) if known.reason]
        if quantity.endswith("/item") and left.value is None and right.value is None and not reasons:
            continue
        interval, relative = _intervals(left, right)
        yield Difference(region, quantity, unit, left.value, right.value, interval, relative, "; ".join(reasons))


def _intervals(a: _Known, b: _Known) -> tuple[Edges | None, Edges | None]:
    """Of the difference and of the ratio less 1."""
    if a.value is None or b.value is None:
        return None, None
    if a.draws is not None and b.draws is not None:
        positive = bool((a.draws > 0).all())
        return _percentiles(b.draws - a.draws), _percentiles(b.draws / a.draws - 1) if positive else None
    if a.edges is not None and b.edges is not None:
        low = hypot(b.value - b.edges[0], a.edges[1] - a.value)
        high = hypot(b.edges[1] - b.value, a.value - a.edges[0])
        return (b.value - a.value - low, b.value - a.value + high), None
    if a.half_width is None or b.half_width is None:
        return None, None
    change, width = b.value - a.value, hypot(a.half_width, b.half_width)
    relative = None
    if a.value > a.half_width:
        # Fieller's interval for a ratio (1954): unlike the delta method's, it does not shrink where b is near 0.
        ratio, g = b.value / a.value, (a.half_width / a.value) ** 2
        spread = hypot(b.half_width * sqrt(1 - g), ratio * a.half_width) / a.value
        relative = ((ratio - spread) / (1 - g) - 1, (ratio + spread) / (1 - g) - 1)
    return (change - width, change + width), relative


def _percentiles(draws: Floats) -> Edges:
    low, high = np.percentile(draws, (2.5, 97.5))
    return float(low), float(high)


# ---------------------------------------------------------------------- one side


def _side(analysis: Analysis, region: str, side: int) -> dict[str, _Known]:
    runs = analysis.runs[region]
    rng = np.random.default_rng((_SEED, side, zlib.crc32(region.encode("utf-8", "replace"))))
    durations = runs.durations_s
    drawn = _draw(rng, runs)
    calls = len(durations)
    few = f"only {calls} executions, {LEAST_CALLS} are needed for an interval" if calls < LEAST_CALLS else ""
    few_p95 = f"only {calls} executions, {LEAST_FOR_P95} are needed for an interval"
    known = {
        key: _Known(drawn[key].value, None if few else drawn[key].draws, reason=few)
        for key in QUANTITIES
        if key in drawn
    }
    if calls < LEAST_FOR_P95:
        known["p95"] = _Known(drawn["p95"].value, reason=few_p95)
    uses = analysis.of(region)
    busy, energy = _busy(uses, calls), _energy(uses, calls)
    known["busy"], known["energy"] = (_spread(rate, drawn[_JOINED], few) for rate in (busy, energy))
    if runs.items is not None:
        each = float(runs.items.sum()) / calls
        for name, rate in (("busy", busy), ("energy", energy)):
            known[f"{name}/item"] = _spread(_scaled(rate, 1 / each), drawn[f"{_JOINED}/item"], few)
    else:
        some = bool(uses and uses[0].summary.durations.items)
        reason = "only some of the executions told their items" if some else ""
        known |= {f"{name}/item": _Known(None, reason=reason) for name in ("duration", "busy", "energy")}
    known["failures"] = _failures(runs, few)
    return known


def _draw(rng: np.random.Generator, runs: Runs) -> dict[str, _Drawn]:
    durations, on_device, items = runs.durations_s, runs.joined_ns / NS_PER_S, runs.items
    n = len(durations)
    m = min(n, _MOST_DRAWN)
    shrink = float(np.sqrt(m / n))
    means, per_item, joined, joined_per_item = (np.empty(_DRAWS) for _ in range(4))
    for i in range(_DRAWS):
        chosen = rng.integers(n, size=m)
        means[i], joined[i] = durations[chosen].mean(), on_device[chosen].mean()
        if items is not None:
            # A draw without any work has no cost per unit; the mean of a unit's worth stands in for so rare a thing.
            work = float(items[chosen].sum()) or float(items.mean())
            per_item[i], joined_per_item[i] = means[i] * m / work, joined[i] * m / work
    ordered = np.sort(durations)
    found = {
        "duration": (float(durations.mean()), means),
        "p50": (float(np.quantile(ordered, 0.5)), _quantile_draws(rng, ordered, m, 0.5)),
        "p95": (float(np.quantile(ordered, 0.95)), _quantile_draws(rng, ordered, m, 0.95)),
        _JOINED: (float(on_device.mean()), joined),
    }
    if items is not None:
        found["duration/item"] = (float(durations.sum() / items.sum()), per_item)
        found[f"{_JOINED}/item"] = (float(on_device.sum() / items.sum()), joined_per_item)
    return {key: _Drawn(value, value + (draws - value) * shrink) for key, (value, draws) in found.items()}


def _quantile_draws(rng: np.random.Generator, ordered: Floats, m: int, q: float) -> Floats:
    """Quantiles of bootstrap samples of size `m`, without the samples.

    The k-th smallest of m draws with replacement lies where the k-th smallest of m uniform numbers does, which is a
    beta variable (Hutson and Ernst, *J. R. Statist. Soc. B* 62, 2000); the next one is the least of the m - k above it.
    """
    rank = q * (m - 1)
    k = int(rank)
    below = rng.beta(k + 1, m - k, _DRAWS)
    above = 1.0 - (1.0 - below) * rng.random(_DRAWS) ** (1.0 / max(1, m - k - 1))
    low, high = (ordered[np.minimum(len(ordered) - 1, (u * len(ordered)).astype(np.int64))] for u in (below, above))
    return np.asarray(low + (rank - k) * (high - low), np.float64)


def _failures(runs: Runs, few: str) -> _Known:
    """The share of executions that failed, with Wilson's interval."""
    if runs.failures is None:
        return _Known(None, reason="the recording does not say which executions failed")
    n = len(runs.starts_ns)
    share = runs.failures / n
    if few:
        return _Known(share, reason=few)
    centre, spread = share + Z95**2 / (2 * n), Z95 * sqrt(share * (1 - share) / n + (Z95 / (2 * n)) ** 2)
    scale = 1 + Z95**2 / n
    # Rounding must not lift the lower edge of no failures at all above none.
    return _Known(share, edges=(min(share, (centre - spread) / scale), max(share, (centre + spread) / scale)))


def _spread(rate: _Known, time: _Drawn, few: str) -> _Known:
    """The half-width of a pooled rate, widened by how far the time per call (or item) is known."""
    if rate.value is None or few:
        return _Known(rate.value, reason=rate.reason or few)
    if rate.half_width is None or not isfinite(rate.half_width):
        return _Known(rate.value, reason=rate.reason or "its half-width is not known")
    spread = Z95 * float(time.draws.std()) / time.value if time.value > 0 else 0.0
    return rate._replace(half_width=hypot(rate.half_width, rate.value * spread))


def _scaled(known: _Known, by: float) -> _Known:
    if known.value is None:
        return known
    return known._replace(
        value=known.value * by, half_width=None if known.half_width is None else known.half_width * by
    )


def _busy(uses: list[RegionUse], calls: int) -> _Known:
    """Seconds that the region's devices were busy per call, regions inside it included."""
    total, squares = 0.0, 0.0
    for use in uses:
        summary = use.summary
        if summary.busy is None:
            return _Known(None, reason=summary.reason or "not measured")
        total += summary.busy * summary.interval_s
        squares += ((summary.busy_half_width or 0.0) * summary.interval_s) ** 2
    return _Known(total / calls, half_width=float(np.sqrt(squares)) / calls)


def _energy(uses: list[RegionUse], calls: int) -> _Known:
    """Joules per call, regions inside it included."""
    total, squares = 0.0, 0.0
    for use in uses:
        summary = use.summary
        if summary.call_energy_j is None:
            reason = next((r.partition(": ")[2] for r in use.reasons if r.startswith("energy")), "not measured")
            return _Known(None, reason=reason)
        total += summary.call_energy_j * summary.executions
        squares += ((summary.power_half_width or 0.0) * summary.interval_s) ** 2
    return _Known(total / calls, half_width=float(np.sqrt(squares)) / calls)
