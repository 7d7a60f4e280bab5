import numpy as np
import pytest

from gpu_profile.history.histogram import Bin, Histogram


def histogram(**times: int) -> Histogram:
    """`v3=5`: 5 ns at 3."""
    result = Histogram()
    result.add(np.array([int(value[1:]) for value in times], np.int64), np.array(list(times.values()), np.int64))
    return result


def test_of_nothing_no_quantile_is_given() -> None:
    assert Histogram().quantile(0.5) is None
    assert Histogram().weight == 0
    assert Histogram().bins == ()


def test_values_that_were_held_for_no_time_were_not_seen() -> None:
    assert histogram(v9=0).quantile(0.5) is None
    assert histogram(v3=5, v900=0).bins == (Bin(3, 3, 5),)


def test_a_quantile_weighs_values_by_their_time() -> None:
    some = histogram(v3=30, v9=10, v5=60)
    assert [some.quantile(q) for q in (0, 0.3, 0.31, 0.9, 0.91, 1)] == [3, 3, 5, 5, 9, 9]


def test_as_many_values_as_there_are_bins_keep_a_bin_each_and_one_more_folds_pairs() -> None:
    result = Histogram()
    result.add(np.arange(10, 266), np.ones(256, np.int64))
    assert result.bins == tuple(Bin(value, value, 1) for value in range(10, 266))
    result.add(np.array([266]), np.array([5]))
    assert result.bins[:2] == (Bin(10, 11, 2), Bin(12, 13, 2))
    assert result.bins[-1] == Bin(266, 266, 5)
    assert len(result.bins) == 129


def test_bins_of_negative_values_are_aligned_as_those_of_positive_ones() -> None:
    result = Histogram()
    result.add(np.array([-300, -299, -298, -1, 0, 1]), np.array([1, 2, 4, 8, 16, 32]))
    assert result.bins == (Bin(-300, -299, 3), Bin(-298, -297, 4), Bin(-2, -1, 8), Bin(0, 1, 48))


def test_the_least_and_the_largest_value_are_exact_however_wide_the_bins() -> None:
    wide = histogram(v1=10**9, v123456=1, v987654321=10**9)
    assert wide.quantile(0) == 1
    assert wide.quantile(1) == 987_654_321


def test_a_histogram_merged_with_itself_weighs_twice() -> None:
    some = histogram(v3=30, v9=10)
    some.merge(some)
    assert some.bins == (Bin(3, 3, 60), Bin(9, 9, 20))


def test_weights_add_up_beyond_64_bits_to_the_nanosecond() -> None:
    result = Histogram()
    for _ in range(3):
        result.add(np.array([7, 7, 8]), np.array([2**63 - 1, 2**53 + 1, 1]))
    assert result.weight == 3 * (2**63 + 2**53 + 1)
    assert result.bins == (Bin(7, 7, 3 * (2**63 + 2**53)), Bin(8, 8, 3))


def test_a_day_at_10_hz_added_second_by_second_gives_quantiles_within_1_percent_of_the_range() -> None:
    rng = np.random.default_rng(7)
    values = np.clip(rng.normal(400_000, 80_000, 864_000), 0, 700_000).astype(np.int64)
    weights = rng.integers(90_000_000, 110_000_000, len(values))
    result = Histogram()
    for i in range(0, len(values), 8640):
        result.add(values[i : i + 8640], weights[i : i + 8640])
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    for q in (0.05, 0.5, 0.95, 0.99):
        truth = int(values[order][np.searchsorted(reached, q * reached[-1])])
        assert result.quantile(q) == pytest.approx(truth, abs=0.01 * np.ptp(values))


@pytest.mark.parametrize("q", [float("nan"), -0.1, 1.1])
def test_a_quantile_outside_0_to_1_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match=f"a quantile lies in 0-1, not {q}"):
        Histogram().quantile(q)


def test_a_negative_weight_is_refused_and_changes_nothing() -> None:
    some = histogram(v3=30)
    with pytest.raises(ValueError, match="a weight is a time, not -1 ns"):
        some.add(np.array([1, 2]), np.array([5, -1]))
    assert some.bins == (Bin(3, 3, 30),)


def test_values_without_a_weight_are_refused() -> None:
    with pytest.raises(ValueError, match="2 values, 1 weights"):
        Histogram().add(np.array([1, 2]), np.array([5]))
