"""Corrects a timing by the coefficients of its probes, and makes the equations of windows under it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.design import Rows
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.unmix import Fit
from gpu_profile.join.unmixing.windows.probes import Bools, ProbeKind, run_time
from gpu_profile.join.unmixing.windows.sensor import Sensor

#: The most corrections of a timing. One is undone if it multiplies the variance of a window's error by more than the
#: second number, beyond the effect of the search's remaining uncertainty.
_CORRECTIONS: Final = 5
_WORSE: Final = 2.0
#: Windows with residuals above this many standard deviations are outliers, unless they are more than the share `_FEW`.
#: The median residual of normal errors is `_MEDIAN` standard deviations.
_OUTLIER: Final = 6.0
_FEW: Final = 0.25
_MEDIAN: Final = 0.6745
#: A window is a mixture if none of its columns fills more than this share of it. They must be half of all windows.
_FILLED: Final = 0.95


class Corrected(NamedTuple):
    """A timing, the equations of windows under it, their sum with the earlier equations, and its fit. `reference` are
    the rates that weight the probes of the timing. Windows that are not `near[n]` are left out of the sum."""

    sensor: Sensor
    reference: Floats
    rows: list[Rows]
    equations: Equations
    fit: Fit
    near: Bools | None = None

    def without_outliers(self, earlier: Equations, fit_of: Callable[[Equations], Fit]) -> Corrected:
        """The sum with `earlier`, and its fit, without windows far from their prediction. These must be few, and make
        most of the residual.

        Work of other processes, and executions without a mark, are in few windows. Least squares would fit these at the
        cost of all others. Windows of a region with an uncertain rate stay: only they can improve it.
        """
        if not self.rows:
            return self
        shares, values, probes, times = (np.concatenate(part) for part in zip(*self.rows, strict=True))
        columns = np.hstack((probes, shares))
        size = columns.shape[1]
        missed = (values[:, 0] - columns @ self.fit.solution[:size]) ** 2
        doubt = (columns @ self.fit.posterior.covariance[:size, :size] * columns).sum(axis=1)
        # A window that one column fills has no error of the timing.
        mixed = missed[shares.max(axis=1) < _FILLED * shares.sum(axis=1)]
        if 2 * len(mixed) < len(missed):
            return self
        # The value of a long window hardly depends on the moments of its ends.
        near = (missed <= _OUTLIER**2 * (np.median(mixed) / _MEDIAN**2 + doubt)) | (times > 1)
        if near.mean() < 1 - _FEW or missed[near].sum() >= missed[~near].sum():
            return self
        equations = earlier.copy()
        equations.add(shares, values, probes, times, near)
        rows = [(shares, values, probes, times)]
        return self._replace(rows=rows, equations=equations, fit=fit_of(equations), near=near)


def corrected(
    sensor: Sensor, reference: Floats, earlier: Equations, rows_of: Callable[[Sensor, Floats], Iterable[Rows]],
    *, lead: Signal, fit_of: Callable[[Equations], Fit], given: bool, length_ns: int, now_ns: int, origin_ns: int,
) -> Corrected:  # fmt: skip
    """Correct a timing until its probes ask for no more, or a correction makes it worse; with `given`, only its lag.

    `rows_of` makes the equations of windows under a timing whose probes are weighted by rates. They are added to
    `earlier` and solved by `fit_of`. The windows are around `now_ns`. A reading of `lead` is a mean over `length_ns`.
    Run time counts from `origin_ns`.
    """

    def tried(sensor: Sensor, reference: Floats) -> Corrected:
        rows, equations = list(rows_of(sensor, reference)), earlier.copy()
        for each in rows:
            equations.add(*each)
        return Corrected(sensor, reference, rows, equations, fit_of(equations))

    at = float(run_time(np.array([now_ns]), origin_ns)[0])
    held = tried(sensor, reference)
    for _ in range(_CORRECTIONS):
        sensor, fit = held.sensor, held.fit
        drift = fit.correction(ProbeKind.LAG_DRIFT)
        # Windows of a short time, late in a run, determine the lag at that time, not at the start of the run.
        lag = fit.correction(ProbeKind.LAG) + drift * at
        if not sensor.period_ns or sensor.follows or lead.kind is not Kind.COUNTER:
            drift = 0.0
        window = 0.0 if given else fit.correction(ProbeKind.WINDOW)
        moved = sensor.corrected(lag, window, drift, now_ns)
        if moved is sensor:
            break
        other = tried(moved, fit.rates)
        # The variance that the remaining uncertainty of a reading's moment adds to a window, at the highest rate.
        blur = float(np.abs(other.fit.rates).max() * moved.blur_ns / length_ns) ** 2
        if other.fit.noise > _WORSE * fit.noise + blur:
            # Some readings now count for another renewal.
            break
        held = other
    return held
