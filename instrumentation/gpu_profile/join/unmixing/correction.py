"""The equations of windows under a timing that was found, corrected by what its probes say of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.design import Rows
from gpu_profile.join.unmixing.equations import Equations
from gpu_profile.join.unmixing.probes import ProbeKind, run_time
from gpu_profile.join.unmixing.sensor import Sensor
from gpu_profile.join.unmixing.unmix import Fit

#: How often a timing is corrected by what its probes say; not once more if that multiplies the variance of a window's
#: error by more than this, and by more than what the search leaves the moment of a reading open.
_CORRECTIONS: Final = 5
_WORSE: Final = 2.0


class Corrected(NamedTuple):
    """A timing, the equations of windows under it, what was known with these added, and the fit of that. The probes of
    the timing are weighted by the rates `reference`."""

    sensor: Sensor
    reference: Floats
    rows: list[Rows]
    equations: Equations
    fit: Fit


def corrected(
    sensor: Sensor, reference: Floats, known: Equations, rows_of: Callable[[Sensor, Floats], Iterable[Rows]],
    *, lead: Signal, fit_of: Callable[[Equations], Fit], given: bool, length_ns: int, now_ns: int, origin_ns: int,
) -> Corrected:  # fmt: skip
    """Correct a timing until its probes ask for no more, or would spoil it; only the lag, if its shape is `given`.

    `rows_of` makes the equations of windows, which are around `now_ns`, under a timing, its probes weighted by rates,
    and `fit_of` solves them. A reading of `lead` is a mean over `length_ns`; run time counts from `origin_ns`.
    """

    def tried(sensor: Sensor, reference: Floats) -> Corrected:
        rows, equations = list(rows_of(sensor, reference)), known.copy()
        for each in rows:
            equations.add(*each)
        return Corrected(sensor, reference, rows, equations, fit_of(equations))

    at = float(run_time(np.array([now_ns]), origin_ns)[0])
    held = tried(sensor, reference)
    for _ in range(_CORRECTIONS):
        sensor, fit = held.sensor, held.fit
        drift = fit.correction(ProbeKind.LAG_DRIFT)
        # Late in a run, windows of a short time say well what the lag is then, not what it was at the start.
        lag = fit.correction(ProbeKind.LAG) + drift * at
        if not sensor.period_ns or sensor.follows or lead.kind is not Kind.COUNTER:
            drift = 0.0
        window = 0.0 if given else fit.correction(ProbeKind.WINDOW)
        moved = sensor.corrected(lag, window, drift, now_ns)
        if moved is sensor:
            break
        other = tried(moved, fit.rates)
        # What a moment that the search leaves open adds to the variance of a window's error, at the highest rate.
        blur = float(np.abs(other.fit.rates).max() * moved.blur_ns / length_ns) ** 2
        if other.fit.noise > _WORSE * fit.noise + blur:
            # Some readings are now taken for those of another renewal.
            break
        held = other
    return held
