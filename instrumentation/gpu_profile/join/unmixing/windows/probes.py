"""Probe columns: the linearised effects of violated assumptions on the windows. Pure.

The equations assume that a region draws the same throughout an execution, in long and short executions, and early and
late in a run. They assume that all time outside regions is alike, and that the sensor's timing is right. A probe is the
linearised effect of one violation on every window. Its coefficient is shrunk towards zero with its group (`shrinkage`):
a group that the windows do not support changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.polynomial import Legendre, Polynomial

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.units import NS_PER_S

#: At most this many columns have probes of their own, and only columns active for at least this share of the time.
MOST_PROBED: Final = 16
_LEAST_SHARE: Final = 0.005
#: For executions shorter than this share of a reading's averaging time, degrees above the second are left out: their
#: effect on a reading is at most 1 % of the rate, even for a region that works in a third of its time.
_SHORT: Final = 0.1
_MS: Final = 1_000_000
Bools = npt.NDArray[np.bool_]
#: The start of an execution differs by an effect that fades within this time: a first part of its own (prefill before
#: decode), rising clocks, earlier work that still runs. Times from 1.5 to 6 ms explain such programs equally well.
FADES_NS: Final = 3.0 * _MS
#: So does the time after it: work that it launched and that continues, warm caches. A time below that of most such work
#: does better than a longer one: it shows where windows end soon after an execution.
TAIL_NS: Final = 1.5 * _MS
#: The unit of run time in a probe of drift.
_RUN_NS: Final = 60 * NS_PER_S


class ProbeGroup(StrEnum):
    """Violations whose probes are shrunk together. The values are texts of refusals."""

    PHASE = "its power changes within an execution"
    LENGTH = "its power depends on the length of an execution"
    RUN_TIME = "its power changes over the run"
    TIMING = "the timing of the sensor is uncertain"
    AFTER = "power after a region depends on which one it was"
    IDLE = "power outside regions changes with the length of the pause"
    BESIDE = "its power depends on the regions beside it"


class ProbeKind(StrEnum):
    """The violation of an assumption that a probe models."""

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
    OPEN = "open"
    PRESENT = "present"


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
    ProbeKind.OPEN: ProbeGroup.BESIDE,
    ProbeKind.PRESENT: ProbeGroup.BESIDE,
}
#: The fine variations within an execution, and all kinds of one region's column.
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


def _phase(degree: int) -> Polynomial:
    integral = Legendre.basis(degree, domain=[0, 1]).integ(lbnd=0)
    result: Polynomial = integral.convert(kind=Polynomial)
    return result


#: Each variation of power over an execution, integrated up to a part of it, as a share of the whole. They are Legendre
#: polynomials, so the full integral is 0. With fewer than four degrees, a lag that is off by a few milliseconds would
#: explain a region that works in a third of its time better.
PHASES: Final = {
    kind: _phase(degree)
    for degree, kind in enumerate((ProbeKind.SLOPE, ProbeKind.BEND, ProbeKind.THIRD, ProbeKind.FOURTH), start=1)
}
#: The kinds of variation over an execution, by its elapsed part and by its length.
VARIED: Final = (*PHASES, ProbeKind.START, ProbeKind.LENGTH)
#: The coefficients of each phase, by power of the elapsed part.
_COEFFICIENTS: Final[Floats] = np.stack([np.pad(each.coef, (0, 6 - len(each.coef))) for each in PHASES.values()])


def phases(passed: Floats) -> Floats:
    """The integrals `PHASES` up to each elapsed part of an execution: `[phases, parts]`."""
    powers = np.ones((_COEFFICIENTS.shape[1], len(passed)))
    powers[1:] = passed
    integrals: Floats = _COEFFICIENTS @ np.multiply.accumulate(powers, out=powers)
    return integrals


#: Power outside regions may change between pauses of these lengths and ten times longer ones: pauses between regions,
#: pauses with an unmarked region, and pauses in which the program waits. Shorter pauses are alike, because stamp errors
#: affect their lengths as much as the program does.
_LONGER_NS: Final = (_MS, 10 * _MS, 100 * _MS)
_LONGER: Final = np.log10(_LONGER_NS)[:, None]
#: ... and it may settle after work ends, within times of this order.
_SETTLED_NS: Final = np.array([[50e6], [1e9]])
#: The kinds of variation over a pause: by its length, and since the end of work.
PAUSES: Final = (ProbeKind.GAP, ProbeKind.PAUSE, ProbeKind.REST, ProbeKind.SOON, ProbeKind.LATER)
#: The kinds of effects of a region's executions on the power of shared time: of how many run, and of whether any does.
BESIDE: Final = (ProbeKind.OPEN, ProbeKind.PRESENT)
#: The kinds of probes with mean 0 over the time of each column.
CENTRED: Final = (ProbeKind.TAIL, *BESIDE)


class Probe(NamedTuple):
    """One probe. `column` is the column with the varying rate; -1 for the timing, which affects all columns."""

    kind: ProbeKind
    column: int = -1


class Prior(NamedTuple):
    """The prior of a sensor's timing: the standard deviations of its errors, in ms, and the unexplained part of the
    windows of a calibrated load, as a share of their standard deviation."""

    spreads_ms: Mapping[ProbeKind, float]
    misfit: float


def choose(active: Floats, lengths: Floats, *, window: bool, shared: Bools | None = None) -> tuple[Probe, ...]:
    """The probes for columns with these active times; the first is the column outside regions.

    `lengths` are typical lengths of an execution by column, as shares of a reading's averaging time. `window`: the
    sensor averages over a window of its own, whose length may be wrong too. `shared`: the columns of shared time, whose
    power may depend on the regions that share it.
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
        *(Probe(kind, column) for kind in BESIDE for column in regions if shared is not None and shared[column]),
        *(Probe(kind, 0) for kind in (*PAUSES, ProbeKind.DRIFT)),
        Probe(ProbeKind.LAG),
        Probe(ProbeKind.LAG_DRIFT),
        *([Probe(ProbeKind.WINDOW)] if window else ()),
    )


def slots_of(probes: Sequence[Probe], columns: int) -> Ints:
    """By column: its place among the columns that have probes, -1 for none."""
    slots, probed = np.full(columns, -1), sorted({probe.column for probe in probes if probe.column > 0})
    slots[probed] = np.arange(len(probed))
    return slots


class Gaps(NamedTuple):
    """The pauses in which no piece is active, in order of start, in ns. The last one is open and ends at its start."""

    starts: Ints
    ends: Ints

    @classmethod
    def between(cls, starts: Ints, reached: Ints) -> Gaps:
        """The pauses between pieces sorted by start. `reached` is the latest end so far at each piece."""
        if not len(starts):
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        ends = np.concatenate((starts[1:], reached[-1:]))
        apart = ends > reached
        apart[-1] = True
        return cls(reached[apart], ends[apart])

    def integrals(self, moments: Ints, latest: Ints | None = None) -> Floats:
        """By kind of variation over a pause, in the order of `PAUSES`: its integral up to each moment, in ns.

        The open last pause extends to the latest of `moments`, or for each moment to its entry in `latest`.
        """
        count = len(self.starts)
        if not count:
            return np.zeros((len(PAUSES), len(moments)))
        origin = int(self.starts[0])
        starts, ends, at = ((part - origin).astype(np.float64) for part in (self.starts, self.ends, moments))
        ends[-1] = max(starts[-1] + 1.0, float(at.max(initial=0.0)))
        lengths = ends - starts
        place = np.maximum(starts.searchsorted(at, side="right") - 1, 0)
        own = lengths[place]
        if latest is not None:
            open_ = place == count - 1
            own[open_] = np.maximum(1.0, (latest[open_] - origin) - starts[-1])
        # The whole pauses and the parts of pauses up to the moments, all at once.
        since = np.concatenate((lengths, np.minimum(np.maximum(at - starts[place], 0.0), own)))
        # How far power outside regions has moved from one level to the other in a pause of this length: 0 to 1.
        level = np.log10(np.maximum(np.concatenate((lengths, own)), 1.0)) - _LONGER
        level = np.minimum(np.maximum(level, 0.0, out=level), 1.0, out=level)
        # The integral of `s / (s + constant)`: an effect that begins to settle when work ends.
        settled = since - _SETTLED_NS * np.log1p(since / _SETTLED_NS)
        parts = np.concatenate((level * since, settled))
        before = np.zeros((len(PAUSES), count))
        parts[:, : count - 1].cumsum(axis=1, out=before[:, 1:])
        integrals: Floats = before[:, place] + parts[:, count:]
        return integrals


def faded(since: Floats, within_ns: float) -> Floats:
    """The integral, in ns, of an effect that is 1 at first and fades with time constant `within_ns`."""
    integral: Floats = within_ns * -np.expm1(-since / within_ns)
    return integral


def run_time(moments: Ints, origin_ns: int) -> Floats:
    """Time since `origin_ns`, in minutes: the unit of the drift probes."""
    since: Floats = (moments - origin_ns) / _RUN_NS
    return since


def groups_of(probes: Sequence[Probe]) -> dict[ProbeGroup, Ints]:
    """The places of each group's probes. The sensor's lag and window are in no group, because nothing supports 0."""
    places: dict[ProbeGroup, list[int]] = {}
    for i, probe in enumerate(probes):
        if probe.kind in GROUPS:
            places.setdefault(GROUPS[probe.kind], []).append(i)
    return {group: np.array(each, np.int64) for group, each in places.items()}
