"""Shares out a measured total among columns, so that shares only grow and add up to the total. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.rate import WIDEST_HALF_WIDTH, Rate


class Share(NamedTuple):
    """A part of a measured total, with the half-width of its 95 % interval.

    `half_width` is None if the part is uncertain: shared out by time, for lack of a rate.
    """

    value: float
    half_width: float | None


class CountedShare(NamedTuple):
    """A share of a measured total that only grows: the part given with a rate, and the part given without one."""

    certain: float
    uncertain: float

    @property
    def total(self) -> float:
        """The sum of both parts."""
        return self.certain + self.uncertain


class Targets(NamedTuple):
    """The part of a measured total that each column should have, and its half-width: infinite if uncertain.

    `of` is the state they were computed in: windows, seconds that these cover, and seconds with an active region.
    """

    values: Floats
    half_widths: Floats
    of: tuple[int, float, float]

    def share(self, columns: Sequence[int]) -> Share:
        """The part that columns should have together."""
        own = [column for column in columns if column < len(self.values)]
        half_width = float(self.half_widths[own].sum())
        return Share(float(self.values[own].sum()), half_width if np.isfinite(half_width) else None)


@dataclass(slots=True)
class Shares:
    """A quantity that is shared out so that every share only grows and all shares add up to the measured total.

    Column 0 is the rest outside regions, as in the equations. In unit·s (a counter's unit), `certain` was given
    while the column had a rate, and `uncertain` while it had none.
    """

    certain: Floats = field(default_factory=lambda: np.zeros(1))
    uncertain: Floats = field(default_factory=lambda: np.zeros(1))

    @property
    def shared(self) -> Floats:
        """The total that each column was given."""
        return self.certain + self.uncertain

    def _grow(self, columns: int) -> None:
        more = columns - len(self.certain)
        if more > 0:
            self.certain, self.uncertain = np.pad(self.certain, (0, more)), np.pad(self.uncertain, (0, more))

    def distribute(self, measured: float, targets: Floats, rated: npt.NDArray[np.bool_]) -> None:
        """Bring the sum up to `measured`, so that the shares move towards the proportions of `targets`.

        `rated`: the columns whose targets follow from their rates.
        """
        self._grow(len(targets))
        total = float(targets.sum())
        if total > 0:
            wanted = targets / total * measured
        else:
            wanted = np.zeros(len(targets))
            wanted[0] = measured
        shared = self.shared
        short = np.maximum(wanted - shared, 0.0)
        missing = float(short.sum())
        left = measured - float(shared.sum())
        if missing > 0 and left > 0:
            given = short * min(1.0, left / missing)
            self.certain = self.certain + np.where(rated, given, 0.0)
            self.uncertain = self.uncertain + np.where(rated, 0.0, given)

    def counted(self, columns: Sequence[int]) -> CountedShare:
        """The part that columns were given together."""
        own = [column for column in columns if column < len(self.certain)]
        return CountedShare(float(self.certain[own].sum()), float(self.uncertain[own].sum()))

    def merge(self, column: int, into: int) -> None:
        """Give a column's shares to another."""
        if column < len(self.certain):
            self._grow(into + 1)
            for given in (self.certain, self.uncertain):
                given[into] += given[column]
                given[column] = 0.0


def drawn(rates: Floats, joint: Floats, active_s: Floats, mean: float, measured: float) -> Floats:
    """A measured total, shared out in proportion to each column's rate times its active time.

    `rates` are the rates of the first columns, drawn to the device's `mean` as far as they are uncertain. Without
    certain rates, the shares are in proportion to time, as in the overlap mean.
    """
    parts = np.zeros(len(active_s))
    if len(rates):
        size = min(len(rates), len(active_s))
        every = np.append(rates[:size], np.full(len(active_s) - size, mean))
        parts[:size] = (joint @ every)[:size] * active_s[:size]
    if parts.sum() <= 0:
        parts = active_s
    total = float(parts.sum())
    return parts / total * measured if total > 0 else parts


def targets(
    drawn: Floats, active_s: Floats, uncovered_s: Floats, regions: Iterable[Sequence[int]],
    rate: Callable[[Floats], Rate], measured: float, mean: float,
) -> tuple[Floats, Floats]:  # fmt: skip
    """The part of a measured total that each column should have, and its half-width: infinite if uncertain.

    A region with a rate gets this rate times its time, as nearly as the total allows. The others share the remainder in
    proportion to `drawn`: by time and, as far as they have any, by rates. `active_s` is each column's measured time,
    `mean` the device's rate. Half-widths include `uncovered_s`, each column's other time, at the same rate.
    """
    wanted, half_widths = drawn.copy(), np.full(len(drawn), np.inf)
    for region in regions:
        own = list(region)
        time = active_s[own]
        if time.sum() <= 0:
            continue
        weights = np.zeros(len(drawn))
        weights[own] = time
        region_rate = rate(weights)
        if not region_rate.reason:
            parts = drawn[own] if drawn[own].sum() > 0 else time
            wanted[own] = region_rate.value * time.sum() * parts / parts.sum()
            half_widths[own] = region_rate.half_width * time.sum() * parts / parts.sum()
    wanted, half_widths = fitted(wanted, half_widths, measured)
    uncovered = uncovered_s / np.maximum(active_s, 1e-9)
    half_widths = half_widths * (1 + uncovered) + wanted * uncovered
    half_widths[half_widths > WIDEST_HALF_WIDTH * np.maximum(wanted, mean * active_s)] = np.inf
    return wanted, half_widths


def fitted(targets: Floats, half_widths: Floats, measured: float) -> tuple[Floats, Floats]:
    """Targets adjusted to the measured total. Each takes up the difference in proportion to its squared uncertainty,
    which for an uncertain target is its whole value. Half-widths grow by their targets' changes."""
    certain = np.isfinite(half_widths)
    off = np.where(certain, np.where(targets > 0, half_widths, 0.0), targets) ** 2
    fitted = targets
    if off.sum() > 0:
        fitted = np.maximum(0.0, targets + off / off.sum() * (measured - float(targets.sum())))
    total = float(fitted.sum())
    fitted = fitted * (measured / total) if total > 0 else targets
    return fitted, np.where(certain, half_widths + np.abs(fitted - targets), half_widths)
