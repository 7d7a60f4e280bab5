"""Compares new windows with the rates' predictions, and detects a timing that no longer fits. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats, Singles
from gpu_profile.join.unmixing.solving.equations import packed, unpacked
from gpu_profile.join.unmixing.solving.unmix import Fit
from gpu_profile.join.unmixing.windows.probes import Bools, ProbeGroup

#: Residuals above this many standard deviations are outliers: late readings, or readings of another renewal.
_OUTLIER: Final = 6.0
#: Windows are evidence on the timing if the variance of their prediction is at most this share of a window's variance.
_WELL_KNOWN: Final = 0.25
#: A timing is in doubt when the recent mean squared residual (outliers clipped) is this multiple of the baseline, over
#: about this many windows. Each earlier drift raises the multiple.
_DRIFT: Final = 1.75
_DRIFT_WINDOWS: Final = 200
#: ... and is beyond doubt while it is below this multiple.
_SOUND: Final = 1.25
#: An unknown is negligible if it adds less than this share of a window's variance to the prediction of a window that
#: contains it. For 10 regions, all negligible ones together change a prediction's variance by 0.2 % of a window's.
_NEGLIGIBLE: Final = 1e-4
#: Variances are clipped to this, so that they fit single precision.
_UNKNOWN: Final = 1e30
#: The rates are solved again when the number of windows has grown by this factor.
_REFIT: Final = 1.25


class ResidualWatch:
    """The latest solution's predictions of new windows, and their residuals."""

    def __init__(self) -> None:
        #: How often the timing was in doubt.
        self.drifts = 0
        #: The variances of the latest solution.
        self.variances: Mapping[ProbeGroup, float] = {}
        #: Mean squared residuals: when the search ended, and recently.
        self._baseline_mse = self._recent_mse = 0.0
        #: Informative windows since the timing was last beyond doubt or locked, and the number of windows at that time.
        self._informative_n = self._since_n = 0
        #: The latest solution: its windows, its values, the unknowns with errors that matter and the covariance of
        #: these, the variance of a window, and the columns that it covers. They only bound residuals, so single
        #: precision suffices.
        self._n = 0
        self._solution: Singles = np.zeros(0, np.float32)
        self._uncertain = np.zeros(0, bool)
        self._covariance: Singles = np.zeros(0, np.float32)
        self._noise = np.inf
        self._seen = np.zeros(0, bool)

    def set_baseline(self, residual: float) -> None:
        """Begin with the residual, a mean square, under a new timing."""
        self._baseline_mse = self._recent_mse = residual

    def begin(self, n: int) -> None:
        """Watch windows from now on. There are `n` so far."""
        self._n, self._informative_n, self._since_n = 0, 0, n

    def due(self, n: int) -> bool:
        """Whether the solution must be renewed, now that there are `n` windows."""
        return n > _REFIT * self._n

    def expect(self, fit: Fit, solution: Singles) -> bool:
        """Compare windows with a new fit and its `solution` from now on. True if that timing is beyond doubt."""
        self._n, self.variances = fit.n, fit.posterior.variances
        self._solution, self._noise, self._seen = solution, fit.noise, fit.seen
        covariance = np.clip(fit.posterior.covariance, -_UNKNOWN, _UNKNOWN)
        self._uncertain = uncertain = covariance.diagonal() * fit.squares > _NEGLIGIBLE * min(fit.noise, _UNKNOWN)
        self._covariance = packed(covariance[uncertain][:, uncertain]).astype(np.float32)
        # Most windows must be evidence on the timing, not only on regions with uncertain rates.
        sound = self._recent_mse < _SOUND * self._baseline_mse and 2 * self._informative_n > fit.n - self._since_n
        if sound:
            self._informative_n, self._since_n = 0, fit.n
        return sound

    def forget(self) -> None:
        """Renew the solution at the next windows: the columns have changed."""
        self._n = 0

    def near(self, probes: Floats, shares: Floats, values: Floats) -> tuple[Bools, Bools]:
        """Which windows are within the outlier limit of their predictions, with and without the predictions' doubt."""
        if not self._baseline_mse > 0:
            return np.ones(len(values), bool), np.ones(len(values), bool)
        predicted, doubt = self.predict(probes, shares)
        missed = (values - predicted) ** 2
        # Only windows of a region with an uncertain rate can improve that rate, so they stay, however far off.
        informative = np.isfinite(doubt) & (doubt <= _WELL_KNOWN * self._noise)
        most = _OUTLIER**2 * self._baseline_mse
        if informative.any():
            latest = float(np.minimum(missed[informative], most).mean())
            self._recent_mse += min(1.0, informative.sum() / _DRIFT_WINDOWS) * (latest - self._recent_mse)
        self._informative_n += int(informative.sum())
        return missed <= most + _OUTLIER**2 * doubt, missed <= most

    def predict(self, probes: Floats, shares: Floats) -> tuple[Floats, Floats]:
        """Predictions of windows from their equations, and the variances of the predictions.

        The variance is infinite for windows with columns that no window had before."""
        columns = shares.shape[1]
        k = min(columns, len(self._seen))
        rows = np.concatenate((probes, shares[:, :k]), axis=1)
        size = rows.shape[1]
        values: Floats = rows @ self._solution[:size]
        if not math.isfinite(self._noise):
            return values, np.full(len(shares), np.inf)
        rows = rows[:, self._uncertain[:size]]
        covariance = unpacked(self._covariance, int(self._uncertain.sum()))[: rows.shape[1], : rows.shape[1]]
        doubt = np.maximum((rows @ covariance * rows).sum(axis=1), 0.0)
        if columns > k or not self._seen[:k].all():
            unseen = np.append(~self._seen[:k], np.ones(columns - k, bool))
            doubt[(shares[:, unseen] > 0).any(axis=1)] = np.inf
        return values, doubt

    @property
    def drifted(self) -> bool:
        """Whether the recent residuals are far above the baseline."""
        return self._baseline_mse > 0 and self._recent_mse > _DRIFT * (1 + self.drifts) * self._baseline_mse
