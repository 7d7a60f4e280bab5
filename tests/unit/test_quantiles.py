from __future__ import annotations

import numpy as np
import pytest

from gpu_profile.quantiles import OrderIndex

Ints = np.ndarray


def rows(*triples: tuple[int, int, int]) -> tuple[Ints, Ints, Ints]:
    starts, ends, values = np.array(triples, np.int64).reshape(-1, 3).T
    return starts, ends, values


def answer(index: OrderIndex, a: int, b: int, q: float) -> int | None:
    values, known = index.quantiles([a], [b], q)
    return int(values[0]) if known[0] else None


#: Busy at 3 for 30 ns, a gap of 20 ns, at 9 for 10 ns, at 5 for 60 ns.
SOME = ((0, 30, 3), (50, 60, 9), (60, 120, 5))


def many(count: int, levels: int, *, seed: int = 7) -> tuple[Ints, Ints, Ints]:
    """Rows of about 100 ns, with a gap after every seventh."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.integers(90, 110, count) + 1000 * (np.arange(count) % 7 == 0))
    starts = ends - rng.integers(50, 90, count)
    return starts, ends, rng.integers(0, levels, count)


def weighted(starts: Ints, ends: Ints, values: Ints, a: int, b: int, percent: int) -> int:
    times = np.minimum(ends, b) - np.maximum(starts, a)
    keep = times > 0
    order = np.argsort(values[keep])
    reached = np.cumsum(times[keep][order])
    rank = -(-int(reached[-1]) * percent // 100)
    return int(values[keep][order][np.searchsorted(reached, rank)])


@pytest.mark.parametrize(
    ("a", "b", "q", "value"),
    [
        (0, 120, 0.3, 3),
        (0, 120, 0.31, 5),
        (0, 120, 0.9, 5),
        (0, 120, 0.91, 9),
        (0, 120, 0.0, 3),
        (0, 120, 1.0, 9),
        # Only what lies within weighs: one of 30 ns, all 10 ns, one of 60 ns.
        (29, 61, 0.08, 3),
        (29, 61, 0.09, 5),
        (29, 61, 0.16, 5),
        (29, 61, 0.17, 9),
        (10, 11, 0.5, 3),
        (-(2**63), 2**63 - 1, 0.95, 9),
    ],
)
def test_a_quantile_weighs_values_by_their_time_within_the_interval(a: int, b: int, q: float, value: int) -> None:
    assert answer(OrderIndex(*rows(*SOME)), a, b, q) == value


@pytest.mark.parametrize(("a", "b"), [(35, 45), (30, 50), (-20, 0), (120, 200), (10, 10), (60, 60), (500, 600)])
def test_an_interval_that_no_row_covers_is_not_known(a: int, b: int) -> None:
    values, known = OrderIndex(*rows(*SOME)).quantiles([a, 0], [b, 120], [0.5, 1.0])
    assert known.tolist() == [False, True]
    assert values[0].tolist() == [0, 0]
    assert values[1].tolist() == [5, 9]


def test_of_no_rows_nothing_is_known() -> None:
    index = OrderIndex(*rows())
    assert index.exact
    assert answer(index, 0, 10, 0.5) is None


def test_of_no_intervals_there_are_no_answers() -> None:
    values, known = OrderIndex(*rows(*SOME)).quantiles([], [], [0.5, 0.95])
    assert values.shape == (0, 2)
    assert known.shape == (0,)


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0])
def test_one_row_is_its_own_quantile(q: float) -> None:
    assert answer(OrderIndex(*rows((5, 9, -7))), 0, 6, q) == -7


def test_a_row_of_no_time_never_counts() -> None:
    index = OrderIndex(*rows((0, 0, -5), (0, 10, 1), (10, 10, 99), (10, 20, 2)))
    assert answer(index, -5, 30, 0.0) == 1
    assert answer(index, -5, 30, 1.0) == 2


def test_a_tenth_of_ten_rows_is_the_first_although_the_float_0_1_lies_above_a_tenth() -> None:
    index = OrderIndex(*rows(*((i, i + 1, i) for i in range(10))))
    assert answer(index, 0, 10, 0.1) == 0
    assert answer(index, 0, 10, 0.3) == 2
    assert answer(index, 0, 9, 2 / 3) == 5


def test_times_beyond_the_exactness_of_floats_weigh_to_the_nanosecond() -> None:
    half = 2**61
    index = OrderIndex(*rows((0, half, 1), (half, 2 * half + 1, 2)))
    assert answer(index, 0, 2 * half, 0.5) == 1
    assert answer(index, 0, 2 * half + 1, 0.5) == 2
    assert answer(index, 1, 2 * half, 0.5) == 2


@pytest.mark.parametrize("levels", [1, 2, 101, 128])
def test_few_levels_are_exact_over_any_number_of_rows(levels: int) -> None:
    data = many(150_000, levels)
    index = OrderIndex(*data, hot_rows=0)
    rng = np.random.default_rng(1)
    a = rng.integers(0, data[1][-1], 100)
    b = np.minimum(a + rng.integers(2000, data[1][-1], 100), data[1][-1])
    a = np.minimum(a, b - 2000)
    values, known = index.quantiles(a, b, [0.5, 0.95, 0.99])
    assert index.exact
    assert known.all()
    truths = [[weighted(*data, start, end, p) for p in (50, 95, 99)] for start, end in zip(a, b, strict=True)]
    assert values.tolist() == truths


def test_many_levels_are_exact_within_the_hot_window() -> None:
    # Ten minutes at 100 Hz.
    data = many(60_000, 10**12)
    index = OrderIndex(*data)
    end = int(data[1][-1])
    assert index.exact
    for a, b in ((0, end), (end // 3, end), (end // 2, end // 2 + 100_000)):
        assert [answer(index, a, b, p / 100) for p in (50, 95)] == [weighted(*data, a, b, p) for p in (50, 95)]


@pytest.mark.parametrize("top", [1000, 500_000, 2**62])
def test_many_levels_beyond_the_hot_window_are_within_1_percent_of_their_range_and_say_so(top: int) -> None:
    data = many(70_000, top)
    index = OrderIndex(*data)
    end = int(data[1][-1])
    assert not index.exact
    assert 0 < index.error <= 0.01 * top
    for a, b in ((0, end), (end // 3, end), (end // 2, end // 2 + 100_000)):
        for p in (1, 50, 95):
            value = answer(index, a, b, p / 100)
            assert value is not None
            assert abs(value - weighted(*data, a, b, p)) <= index.error


def test_rows_in_bursts_with_long_gaps_are_found_as_those_at_a_steady_pace() -> None:
    # A hundred rows of 10 ns each hour: far more than one by one within any even division of time.
    ends = (np.arange(40)[:, None] * 3600 * 10**9 + np.arange(1, 101) * 10).ravel()
    data = ends - 10, ends, np.random.default_rng(3).integers(0, 101, len(ends))
    index = OrderIndex(*data)
    for hour in range(39):
        a, b = hour * 3600 * 10**9 + 333, (hour + 1) * 3600 * 10**9 + 777
        assert answer(index, a, b, 0.95) == weighted(*data, a, b, 95)
        assert answer(index, a + 667, b - 777, 0.95) is None


def test_only_chunks_that_an_interval_starts_or_ends_in_are_indexed() -> None:
    built: list[int] = []

    class Told(OrderIndex):
        def _build(self, chunk: int) -> None:
            built.append(chunk)
            super()._build(chunk)

    # Ten chunks of 2^15 rows of 10 ns; an interval over most of the first nine, then one of no rows.
    ends = np.arange(1, 327_681, dtype=np.int64) * 10
    index = Told(ends - 10, ends, ends % 50)
    index.quantiles([5, -50], [8 * 327_680 + 5, -10], 0.95)
    assert built == [0, 8]
    index.quantiles([15], [8 * 327_680 + 55], 0.5)
    assert built == [0, 8]


@pytest.mark.parametrize("q", [float("nan"), -0.1, 1.1, float("inf")])
def test_a_quantile_outside_0_to_1_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match=f"a quantile lies in 0-1, not {q}"):
        OrderIndex(*rows(*SOME)).quantiles([0], [1], [0.5, q])


def test_an_interval_that_ends_before_it_starts_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="interval 1 ends before it starts: 7 > 3"):
        OrderIndex(*rows(*SOME)).quantiles([0, 7], [1, 3], 0.5)


@pytest.mark.parametrize("moments", [[0.5], [float("nan")], [[1]], 3])
def test_moments_that_are_not_a_list_of_whole_nanoseconds_are_refused(moments: object) -> None:
    with pytest.raises(ValueError, match="whole nanoseconds"):
        OrderIndex(*rows(*SOME)).quantiles(np.array(moments), [9], 0.5)


def test_intervals_without_an_end_are_refused() -> None:
    with pytest.raises(ValueError, match="as many starts as ends: 2, 1"):
        OrderIndex(*rows(*SOME)).quantiles([0, 1], [9], 0.5)


@pytest.mark.parametrize(
    ("triples", "reason"),
    [
        (((5, 3, 0),), "row 0 ends before it starts: 5 > 3"),
        (((0, 5, 0), (4, 9, 0)), "row 1 starts before row 0 ends: 4 < 5"),
        (((10, 20, 0), (0, 5, 0)), "row 1 starts before row 0 ends: 0 < 20"),
    ],
)
def test_rows_out_of_order_are_refused_by_name(triples: tuple[tuple[int, int, int], ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        OrderIndex(*rows(*triples))


def test_rows_of_unequal_number_are_refused() -> None:
    starts, ends, values = rows(*SOME)
    with pytest.raises(ValueError, match="a start, an end and a value each: 3, 3, 2"):
        OrderIndex(starts, ends, values[:2])
