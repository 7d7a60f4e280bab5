"""A measured total shared out among columns: shares that only grow and add up to it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.unmix import WIDEST_HALF_WIDTH, Rate


class Share(NamedTuple):
    """A part of a measured total, with the half-width of its 95 % interval.

    None where it is uncertain: it was shared out by time, as the rate is not known.
    """

    value: float
    half_width: float | None


class CountedShare(NamedTuple):
    """A share of a measured total that only grows: what was given while the rate was known, and what was not."""

    certain: float
    uncertain: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.certain + self.uncertain


class Targets(NamedTuple):
    """What each column should have of a measured total, and half-widths: infinite where that is uncertain.

    They are `of` so many windows, so many seconds that these covered, and so many in which regions were active.
    """

    values: Floats
    half_widths: Floats
    of: tuple[int, float, float]

    def share(self, columns: Sequence[int]) -> Share:
        """What columns should have together."""
        own = [column for column in columns if column < len(self.values)]
        half_width = float(self.half_widths[own].sum())
        return Share(float(self.values[own].sum()), half_width if np.isfinite(half_width) else None)


@dataclass(slots=True)
class Shares:
    """A quantity shared out so that every share only grows and all shares add up to what was measured.

    Columns are those of the equations: 0 is the unattributed rest. In unit·s (a counter's unit), `certain` is what was
    given while the column's rate was known, and `uncertain` what was not.
    """

    certain: Floats = field(default_factory=lambda: np.zeros(1))
    uncertain: Floats = field(default_factory=lambda: np.zeros(1))

    @property
    def shared(self) -> Floats:
        """All that each column was given."""
        return self.certain + self.uncertain

    def _grow(self, columns: int) -> None:
        more = columns - len(self.certain)
        if more > 0:
            self.certain, self.uncertain = np.pad(self.certain, (0, more)), np.pad(self.uncertain, (0, more))

    def hand_out(self, measured: float, targets: Floats, known: npt.NDArray[np.bool_]) -> None:
        """Bring the sum up to `measured`, so that the shares move towards the proportions of `targets`.

        `known`: of which columns the targets follow from their rates.
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
            self.certain = self.certain + np.where(known, given, 0.0)
            self.uncertain = self.uncertain + np.where(known, 0.0, given)

    def counted(self, columns: Sequence[int]) -> CountedShare:
        """What columns were given together."""
        own = [column for column in columns if column < len(self.certain)]
        return CountedShare(float(self.certain[own].sum()), float(self.uncertain[own].sum()))

    def merge(self, column: int, into: int) -> None:
        """Give what a column was given to another."""
        if column < len(self.certain):
            self._grow(into + 1)
            for given in (self.certain, self.uncertain):
                given[into] += given[column]
                given[column] = 0.0


def drawn(rates: Floats, joint: Floats, active_s: Floats, mean: float, measured: float) -> Floats:
    """A total that was measured, shared out in proportion to each column's rate times its active time.

    `rates` are of the first columns; where they are uncertain they are to be drawn to the device's `mean`, so that with
    no certainty, or no rates, time decides, as it does in the overlap mean.
    """
    parts = np.zeros(len(active_s))
    if len(rates):
        known = min(len(rates), len(active_s))
        every = np.append(rates[:known], np.full(len(active_s) - known, mean))
        parts[:known] = (joint @ every)[:known] * active_s[:known]
    if parts.sum() <= 0:
        parts = active_s
    total = float(parts.sum())
    return parts / total * measured if total > 0 else parts


def targets(
    drawn: Floats, active_s: Floats, regions: Iterable[Sequence[int]], rate: Callable[[Floats], Rate],
    measured: float, mean: float,
) -> tuple[Floats, Floats]:  # fmt: skip
    """What each column should have of a total that was measured, and half-widths: infinite where that is uncertain.

    A region whose rate is known has that times its time, as nearly as what was measured allows. What is left goes to
    the others as it is `drawn`: by their time and, as far as they are known, their rates. `active_s` is each column's
    time that was measured, `mean` the device's rate.
    """
    wanted, half_widths = drawn.copy(), np.full(len(drawn), np.inf)
    for region in regions:
        own = list(region)
        time = active_s[own]
        if time.sum() <= 0:
            continue
        weights = np.zeros(len(drawn))
        weights[own] = time
        found = rate(weights)
        if not found.reason:
            parts = drawn[own] if drawn[own].sum() > 0 else time
            wanted[own] = found.value * time.sum() * parts / parts.sum()
            half_widths[own] = found.half_width * time.sum() * parts / parts.sum()
    wanted, half_widths = fitted(wanted, half_widths, measured)
    half_widths[half_widths > WIDEST_HALF_WIDTH * np.maximum(wanted, mean * active_s)] = np.inf
    return wanted, half_widths


def fitted(targets: Floats, half_widths: Floats, measured: float) -> tuple[Floats, Floats]:
    """Targets that add up to what was measured: each takes up what is missing by the square of how far it may be off,
    which for an uncertain one is all of it. Half-widths grow by as much as their targets were moved."""
    known = np.isfinite(half_widths)
    off = np.where(known, np.where(targets > 0, half_widths, 0.0), targets) ** 2
    fitted = targets
    if off.sum() > 0:
        fitted = np.maximum(0.0, targets + off / off.sum() * (measured - float(targets.sum())))
    total = float(fitted.sum())
    fitted = fitted * (measured / total) if total > 0 else targets
    return fitted, np.where(known, half_widths + np.abs(fitted - targets), half_widths)
