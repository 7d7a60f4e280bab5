"""Arguments of twice the size."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_profile.errors import UsageError
from gpu_profile.roofline.doubling import doubled


def test_arrays_of_one_shape_are_doubled_together_first_and_then_the_first_alone() -> None:
    a, b, scale = np.ones((4, 3)), np.ones((4, 3)), 2.0
    (both, _), (alone, _) = doubled((a, b, scale), {})
    assert [np.shape(each) for each in both] == [(8, 3), (8, 3), ()]
    assert [np.shape(each) for each in alone] == [(8, 3), (4, 3), ()]


def test_weights_of_another_shape_stay_as_they_are() -> None:
    ((args, kwargs),) = doubled((np.ones((4, 3)),), {"weight": np.ones((3, 3))})
    assert args[0].shape == (8, 3)
    assert kwargs["weight"].shape == (3, 3)


def test_an_array_that_is_given_twice_is_doubled_in_both_places() -> None:
    a = np.ones(5)
    args, _ = doubled((a, a), {})[0]
    assert args[0] is args[1]
    assert args[0].shape == (10,)


def test_the_caller_s_arrays_are_left_alone() -> None:
    a = np.arange(3)
    doubled((a,), {})
    assert a.tolist() == [0, 1, 2]


@pytest.mark.parametrize("args", [(), (3,), ("text",), (np.float64(2.0),)], ids=str)
def test_without_an_array_there_is_nothing_to_double(args: tuple[object, ...]) -> None:
    with pytest.raises(UsageError, match="at least one dimension"):
        doubled(args, {})
