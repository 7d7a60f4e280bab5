import numpy as np
import numpy.typing as npt
import pytest

from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.unmix import Fit
from gpu_profile.join.unmixing.timing.correction import Corrected
from gpu_profile.join.unmixing.windows.sensor import Sensor

RATES = np.array([90.0, 200.0, 500.0])
N = 300


def corrected(foreign: npt.NDArray[np.bool_], *, rare: bool = False, long: bool = False) -> Corrected:
    """Windows of two regions, and the equations of all. Another process draws 150 W in `foreign` ones.

    A third region of 800 W is in one window, if it is `rare`. Windows of another process count twice, if `long`.
    """
    rng = np.random.default_rng(7)
    shares = rng.dirichlet(np.ones(3), N)
    rates = RATES
    if rare:
        shares, rates = np.hstack((shares, np.zeros((N, 1)))), np.append(RATES, 800.0)
        shares[5] = 0.0, 0.5, 0.0, 0.5
    values = shares @ rates + rng.normal(0, 1.0, N) + 150.0 * foreign
    times = np.where(foreign & long, 2, 1)
    rows = [(shares, values[:, None], np.zeros((N, 0)), times)]
    equations = Equations()
    equations.add(*rows[0])
    return Corrected(Sensor(), rates, rows, equations, Fit(equations, most=1000.0))


def solved(equations: Equations) -> Fit:
    return Fit(equations, most=1000.0)


def some(count: int) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(N) % (N // count), [1])


def rebuilt(found: Corrected) -> Fit:
    """The fit of the windows that count, with the others beside it."""
    equations = Equations()
    equations.refer(found.fit.solution[:, None], found.equations.seen)
    equations.add(*found.rows[0], found.near)
    return solved(equations)


def test_few_windows_with_work_of_others_neither_move_nor_widen_the_rates() -> None:
    found = corrected(some(15))
    better = found.without_outliers(Equations(), solved)
    assert better.near is not None
    assert np.array_equal(~better.near, some(15))
    assert better.fit.solution == pytest.approx(RATES, abs=2.0)
    assert better.equations.n == N - 15
    assert better.fit.noise < found.fit.noise / 100


def test_without_outliers_nothing_changes() -> None:
    found = corrected(np.zeros(N, bool))
    assert found.without_outliers(Equations(), solved) is found
    none = found._replace(rows=[])
    assert none.without_outliers(Equations(), solved) is none


def test_if_many_windows_are_far_off_all_of_them_count() -> None:
    found = corrected(some(100))
    assert found.without_outliers(Equations(), solved) is found


def test_the_only_window_of_a_region_is_no_outlier() -> None:
    found = corrected(some(15), rare=True).without_outliers(Equations(), solved)
    assert found.near is not None
    assert found.near[5]


def test_a_window_of_a_starved_sampler_is_no_outlier() -> None:
    found = corrected(some(15), long=True)
    assert found.without_outliers(Equations(), solved) is found


def test_intervals_are_narrow_and_include_the_mean_of_all_windows() -> None:
    every = corrected(some(15))
    fit, shares = rebuilt(every.without_outliers(Equations(), solved)), every.rows[0][0]
    for column, each in enumerate(np.eye(3)):
        rate, share = fit.rate(each), shares[:, column]
        mean = RATES[column] + 150.0 * float(share @ some(15)) / float(share.sum())
        assert abs(rate.value - mean) < rate.half_width < 1.1 * every.fit.rate(each).half_width


def test_outliers_that_hardly_matter_count() -> None:
    """One of 300 windows is 8 standard deviations off."""
    found = corrected(np.zeros(N, bool))
    found.rows[0][1][3] += 8.0
    assert found.without_outliers(Equations(), solved) is found


def test_where_regions_fill_most_windows_all_of_them_count() -> None:
    """Only windows at the regions' edges show the timing's error. They are few, and no work of others."""
    found = corrected(some(15))
    found.rows[0][0][: N // 2 + 1] = (0.0, 1.0, 0.0)
    assert found.without_outliers(Equations(), solved) is found
