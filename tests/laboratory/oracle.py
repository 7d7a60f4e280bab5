"""The truth of each region, and the smallest half-width that the samples permit (the oracle).

**Truth.** The mean of a curve over a region's true time on the device, `sum(w·c) / sum(w)`. The weight is the region's
share of each moment, nested regions included. Energy is the integral of power times the exclusive share. The energy
outside regions is the rest of the total.

**Oracle.** It has the sensor, the times of the renewals, the true times on the device and every shape up to a scale.
The curve is the sum of parts `c_j`, except for chance: each region's exclusive share, the time outside regions, and
each source of unmarked work. The sensor is linear, so a reading is `y_i = sum_j s_j·A_ij + e_i` with `A_j` the sensor
applied to `c_j`, and all `s_j` are 1. Weighted least squares gives `s` with covariance `C = (A' W A)^-1`,
`W = diag(1 / v_i)`. A truth is linear in the scales, `t = a's` with `a_j` the mean of `c_j` under the truth's weights.
So its 95 % half-width is `1.96 sqrt(a'Ca)`. `v_i` contains the reading's noise and rounding, and the mean squares of
two unknown errors. The first is the random power of executions, which is not in the `c_j`. The second is the effect of
the stamps' errors: the sensor applied to `sum_k m_k (w_k(stamped) - w_k(true))`. There, `m_k` are the regions' true
means, and the stamps are corrected by their mean delay. Readings that include time before the first or after the last
execution are omitted: no answer should rest on the two windows at a program's ends alone.

A quantity is answerable if its half-width is at most a quarter of `scale`. This is the larger of its truth and the
curve's mean over the recording. For energies it is the mean times the region's exclusive time, and outside regions a
fifth of the total.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from laboratory.curves import Quantity, Singles, World, shares_of, sums
from laboratory.programs import LEAD_S, PER_S, STEP_NS, Floats
from laboratory.recordings import OUTSIDE, Run
from laboratory.sensors import Readings, Sensor

WIDEST: Final = 0.25
_Z95: Final = 1.959964
#: A direction with less than this share of the strongest direction's information is not determined.
_LEAST: Final = 1e-11
#: Smaller shares are rounding errors.
_TRACE: Final = 1e-14
#: The oracle's windows are computed on blocks of 0.5 ms: their edges are blurred, their sums are not.
_STRIDE: Final = 5

#: For each curve: its signals, and the names of its mean and its integral.
_QUANTITIES: Final[Mapping[Quantity, tuple[tuple[str, ...], str, str]]] = {
    "power": (("energy", "power", "power_average"), "power", "energy"),
    "busy": (("graphics", "utilization"), "busy", "busy_s"),
    "activity": (("sm",), "sm", ""),
}


class Target(NamedTuple):
    """A truth, the oracle's half-width (inf: not determined), and the reference size `scale`, all in one unit."""

    truth: float
    half_width: float
    scale: float

    @property
    def answerable(self) -> bool:
        """Whether the oracle could answer."""
        return self.half_width <= WIDEST * self.scale

    @property
    def reference(self) -> float:
        """The divisor of relative errors: the truth, but at least a quarter of `scale`."""
        return max(abs(self.truth), 0.25 * self.scale)


def judge(run: Run) -> dict[tuple[str, str], Target]:
    """The truth and the oracle's half-width of every quantity with a sensor."""
    best: dict[tuple[str, str], Target] = {}
    moved, there = _moved(run), {signal.key for _, signal, _, _ in run.readings}
    for quantity, (keys, rate, total) in _QUANTITIES.items():
        for key in keys:
            source = [(sensor, readings) for sensor, signal, _, readings in run.readings if signal.key == key]
            if source:
                targets = _targets(run.world, quantity, (rate, total), *source[0], moved)
                # Answers are promised in the joules of the board's own sensor, because its gain is not observable.
                gain = source[0][0].gain if key == keys[0] or keys[0] not in there else 1.0
                scaled = {name: Target(*(gain * part for part in each)) for name, each in targets.items()}
                best |= {n: t for n, t in scaled.items() if n not in best or t.half_width < best[n].half_width}
    return best


def _targets(
    world: World, quantity: Quantity, names: tuple[str, str], sensor: Sensor, readings: Readings, moved: Floats
) -> dict[tuple[str, str], Target]:
    (rate, total), curve, shares = names, world.curve(quantity), world.shares
    fine = _parts(world, quantity, curve)
    parts = _coarse(fine)
    lead, steps = LEAD_S * PER_S, curve.shape[-1]
    exclusive = _products(shares.own, fine)
    inclusive = exclusive if shares.inclusive is shares.own else _products(shares.inclusive, fine)
    own_steps, steps_in = (each.sum(axis=1, dtype=np.float64) for each in (shares.own, shares.inclusive))
    means = exclusive.sum(axis=1) / np.maximum(own_steps, 1.0)
    rest = (curve.sum() - exclusive.sum()) / max(steps - own_steps.sum(), 1.0)
    renewals, first = np.unique(readings.renewals, return_index=True)
    ran = world.executions
    start, end = (int(ran.starts.min()), int(ran.ends.max())) if len(ran.starts) else (0, 0)
    inside = sensor.sees(renewals, lead + start, lead + end)
    unknown = np.stack([parts[-1], (means - rest) @ moved])
    spread = _Spread.of(sensor, renewals, np.where(inside, readings.noise[first], 0.0), parts[:-1], unknown)
    mean = float(curve[lead:].mean())
    targets: dict[tuple[str, str], Target] = {}
    outside = _STRIDE * parts[:, lead // _STRIDE :].sum(axis=1) / PER_S
    for k, name in enumerate(world.program.names):
        if not steps_in[k]:
            continue
        by_part = inclusive[k] / steps_in[k]
        truth = float(by_part.sum())
        targets[name, rate] = Target(truth, spread.half_width(by_part), max(abs(truth), mean))
        by_part = exclusive[k] / PER_S
        outside -= by_part
        if total and own_steps[k]:
            truth, whole = float(by_part.sum()), mean * float(own_steps[k]) / PER_S
            targets[name, total] = Target(truth, spread.half_width(by_part), max(abs(truth), whole))
    if total == "energy":
        truth = float(outside.sum())
        targets[OUTSIDE, total] = Target(truth, spread.half_width(outside), max(truth, 0.2 * mean * world.seconds))
    return targets


def _parts(world: World, quantity: Quantity, curve: Floats) -> Singles:
    """Parts that add up to the curve: outside regions, each region's exclusive share, unmarked sources, chance."""
    sources = world.unmarked if quantity == "power" else (world.unmarked > 0) * curve
    own, chance = world.shares.own, world.chance if quantity == "power" else np.zeros(len(curve))
    rest = (curve - sources.sum(axis=0) - chance).astype(np.float32)
    parts = np.empty((2 + len(own) + len(sources), len(rest)), np.float32)
    np.multiply(own, rest, out=parts[1 : 1 + len(own)])
    parts[0] = rest - parts[1 : 1 + len(own)].sum(axis=0)
    parts[1 + len(own) : -1] = sources
    parts[-1] = chance
    return parts


def _coarse(curves: Singles) -> Floats:
    """Means over blocks of the grid."""
    blocks: Floats = curves.reshape(len(curves), -1, _STRIDE).sum(axis=-1, dtype=np.float32).astype(np.float64)
    return blocks / _STRIDE


def _products(weights: Singles, parts: Singles) -> Floats:
    """The sum over time of every weight times every part, in pieces, so that single precision suffices."""
    pieces = weights.shape[1] // PER_S
    left, right = (each.reshape(len(each), pieces, -1).swapaxes(0, 1) for each in (weights, parts))
    result: Floats = (left @ right.swapaxes(1, 2)).sum(axis=0, dtype=np.float64)
    return result


class _Spread(NamedTuple):
    """The information on the parts' scales by direction."""

    values: Floats
    vectors: Floats
    units: Floats

    @classmethod
    def of(cls, sensor: Sensor, renewals: Floats, noise: Floats, parts: Floats, unknown: Floats) -> _Spread:
        """Ignores readings without noise: the first of a counter, and those that extend beyond the program."""
        usable = noise > 0
        errors = sensor.apply(sums(unknown), renewals, _STRIDE)[:, usable]
        deviation = np.sqrt(noise[usable] ** 2 + float(np.sum(errors**2) / max(1, usable.sum())))
        design = sensor.apply(sums(parts), renewals, _STRIDE)[:, usable] / deviation
        information = design @ design.T
        # Scaled, so that small and large parts count alike. An empty part has no scale.
        units = np.sqrt(np.diag(information))
        units = np.where(units > 0, units, 1.0)
        values, vectors = np.linalg.eigh(information / units / units[:, None])
        return cls(values, vectors, units)

    def half_width(self, by_part: Floats) -> float:
        """The half-width of the quantity that is the sum of `by_part`. The last part is chance."""
        loads = (self.vectors.T @ (by_part[:-1] / self.units)) ** 2
        there = loads > _TRACE * max(float(loads.max()), 1e-300)
        if (self.values[there] < _LEAST * self.values[-1]).any():
            return float("inf")
        return _Z95 * float(np.sqrt(np.sum(loads[there] / self.values[there])))


def _moved(run: Run) -> Floats:
    """The change of each region's share of the blocks by the stamps' errors, after correction of the mean delay."""
    world, (starts, ends) = run.world, run.joined
    ran, true = world.executions, world.shares.own
    marked = ran.marked
    if not marked.any():
        return np.zeros((len(true), true.shape[1] // _STRIDE))
    late = (starts - ran.starts * STEP_NS)[marked], (ends - ran.ends * STEP_NS)[marked]
    delay = float(np.mean(late))
    low, high = (np.rint((each - delay) / STEP_NS).astype(np.int64) for each in (starts, ends))
    return _coarse(shares_of(low, high, ran, len(true), true.shape[1]).own) - _coarse(true)
