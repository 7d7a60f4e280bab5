"""The timing that is found where regions work in a part of their time: of all that were tried, it is the likeliest."""

import numpy as np
import pytest
from benchmarks.unmixing_worlds import MS, ORIGIN_NS

from gpu_profile.catalogue.signals import UTILIZATION
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.design import Windows
from gpu_profile.join.unmixing.timing.timing_search import Search
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Pieces
from gpu_profile.units import NS_PER_S

_REGIONS = 6
_WINDOW_NS = 200 * MS


def working_first(seed: int, seconds: int) -> tuple[Ints, Floats]:
    """The edges of executions, in ns, and the busy share of each in the first third; the rest of it is idle.

    Regions of 2 to 20 ms follow each other in a fixed order with 10 % jitter.
    """
    rng = np.random.default_rng(seed)
    lengths, busy = np.exp(rng.uniform(np.log(2), np.log(20), _REGIONS)) * MS, rng.uniform(0.4, 1.0, _REGIONS)
    turns = int(seconds * NS_PER_S / lengths.sum()) + 10
    executed = np.tile(lengths, turns) * rng.uniform(0.9, 1.1, _REGIONS * turns)
    return np.rint(np.append(0.0, np.cumsum(executed))).astype(np.int64) + ORIGIN_NS, np.tile(busy, turns)


@pytest.mark.parametrize("seed", [0, 3])
def test_a_utilisation_without_a_lag_is_found_and_no_other_timing_is_likelier(seed: int) -> None:
    """Most readings differ by less than their rounding, so the others look like outliers."""
    edges, busy = working_first(seed, 60)
    columns = np.tile(np.arange(1, _REGIONS + 1), len(busy) // _REGIONS).astype(np.int16)
    active = ActiveTime.of(Pieces(columns.astype(np.int64) - 1, edges[:-1], edges[1:]), columns, columns)
    moments = np.stack((edges[:-1], edges[:-1] + np.diff(edges) // 3), axis=1).ravel()
    levels = np.stack((busy, np.zeros(len(busy))), axis=1).ravel()
    sums = np.append(0.0, np.cumsum(levels[:-1] * np.diff(moments)))
    stamps = ORIGIN_NS + np.arange(10, 290) * _WINDOW_NS
    percents = np.floor(100 * np.diff(np.interp(stamps, moments, sums)) / _WINDOW_NS)
    windows = Windows(stamps[:-1], stamps[1:], percents[:, None] / 100 * _WINDOW_NS / NS_PER_S)

    search = Search(UTILIZATION, windows, active, _REGIONS + 1, 1.0)
    found = search.run()
    assert (found.sensor.period_ns, found.sensor.window_ns) == (0, 0)
    assert abs(found.sensor.lag_ns) <= 2 * MS
    best = search._trial(found.sensor)
    assert all(search._trial(rival).score >= best.score for rival in found.alternatives)
    assert found.residual >= 0.01**2 / 12, "no reading is surer than its rounding"
