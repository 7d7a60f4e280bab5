"""The bounds of a rate by the mean of the windows that overlap its columns, without solving any equations. Pure."""

from __future__ import annotations

import numpy as np

from gpu_profile.history.timeline import Floats


def overlapping(gram: Floats, moment: Floats, weights: Floats, most: float) -> tuple[float, float, float, float] | None:
    """The bounds of the rate of a mixture of columns, the number of windows that they fill, and their mean share of the
    windows that overlap them; None if there are no bounds.

    `gram[columns, columns]` and `moment[columns]` are the normal equations of steady rates. Where the columns are
    active for a share `f` of the windows that overlap them, the windows' mean is `f·rate + (1 - f)·rest`. No column's
    rate is above its ceiling: `most`, or its rate if it alone had drawn all of its windows' total. So the rest is
    bounded too, and bounds the rate.
    """
    used, diagonal = weights > 0, np.diag(gram)
    share = float(gram[used].sum())
    unseen = used & (diagonal <= 0)
    # For a column in no window, only the highest possible rate bounds it.
    if share <= 0 or (unseen.any() and not np.isfinite(most)):
        return None
    # Shares of a window add up to 1, so a row of the equations adds up to the column's own share.
    filled = float(gram[np.ix_(used, used)].sum()) / share
    mean = float(moment[used].sum()) / share
    ceilings = np.where(unseen, most, np.minimum(most, moment / np.where(diagonal > 0, diagonal, 1.0)))
    rest = float(gram[np.ix_(used, ~used)].sum(axis=0) @ ceilings[~used]) / share
    # The proportions of the columns in the windows may differ from `weights`.
    surplus = weights - np.where(used, gram[used].sum(axis=0), 0.0) / (filled * share)
    low = (mean - rest) / filled + float(np.minimum(surplus, 0.0) @ ceilings)
    high = mean / filled + float(np.maximum(surplus, 0.0) @ ceilings)
    low, high = max(0.0, low), min(most, high)
    # Windows contradict the bounds if rounding dominates columns of very little active time.
    return None if low > high else (low, high, filled * share, filled)
