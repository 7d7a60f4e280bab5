"""Probe columns: what windows would show if an assumption of the equations were violated. Pure.

The equations assume that a region draws the same all through an execution, in long executions and short ones, early
in a run and late; that nobody's time is all alike; that the sensor's timing is right. A probe is the linearised effect
of one violation on every window. Its coefficient is shrunk towards zero with those of its group (`shrinkage`), so that
a group that the windows do not call for changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.polynomial import Legendre, Polynomial
from numpy.polynomial.polynomial import polyval

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.units import NS_PER_S

#: At most this many columns have probes of their own; none that was active for less than this share of the time.
MOST_PROBED: Final = 16
_LEAST_SHARE: Final = 0.005
#: Of executions that last less than this share of what a reading averages over, degrees above the second are left out:
#: a region that works in a third of its time moves a reading by them by no more than 1 % of its rate.
_SHORT: Final = 0.1
_MS: Final = 1_000_000
#: An execution begins with what fades within this time: a first part of its own (prefill before decode), clocks that
#: rise, what was launched before and still runs. Times from 1.5 to 6 ms explain such programs alike.
FADES_NS: Final = 3.0 * _MS
#: So does what follows it: work that it launched and that goes on, caches that it leaves warm. A shorter time than that
#: of most such work does better than a longer one: it shows where windows end soon after an execution.
TAIL_NS: Final = 1.5 * _MS
#: The unit of run time in a probe of drift.
_RUN_NS: Final = 60 * NS_PER_S


class ProbeGroup(StrEnum):
    """Violations whose probes are shrunk together; the value says it in a refusal."""

    PHASE = "its power changes within an execution"
    LENGTH = "its power depends on the length of an execution"
    RUN_TIME = "its power changes over the run"
    TIMING = "the timing of the sensor is uncertain"
    AFTER = "power after a region depends on which one it was"
    IDLE = "power outside regions changes with the length of the pause"


class ProbeKind(StrEnum):
    """What a probe is the effect of."""

    SLOPE = "slope"
    BEND = "bend"
    THIRD = "third degree"
    FOURTH = "fourth degree"
    START = "start"
    TAIL = "tail"
    LENGTH = "length"
    DRIFT = "drift"
    LAG = "lag"
    LAG_DRIFT = "lag drift"
    WINDOW = "window"
    GAP = "gap"
    PAUSE = "pause"
    REST = "rest"
    SOON = "soon"
    LATER = "later"


GROUPS: Final = {
    ProbeKind.SLOPE: ProbeGroup.PHASE,
    ProbeKind.BEND: ProbeGroup.PHASE,
    ProbeKind.THIRD: ProbeGroup.PHASE,
    ProbeKind.FOURTH: ProbeGroup.PHASE,
    ProbeKind.START: ProbeGroup.PHASE,
    ProbeKind.TAIL: ProbeGroup.AFTER,
    ProbeKind.LENGTH: ProbeGroup.LENGTH,
    ProbeKind.DRIFT: ProbeGroup.RUN_TIME,
    ProbeKind.LAG_DRIFT: ProbeGroup.TIMING,
    ProbeKind.GAP: ProbeGroup.IDLE,
    ProbeKind.PAUSE: ProbeGroup.IDLE,
    ProbeKind.REST: ProbeGroup.IDLE,
    ProbeKind.SOON: ProbeGroup.IDLE,
    ProbeKind.LATER: ProbeGroup.IDLE,
}
#: The kinds that say how one column's rate varies, of a region's and of nobody's.
_FINE: Final = (ProbeKind.THIRD, ProbeKind.FOURTH)
_OF_REGIONS: Final = (
    ProbeKind.SLOPE,
    ProbeKind.BEND,
    ProbeKind.THIRD,
    ProbeKind.FOURTH,
    ProbeKind.START,
    ProbeKind.TAIL,
    ProbeKind.LENGTH,
    ProbeKind.DRIFT,
)
_OF_NOBODY: Final = (ProbeKind.GAP, ProbeKind.PAUSE, ProbeKind.REST, ProbeKind.SOON, ProbeKind.LATER, ProbeKind.DRIFT)


def _phase(degree: int) -> Polynomial:
    integral = Legendre.basis(degree, domain=[0, 1]).integ(lbnd=0)
    result: Polynomial = integral.convert(kind=Polynomial)
    return result


#: Of each way in which power may vary over an execution, its integral over the first part, as a share of the whole: a
#: Legendre polynomial, so that it is 0 over all of it. With fewer degrees than four, a region that works in a third of
#: its time is better explained by a sensor that lags by some milliseconds more or less.
PHASES: Final = {
    kind: _phase(degree)
    for degree, kind in enumerate((ProbeKind.SLOPE, ProbeKind.BEND, ProbeKind.THIRD, ProbeKind.FOURTH), start=1)
}
#: By power of the part that has passed, the coefficients of each.
_COEFFICIENTS: Final = np.stack([np.pad(each.coef, (0, 6 - len(each.coef))) for each in PHASES.values()], axis=1)


def phases(passed: Floats) -> Floats:
    """Those integrals up to each part of an execution: `[phases, parts]`."""
    return polyval(passed, _COEFFICIENTS).astype(np.float64, copy=False)


#: Nobody's power may go from one level to another between pauses of these lengths and ten times longer ones: those
#: between regions, those in which a region is that nobody marked, and those in which the program waits. Pauses shorter
#: than the first are alike: how long one is, stamps decide as much as the program.
_LONGER_NS: Final = {ProbeKind.GAP: _MS, ProbeKind.PAUSE: 10 * _MS, ProbeKind.REST: 100 * _MS}


class Probe(NamedTuple):
    """One probe. `column` is whose rate it varies; -1 for the timing, which concerns all."""

    kind: ProbeKind
    column: int = -1


class Prior(NamedTuple):
    """What is known of a sensor's timing before its windows: the standard deviations, in ms, of what it is off by, and
    what it leaves unexplained of the windows of a load that is known, as a share of their standard deviation."""

    spreads_ms: Mapping[ProbeKind, float]
    misfit: float


def choose(active: Floats, lengths: Floats, *, window: bool) -> tuple[Probe, ...]:
    """The probes for columns that were active for so long each, nobody's first.

    `lengths` are how long an execution of each typically lasts, as shares of what a reading averages over.
    `window`: the sensor averages over a window of its own, which may be off too.
    """
    share = active / max(float(active.sum()), 1e-300)
    share[0] = 0.0
    busiest = np.argsort(-share, kind="stable")[:MOST_PROBED]
    regions = sorted(int(column) for column in busiest if share[column] >= _LEAST_SHARE)
    return (
        *(
            Probe(kind, column)
            for kind in _OF_REGIONS
            for column in regions
            if kind not in _FINE or lengths[column] >= _SHORT
        ),
        *(Probe(kind, 0) for kind in _OF_NOBODY),
        Probe(ProbeKind.LAG),
        Probe(ProbeKind.LAG_DRIFT),
        *([Probe(ProbeKind.WINDOW)] if window else ()),
    )


def slots_of(probes: Sequence[Probe], columns: int) -> Ints:
    """The place of each column among those that have probes, -1 for none."""
    slots, probed = np.full(columns, -1), sorted({probe.column for probe in probes if probe.column > 0})
    slots[probed] = np.arange(len(probed))
    return slots


class Gaps(NamedTuple):
    """The pauses in which no piece is active, by start, in ns. The last one has no end yet: it is where it starts."""

    starts: Ints
    ends: Ints

    @classmethod
    def between(cls, starts: Ints, reached: Ints) -> Gaps:
        """Between pieces by start, whose latest end so far is `reached`."""
        if not len(starts):
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        apart = starts[1:] > reached[:-1]
        return cls(np.append(reached[:-1][apart], reached[-1]), np.append(starts[1:][apart], reached[-1]))

    def integrals(self, moments: Ints, latest: Ints | None = None) -> dict[ProbeKind, Floats]:
        """Of each way in which nobody's power may vary over a pause, its integral up to each moment, in ns.

        The last pause is as long as is known: up to the latest of the moments, or for each moment up to `latest`.
        """
        if not len(self.starts):
            return {kind: np.zeros(len(moments)) for kind in (*_LONGER_NS, ProbeKind.SOON, ProbeKind.LATER)}
        origin = int(self.starts[0])
        starts, ends, at = ((part - origin).astype(np.float64) for part in (self.starts, self.ends, moments))
        ends[-1] = max(starts[-1] + 1.0, float(at.max(initial=0.0)))
        lengths = ends - starts
        place = np.maximum(np.searchsorted(starts, at, side="right") - 1, 0)
        own = lengths[place]
        if latest is not None:
            open_ = place == len(starts) - 1
            own[open_] = np.maximum(1.0, (latest[open_] - origin) - starts[-1])
        since = np.clip(at - starts[place], 0.0, own)
        found = {}
        for kind, passed, whole in (
            *((kind, _level(kind, own) * since, _level(kind, lengths) * lengths) for kind in _LONGER_NS),
            (ProbeKind.SOON, _settled(since, 50e6), _settled(lengths, 50e6)),
            (ProbeKind.LATER, _settled(since, 1e9), _settled(lengths, 1e9)),
        ):
            before = np.concatenate(([0.0], np.cumsum(whole)[:-1]))
            found[kind] = before[place] + passed
        return found


def _level(kind: ProbeKind, lengths: Floats) -> Floats:
    """How far nobody's power has gone from one level to the other in pauses of these lengths."""
    level: Floats = np.clip(np.log10(np.maximum(lengths, 1.0) / _LONGER_NS[kind]), 0.0, 1.0)
    return level


def faded(since: Floats, within_ns: float) -> Floats:
    """The integral of what fades within so many ns, and is 1 to begin with: in ns, up to that long since it began."""
    integral: Floats = within_ns * -np.expm1(-since / within_ns)
    return integral


def _settled(since: Floats, constant_ns: float) -> Floats:
    """The integral of `s / (s + constant)`: how far something has settled that begins to when work ends."""
    settled: Floats = since - constant_ns * np.log1p(since / constant_ns)
    return settled


def run_time(moments: Ints, origin_ns: int) -> Floats:
    """Time since an origin, in the unit of the probes of drift."""
    since: Floats = (moments - origin_ns) / _RUN_NS
    return since


def groups_of(probes: Sequence[Probe]) -> dict[ProbeGroup, Ints]:
    """The places of each group's probes. The sensor's lag and window are in none: nothing says that they are right."""
    places: dict[ProbeGroup, list[int]] = {}
    for i, probe in enumerate(probes):
        if probe.kind in GROUPS:
            places.setdefault(GROUPS[probe.kind], []).append(i)
    return {group: np.array(each, np.int64) for group, each in places.items()}
