import numpy as np
import pytest

from gpu_profile.join.unmixing.solving.equations import Equations, packed, unpacked
from gpu_profile.join.unmixing.solving.sums import LeftOut, Sums
from gpu_profile.join.unmixing.windows.probes import Probe, ProbeKind

PROBES = (Probe(ProbeKind.LENGTH, 1), Probe(ProbeKind.LENGTH, 2), Probe(ProbeKind.LAG))


def windows(seed: int, n: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares of three columns, values that differ with a probe of the first region, and probes."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(3), n)
    probes = np.column_stack(
        [shares[:, 1] * rng.uniform(0, 2, n), shares[:, 2] * rng.uniform(0, 2, n), rng.normal(0, 0.1, n)]
    )
    values = shares @ [20.0, 300.0, 100.0] + 80 * probes[:, 0] + rng.normal(0, 1, n)
    return shares, values, probes


def solved(equations: Equations, precision: np.ndarray) -> np.ndarray:
    """The mean rate of each column over its time."""
    p = len(equations.probes)
    gram = equations.gram + np.diag(np.append(precision, np.zeros(equations.columns)))
    found = np.linalg.solve(gram, equations.moment[:, 0])
    means = np.zeros((equations.columns, p))
    for i, probe in enumerate(equations.probes):
        if probe.column >= 0:
            means[probe.column, i] = equations.total[i] / equations.total[p + probe.column]
    return np.asarray(found[p:] + means @ found[:p])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("precise", [1e-3, 1.0])
def test_without_probes_equations_say_of_mean_rates_what_they_said_with_them(seed: int, precise: float) -> None:
    equations, precision = Equations(PROBES), np.full(3, precise)
    equations.add(*windows(seed))
    alone = equations.without_probes(precision)
    assert alone.probes == ()
    assert np.linalg.solve(alone.gram, alone.moment[:, 0]) == pytest.approx(solved(equations, precision))


@pytest.mark.parametrize("seed", range(5))
def test_windows_that_are_added_to_what_was_said_of_rates_are_told_with_probes_of_their_own(seed: int) -> None:
    first, last, both = Equations(PROBES), windows(seed + 10, 300), Equations(PROBES)
    first.add(*windows(seed, 300))
    on = first.without_probes(np.full(3, 1e-3)).with_probes(PROBES)
    for equations in (on, both):
        equations.add(*last)
    both.add(*windows(seed, 300))
    precision = np.full(3, 1e-3)
    assert on.n == both.n
    assert on.square == pytest.approx(both.square, rel=0.05)
    of_columns = [0, 1, 3, 4, 5]
    assert on.total[of_columns] == pytest.approx(both.total[of_columns], rel=0.05)
    assert solved(on, precision) == pytest.approx(solved(both, precision), abs=1.0)


def test_what_was_said_of_rates_stays_as_it_was_when_more_is_added() -> None:
    equations = Equations(PROBES)
    equations.add(*windows(1))
    alone = equations.without_probes(np.ones(3))
    before = [each.copy() for each in (alone.gram, alone.moment, alone.sum, alone.square, alone.total)]
    equations.add(*windows(2))
    on = alone.with_probes(PROBES)
    on.add(*windows(3))
    after = [alone.gram, alone.moment, alone.sum, alone.square, alone.total]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_equations_of_no_window_say_nothing_with_probes_or_without() -> None:
    assert Equations(PROBES).without_probes(np.zeros(3)).n == 0
    empty = Equations().with_probes(PROBES)
    assert (empty.n, empty.columns, len(empty.probes)) == (0, 1, 3)
    empty.add(*windows(1))
    plain = Equations(PROBES)
    plain.add(*windows(1))
    assert np.array_equal(empty.gram, plain.gram)
    assert np.array_equal(empty.moment, plain.moment)


def test_half_of_a_symmetric_matrix_is_all_of_it() -> None:
    matrix = np.random.default_rng(1).normal(size=(5, 5))
    matrix += matrix.T
    assert np.array_equal(unpacked(packed(matrix), 5), matrix)


@pytest.mark.parametrize(("low", "high", "beyond"), [(50, 200, 0), (20, 200, 30), (50, 260, 60), (20, 260, 60)])
def test_unclear_windows_are_beyond_the_rates_that_no_mixture_reaches(low: float, high: float, beyond: float) -> None:
    """The rate of a column that no window has is arbitrary."""
    shares = np.array([[0.5, 0.5, 0.0], [0.1, 0.9, 0.0]])
    sums = Sums.of(shares, np.ones(2), LeftOut(1, 0, low, 120.0)).plus(
        Sums.of(shares, np.ones(2), LeftOut(1, 0, 90.0, high))
    )
    assert sums.left_out == LeftOut(2, 0, low, high)
    assert sums.beyond(np.array([50.0, 200.0, 0.0])) == beyond


def test_a_window_that_counts_several_times_is_as_many_windows_and_still_one_distinct_one() -> None:
    shares, values, probes = windows(1, 20)
    times = np.ones(20, np.int64)
    times[7] = 5
    counted, repeated = Equations(PROBES), Equations(PROBES)
    counted.add(shares, values, probes, times)
    repeated.add(*(np.repeat(part, times, axis=0) for part in (shares, values, probes)))
    assert counted.gram == pytest.approx(repeated.gram)
    assert counted.moment == pytest.approx(repeated.moment)
    assert (counted.n, counted.distinct, repeated.distinct) == (24, 20, 24)


def test_windows_that_are_left_out_change_no_rate_and_show_by_how_much_the_means_differ() -> None:
    shares, _, _ = windows(2, 40)
    rates = np.array([20.0, 300.0, 100.0])
    shares[10:14] = np.eye(3)[1]
    values, near = shares @ rates, np.ones(40, bool)
    values[10:14], near[10:14] = 50.0, False
    equations = Equations(columns=3)
    equations.add(shares[:5], values[:5])
    equations.refer(rates[:, None], equations.seen)
    equations.add(shares[5:], values[5:], near=near[5:])
    equations = equations.copy().with_probes(PROBES).without_probes(np.ones(3))
    assert np.linalg.solve(equations.gram, equations.moment[:, 0]) == pytest.approx(rates)
    # 4 windows of the region alone, each 250 below its rate.
    own = shares[near, 1].sum()
    assert equations.left_out(0) == pytest.approx([0.0, -1000 / own, 0.0], abs=1e-3)


def test_the_error_of_a_prediction_that_was_uncertain_is_no_error_of_a_block() -> None:
    """The pause after a program's last execution was longer than all before. Its windows, 400 W off their prediction,
    made most of the half-widths."""
    shares, _, _ = windows(2, 64)
    rates, last = np.array([90.0, 300.0, 200.0]), np.arange(64) >= 56
    shares[last], long = np.eye(3)[0], last[:, None].astype(np.float64)
    values = shares @ rates + np.random.default_rng(1).normal(0, 3, 64)
    largest = []
    for predicted in (None, ~last):
        equations = Equations((Probe(ProbeKind.GAP),), 3)
        equations.add(shares[:5], values[:5], long[:5])
        equations.refer(np.append(400.0, rates)[:, None], equations.seen)
        equations.add(shares[5:], values[5:], long[5:], predicted=predicted if predicted is None else predicted[5:])
        assert equations.n == 64
        largest.append(np.abs(equations.blocks()).max())
    assert largest[1] < largest[0] / 10


def test_a_block_that_is_not_full_has_a_smaller_share_of_the_sum_of_all() -> None:
    shares, values, _ = windows(3, 28)
    equations = Equations(columns=3)
    equations.add(shares[:2], values[:2])
    equations.refer(np.array([[20.0], [300.0], [100.0]]), equations.seen)
    equations.add(shares[2:], values[2:] + 30.0)
    apart = equations.blocks()
    assert apart.sum(axis=0) == pytest.approx(np.zeros((3, 1)), abs=1e-3)
    twice = Equations(columns=3)
    twice.add(shares[:2], values[:2])
    twice.refer(np.array([[100.0], [200.0], [0.0]]), twice.seen)
    twice.add(shares[2:], values[2:] + 30.0)
    assert twice.blocks().shape == apart.shape


def test_steady_rates_leave_no_power_of_the_regions_beside() -> None:
    rng = np.random.default_rng(1)
    shares, probes = rng.dirichlet((1, 1), 200), rng.normal(size=(200, 1))
    equations = Equations((Probe(ProbeKind.OPEN, 1),), 2)
    equations.add(shares, shares @ [100.0, 300.0] + 50 * probes[:, 0], probes)
    gram, moment, square, *_ = equations.steady()
    assert np.linalg.solve(gram, moment) == pytest.approx([100, 300], rel=0.01)
    assert square - moment @ np.linalg.solve(gram, moment) < 0.01 * 50**2 * len(shares)
    whole = equations.gram[1:, 1:], equations.moment[1:, 0]
    assert equations.square[0] - whole[1] @ np.linalg.solve(*whole) > 0.9 * 50**2 * len(shares)


def test_a_probe_that_differs_from_a_column_by_rounding_does_not_take_its_information() -> None:
    rng = np.random.default_rng(2)
    shares = rng.dirichlet((1, 1), 200)
    equations = Equations((Probe(ProbeKind.OPEN, 1),), 2)
    equations.add(shares, shares @ [100.0, 300.0] + rng.normal(size=200), 1e-7 * shares[:, 1:])
    assert equations.steady()[0] == pytest.approx(equations.gram[1:, 1:])
