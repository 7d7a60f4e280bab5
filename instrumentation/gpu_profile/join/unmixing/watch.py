"""New windows against what the rates say of them: which are near, and whether the timing still holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.equations import packed, unpacked
from gpu_profile.join.unmixing.probes import ProbeGroup
from gpu_profile.join.unmixing.unmix import Fit

#: A window that misses by so many standard deviations is not what the equations are about: a late reading, or one that
#: was taken for that of another renewal.
_OUTLIER: Final = 6.0
#: Windows tell of the timing if what the rates say of them is this well known, as a share of the variance of a window.
_WELL_KNOWN: Final = 0.25
#: A timing is doubted when the latest windows miss by this many times what they missed by when it was found (mean
#: squares, outliers cut), over about as many windows as this; the more often that was so, the less readily.
_DRIFT: Final = 1.75
_DRIFT_WINDOWS: Final = 200
#: ... and is beyond doubt while they miss by no more than this many times as much.
_SOUND: Final = 1.25
#: What is known no better than this is not known.
_UNKNOWN: Final = 1e30
#: The rates that new windows are held against are solved for anew when there are this many times as many windows.
_REFIT: Final = 1.25


class ResidualWatch:
    """What the latest solution says of new windows, and by how much they miss that."""

    def __init__(self) -> None:
        #: How often the windows had missed by too much.
        self.drifts = 0
        #: The variances of the latest solution.
        self.variances: Mapping[ProbeGroup, float] = {}
        #: What windows miss by, as mean squares: when the timing was found, and lately.
        self._usual = self._recent = 0.0
        #: Windows that told of the timing since it was last beyond doubt or locked, and how many there were by then.
        self._told = self._since_n = 0
        #: The latest solution, of how many windows it is, the covariance of its errors, the variance of a window, and
        #: the columns that it knows. The covariance only says how far a window may be off: half of its digits will do.
        self._n = 0
        self._solution: Floats = np.zeros(0)
        self._covariance: npt.NDArray[np.float32] = np.zeros(0, np.float32)
        self._noise = np.inf
        self._known = np.zeros(0, bool)

    def found(self, residual: float) -> None:
        """A timing was found that leaves so much."""
        self._usual = self._recent = residual

    def begin(self, n: int) -> None:
        """Windows are watched from now on; there are so many."""
        self._n, self._told, self._since_n = 0, 0, n

    def due(self, n: int) -> bool:
        """Whether the solution that windows are held against is to be renewed, now that there are so many."""
        return n > _REFIT * self._n

    def expect(self, fit: Fit) -> bool:
        """Hold windows against a solution from now on; whether the timing under which it was found is beyond doubt."""
        self._n, self.variances = fit.n, fit.found.variances
        self._solution, self._noise, self._known = fit.solution, fit.noise, fit.known
        self._covariance = packed(np.clip(fit.found.covariance, -_UNKNOWN, _UNKNOWN)).astype(np.float32)
        # Most windows must have told of the timing, not only of regions that are hardly known.
        sound = self._recent < _SOUND * self._usual and 2 * self._told > fit.n - self._since_n
        if sound:
            self._told, self._since_n = 0, fit.n
        return sound

    def forget(self) -> None:
        """The columns are others than before: the solution is to be renewed."""
        self._n = 0

    def near(self, probes: Floats, shares: Floats, values: Floats) -> npt.NDArray[np.bool_]:
        """Which windows are near what the rates say of them."""
        if not self._usual > 0:
            return np.ones(len(values), bool)
        told, doubt = self.told(probes, shares)
        missed = (values - told) ** 2
        # A window of a region that is hardly known yet is the only way to know it better, however far off it is.
        telling = np.isfinite(doubt) & (doubt <= _WELL_KNOWN * self._noise)
        most = _OUTLIER**2 * self._usual
        if telling.any():
            latest = float(np.minimum(missed[telling], most).mean())
            self._recent += min(1.0, telling.sum() / _DRIFT_WINDOWS) * (latest - self._recent)
        self._told += int(telling.sum())
        near: npt.NDArray[np.bool_] = missed <= most + _OUTLIER**2 * doubt
        return near

    def told(self, probes: Floats, shares: Floats) -> tuple[Floats, Floats]:
        """What the solution says of windows by their equations, and the variance of that: infinite where they have
        columns that no window had yet."""
        columns = shares.shape[1]
        k = min(columns, len(self._known))
        rows = np.concatenate((probes, shares[:, :k]), axis=1)
        size = rows.shape[1]
        values: Floats = rows @ self._solution[:size]
        if not np.isfinite(self._noise):
            return values, np.full(len(shares), np.inf)
        known = np.append(self._known[:k], np.zeros(columns - k, bool))
        strange = (shares[:, ~known] > 0).any(axis=1)
        covariance = unpacked(self._covariance, len(self._solution))[:size, :size]
        doubt = ((rows @ covariance) * rows).sum(axis=1)
        return values, np.where(strange, np.inf, np.maximum(doubt, 0.0))

    @property
    def drifted(self) -> bool:
        """Whether the latest windows miss by far more than they did when the timing was found."""
        return self._usual > 0 and self._recent > _DRIFT * (1 + self.drifts) * self._usual
