"""Time that readings do not describe: long executions in it are no one else's, short ones have others like them."""

import numpy as np
import pytest

from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.signal import Signal
from gpu_profile.join.unmixing.pools.shares import targets
from gpu_profile.join.unmixing.pools.unmeasured import Unmeasured, beside_left_out
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.rate import Rate
from gpu_profile.join.unmixing.solving.unmix import UNSTEADY, Fit
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Pieces

MS = 1_000_000


def pieces(*stretches: tuple[int, int, int]) -> ActiveTime:
    """From (column, start in ms, end in ms)."""
    column, starts, ends = (np.array([s[i] for s in stretches], np.int64) for i in range(3))
    return ActiveTime.of(Pieces(column, starts * MS, ends * MS), column, column)


def starved(lead: Signal, *rows_ms: tuple[int, int], active: ActiveTime, window_ms: int = 100) -> Unmeasured:
    """Rows that follow a reading at 0, of a sensor that is usually read every 100 ms."""
    result = Unmeasured(lead)
    result.note(0, np.array([end * MS for _, end in rows_ms], np.int64), 100 * MS)
    assert (result.since_ns is None) == (not result._waiting)
    result.count(active, 4, window_ms * MS)
    assert result.since_ns is None
    return result


def widened(unmeasured: Unmeasured, *active_s: float) -> list[Rate]:
    """Rates of 300 W ± 1 W of three regions, in windows of up to 400 W."""
    rng = np.random.default_rng(1)
    equations, shares = Equations(columns=4), rng.dirichlet(np.ones(4), 400)
    shares[0] = np.eye(4)[0]
    equations.add(shares, np.append(400.0, np.full(399, 300.0)))
    fit = Fit(equations, most=900.0)
    return [
        unmeasured.widened(Rate(300.0, 1.0, 400), fit, np.eye(4)[column], np.array([0.0, *active_s]))
        for column in (1, 2, 3)
    ]


def test_time_between_windows_is_unseen_where_one_piece_takes_most_of_it() -> None:
    short = [(2, at, at + 10) for at in range(1500, 2000, 20)]
    found = starved(rows.POWER_AVERAGE, (0, 100), (1000, 2100), active=pieces((1, 200, 1400), *short))
    rates = widened(found, 10.0, 10.0, 10.0)
    # 1.2 of 10 s may have had any power from 0 to 400 W.
    assert rates[0].half_width == pytest.approx(0.12 * 300, rel=0.03)
    assert not rates[0].reason
    assert [rate.half_width for rate in rates[1:]] == [1.0, 1.0]


def test_a_region_that_is_mostly_unseen_is_refused_with_that_reason() -> None:
    found = starved(rows.UTILIZATION, (0, 100), (5000, 5100), active=pieces((1, 0, 5100)))
    assert widened(found, 7.0, 1.0, 1.0)[0].reason == "no samples describe 70% of its time"


def test_the_sensors_window_describes_the_time_in_it() -> None:
    long = starved(rows.POWER_AVERAGE, (0, 1100), active=pieces((1, 0, 1100)), window_ms=1000)
    assert widened(long, 2.0, 1.0, 1.0)[0].half_width == pytest.approx(0.05 * 300, rel=0.2)


@pytest.mark.parametrize("lead", [rows.ENERGY, rows.GRAPHICS])
def test_counters_describe_all_of_the_time_between_readings(lead: Signal) -> None:
    found = starved(lead, (0, 100), (100, 5100), active=pieces((1, 0, 5100)))
    assert widened(found, 7.0, 1.0, 1.0)[0].half_width == 1.0


def test_a_merged_column_takes_its_unseen_time_along() -> None:
    found = starved(rows.POWER_AVERAGE, (0, 100), (1000, 2100), active=pieces((1, 200, 1400)))
    found.merge(1, 3)
    assert [rate.half_width > 1.0 for rate in widened(found, 10.0, 10.0, 10.0)] == [False, False, True]


def test_a_usual_reader_leaves_nothing_unseen() -> None:
    edges = [(at, at + 100) for at in range(0, 2000, 100)]
    found = starved(rows.POWER_AVERAGE, *edges, active=pieces((1, 0, 2000)))
    assert widened(found, 2.0, 1.0, 1.0)[0].half_width == 1.0


def test_an_energy_includes_what_uncovered_time_may_add() -> None:
    drawn, covered = np.array([100.0, 3000.0, 900.0]), np.array([1.0, 10.0, 3.0])

    def half_widths(uncovered_s: list[float]) -> list[float]:
        uncovered = np.array(uncovered_s)
        by = targets(drawn, covered, uncovered, [[0], [1], [2]], lambda _: Rate(300.0, 3.0, 99), 4000.0, 285.0)
        return [float(half_width) for half_width in by[1]]

    usual, more = half_widths([0.0, 0.0, 0.0]), half_widths([0.0, 1.0, 2.0])
    assert more[0] == usual[0]
    # A tenth of 3 kJ.
    assert more[1] - usual[1] == pytest.approx(300, rel=0.05)
    # Two thirds of its energy are too uncertain for a half-width.
    assert np.isinf(more[2])


def test_a_rate_includes_what_windows_without_equations_add_to_the_mean_of_all() -> None:
    rng = np.random.default_rng(1)
    equations, shares = Equations(columns=3), rng.dirichlet(np.ones(3), 400)
    watts = np.array([60.0, 150.0, 330.0])
    equations.add(shares, shares @ watts + rng.normal(0, 1, 400))
    fit, rate = Fit(equations, most=900.0), Rate(330.0, 1.0, 400)

    def beside(windows: int, mean: float) -> Rate:
        return beside_left_out(rate, fit, equations, 0, windows, np.full(3, 10.0), mean)

    assert beside(400, 250.0) == rate, "every window has an equation"
    assert beside(500, 180.0).half_width == pytest.approx(1.0, abs=0.3), "others have the same mean"
    # The rate above the mean may have changed by as much more.
    assert beside(500, 200.0).half_width == pytest.approx(20 * 330 / 180, rel=0.05)
    assert not beside(500, 200.0).reason
    assert beside(500, 240.0).reason == UNSTEADY
    assert beside(401, 250.0).half_width == pytest.approx(1.0, abs=2.5), "one window cannot add more than it has"
