"""Arguments of twice the size."""

from typing import Any

import numpy as np
import pytest
from support.roofline import FakeMachine

from gpu_profile.errors import UsageError
from gpu_profile.roofline.doubling import choices, doubled, growth


def test_arrays_of_one_shape_are_doubled_together_first_and_then_the_first_alone() -> None:
    a, b, scale = np.ones((4, 3)), np.ones((4, 3)), 2.0
    args = (a, b, scale)
    (both, _), (alone, _) = (doubled(args, {}, places) for places in choices(args, {}))
    assert [np.shape(each) for each in both] == [(8, 3), (8, 3), ()]
    assert [np.shape(each) for each in alone] == [(8, 3), (4, 3), ()]


def test_weights_of_another_shape_stay_as_they_are() -> None:
    given, named = (np.ones((4, 3)),), {"weight": np.ones((3, 3))}
    (places,) = choices(given, named)
    args, kwargs = doubled(given, named, places)
    assert args[0].shape == (8, 3)
    assert kwargs["weight"].shape == (3, 3)


def test_an_array_that_is_given_twice_is_doubled_in_both_places() -> None:
    a = np.ones(5)
    (both, _), (alone, _) = (doubled((a, a), {}, places) for places in choices((a, a), {}))
    assert both[0] is both[1]
    assert both[0].shape == (10,)
    assert alone[0].shape == (10,)
    assert alone[1] is a


def test_the_caller_s_arrays_are_left_alone() -> None:
    a = np.arange(3)
    doubled((a,), {}, [0])
    assert a.tolist() == [0, 1, 2]


@pytest.mark.parametrize("args", [(), (3,), ("text",), (np.float64(2.0),)], ids=str)
def test_without_an_array_there_is_nothing_to_double(args: tuple[object, ...]) -> None:
    with pytest.raises(UsageError, match="at least one dimension"):
        choices(args, {})


def product(a: Any, b: Any) -> Any:
    return a @ b


def test_growth_is_how_much_longer_twice_takes_than_once_by_turns() -> None:
    # A run to see whether it goes, one to warm up, then seven of either.
    machine = FakeMachine(lambda run: 9.0 if run <= 2 else 1.75 if run % 2 else 1.0)
    assert growth(np.negative, (np.ones(3),), {}, machine) == (0.75, "")
    assert machine.ran == 2 + 2 * 7


def test_a_square_matrix_times_itself_is_doubled_on_one_side() -> None:
    square = np.ones((4, 4))
    found, reason = growth(product, (square, square), {}, FakeMachine(), runs=9)
    assert (found, reason) == (0.0, "")


def test_the_caches_are_flushed_before_each_run_if_asked_for() -> None:
    machine = FakeMachine()
    growth(np.negative, (np.ones(3),), {}, machine, flush=True)
    assert machine.flushed == 14


def test_what_refuses_twice_the_size_has_no_growth_and_a_reason_in_one_line() -> None:
    def only_three(a: Any) -> None:
        if len(a) != 3:
            raise ValueError("only three\nand a stack")

    found, reason = growth(only_three, (np.ones(3),), {}, FakeMachine())
    assert found is None
    assert reason == "arguments of twice the size were refused: ValueError: only three"


def test_what_fails_with_its_own_arguments_is_the_caller_s_error() -> None:
    runs: list[int] = []

    def fails_late(a: Any) -> None:
        runs.append(len(a))
        if len(runs) == 5:
            raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        growth(fails_late, (np.ones(3),), {}, FakeMachine())
