"""What is true of each region, and how well anybody could know it from the samples.

**Truth.** The mean of a curve over a region's true time on the device, weighted by the region's share of each moment
(regions inside it included): `sum(w·c) / sum(w)`. Energy is the integral of power times the exclusive share; outside is
what is left of the whole.

**Oracle.** It knows the sensor, the renewals' moments, the true times on the device and every shape up to a scale. The
curve is cut into parts `c_j`: that of each region's exclusive share, nobody's, and each source of unmarked work; their
sum is the curve, but for chance. The sensor is linear, so a reading is `y_i = sum_j s_j·A_ij + e_i` with `A_j` the
sensor applied to `c_j`, and all `s_j` are 1. Weighted least squares knows `s` with covariance `C = (A' W A)^-1`,
`W = diag(1 / v_i)`. A truth is linear in the scales, `t = a's` with `a_j` the mean of `c_j` under the truth's weights,
so its 95 % half-width is `1.96 sqrt(a'Ca)`. `v_i` is the reading's own noise and rounding, and the mean squares of two
errors of a reading that nobody knows: what executions draw more or less than their region's usual by chance (which is
not in the `c_j`), and what the stamps' errors move: the sensor applied to `sum_k m_k (w_k(stamped) - w_k(true))`, with
`m_k` the regions' true means and the stamps moved by their mean delay. Readings that look beyond the first or the last
execution are left out: what rests on the two windows at a program's ends alone, nobody should answer.

A quantity is answerable if its half-width is at most a quarter of `scale`, the larger of its truth and the curve's mean
over the recording (for energies, the mean times the region's exclusive time; outside regions, a fifth of the whole).
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
#: A direction is not determined if it carries less than this share of the information that the strongest one does.
_LEAST: Final = 1e-11
#: Shares of less are rounding.
_TRACE: Final = 1e-14
#: The oracle's windows are computed on blocks of 0.5 ms: their edges are blurred, their sums are not.
_STRIDE: Final = 5

#: For each curve, the signals that tell of it, and what the quantities are called: the mean, the integral.
_QUANTITIES: Final[Mapping[Quantity, tuple[tuple[str, ...], str, str]]] = {
    "power": (("energy", "power", "power_average"), "power", "energy"),
    "busy": (("graphics", "utilization"), "busy", "busy_s"),
    "activity": (("sm",), "sm", ""),
}


class Known(NamedTuple):
    """A truth, the oracle's half-width (inf: not determined), and what is a whole for it, all in its unit."""

    truth: float
    half_width: float
    scale: float

    @property
    def answerable(self) -> bool:
        """Whether the oracle could answer."""
        return self.half_width <= WIDEST * self.scale

    @property
    def reference(self) -> float:
        """What errors are relative to: the truth, but for one that is next to nothing."""
        return max(abs(self.truth), 0.25 * self.scale)


def judge(run: Run) -> dict[tuple[str, str], Known]:
    """The truth and the oracle's half-width of every quantity that the sensors tell something of."""
    found: dict[tuple[str, str], Known] = {}
    moved, there = _moved(run), {signal.key for _, signal, _, _ in run.readings}
    for quantity, (keys, rate, total) in _QUANTITIES.items():
        for key in keys:
            source = [(sensor, readings) for sensor, signal, _, readings in run.readings if signal.key == key]
            if source:
                known = _of(run.world, quantity, (rate, total), *source[0], moved)
                # Answers are promised in the joules of the board's own sensor: nothing on the machine tells its gain.
                gain = source[0][0].gain if key == keys[0] or keys[0] not in there else 1.0
                mine = {name: Known(*(gain * part for part in each)) for name, each in known.items()}
                found |= {n: m for n, m in mine.items() if n not in found or m.half_width < found[n].half_width}
    return found


def _of(
    world: World, quantity: Quantity, names: tuple[str, str], sensor: Sensor, readings: Readings, moved: Floats
) -> dict[tuple[str, str], Known]:
    (rate, total), curve, shares = names, world.curve(quantity), world.shares
    fine = _parts(world, quantity, curve)
    parts = _coarse(fine)
    lead, steps = LEAD_S * PER_S, curve.shape[-1]
    exclusive = _products(shares.own, fine)
    inclusive = exclusive if shares.inclusive is shares.own else _products(shares.inclusive, fine)
    own_steps, steps_in = (each.sum(axis=1, dtype=np.float64) for each in (shares.own, shares.inclusive))
    means = exclusive.sum(axis=1) / np.maximum(own_steps, 1.0)
    nobody = (curve.sum() - exclusive.sum()) / max(steps - own_steps.sum(), 1.0)
    renewals, first = np.unique(readings.renewals, return_index=True)
    ran = world.executions
    start, end = (int(ran.starts.min()), int(ran.ends.max())) if len(ran.starts) else (0, 0)
    inside = sensor.sees(renewals, lead + start, lead + end)
    unknown = np.stack([parts[-1], (means - nobody) @ moved])
    spread = _Spread.of(sensor, renewals, np.where(inside, readings.noise[first], 0.0), parts[:-1], unknown)
    mean = float(curve[lead:].mean())
    found: dict[tuple[str, str], Known] = {}
    outside = _STRIDE * parts[:, lead // _STRIDE :].sum(axis=1) / PER_S
    for k, name in enumerate(world.program.names):
        if not steps_in[k]:
            continue
        by_part = inclusive[k] / steps_in[k]
        truth = float(by_part.sum())
        found[name, rate] = Known(truth, spread.half_width(by_part), max(abs(truth), mean))
        by_part = exclusive[k] / PER_S
        outside -= by_part
        if total and own_steps[k]:
            truth, whole = float(by_part.sum()), mean * float(own_steps[k]) / PER_S
            found[name, total] = Known(truth, spread.half_width(by_part), max(abs(truth), whole))
    if total == "energy":
        truth = float(outside.sum())
        found[OUTSIDE, total] = Known(truth, spread.half_width(outside), max(truth, 0.2 * mean * world.seconds))
    return found


def _parts(world: World, quantity: Quantity, curve: Floats) -> Singles:
    """The curve in parts that add up to it: nobody's, each region's exclusive one, unmarked sources, chance."""
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
    """The sum over time of every weight times every part; by pieces, so that single precision keeps its digits."""
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
        """A reading without noise tells nothing: the first of a counter, and what looks beyond the program."""
        told = noise > 0
        errors = sensor.apply(sums(unknown), renewals, _STRIDE)[:, told]
        deviation = np.sqrt(noise[told] ** 2 + float(np.sum(errors**2) / max(1, told.sum())))
        design = sensor.apply(sums(parts), renewals, _STRIDE)[:, told] / deviation
        information = design @ design.T
        # Scaled, so that small parts are judged as large ones are; an empty part has no scale to be known.
        units = np.sqrt(np.diag(information))
        units = np.where(units > 0, units, 1.0)
        values, vectors = np.linalg.eigh(information / units / units[:, None])
        return cls(values, vectors, units)

    def half_width(self, by_part: Floats) -> float:
        """Of a quantity that is made up of the parts like this, the last of which is chance; in its unit."""
        loads = (self.vectors.T @ (by_part[:-1] / self.units)) ** 2
        there = loads > _TRACE * max(float(loads.max()), 1e-300)
        if (self.values[there] < _LEAST * self.values[-1]).any():
            return float("inf")
        return _Z95 * float(np.sqrt(np.sum(loads[there] / self.values[there])))


def _moved(run: Run) -> Floats:
    """How the stamps' errors move each region's share of the blocks, once they are moved by their mean delay."""
    world, (starts, ends) = run.world, run.joined
    ran, true = world.executions, world.shares.own
    marked = ran.marked
    if not marked.any():
        return np.zeros((len(true), true.shape[1] // _STRIDE))
    late = (starts - ran.starts * STEP_NS)[marked], (ends - ran.ends * STEP_NS)[marked]
    delay = float(np.mean(late))
    low, high = (np.rint((each - delay) / STEP_NS).astype(np.int64) for each in (starts, ends))
    return _coarse(shares_of(low, high, ran, len(true), true.shape[1]).own) - _coarse(true)
