"""Arguments without their data."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpu_profile.roofline.counting.signature import Indescribable, describe, stand_in, under  # noqa: E402


def test_a_stand_in_has_the_shape_strides_type_and_gradient_of_what_it_stands_for() -> None:
    given = torch.ones(4, 6, dtype=torch.float64).t().requires_grad_()
    (made,), kwargs = stand_in(describe((given,), {}))
    assert (made.shape, made.stride(), made.dtype) == (given.shape, given.stride(), given.dtype)
    assert made.requires_grad
    assert made.data_ptr() != given.data_ptr()
    assert kwargs == {}


def test_plain_values_and_containers_stand_for_themselves() -> None:
    args = (1, 2.5, True, None, "mean", [1, (2, 3)], {"a": 4}, torch.float32)
    kwargs = {"dim": -1, "sizes": torch.Size([2])}
    assert stand_in(describe(args, kwargs)) == (args, kwargs)


def test_a_tensor_given_several_times_is_one_tensor_in_its_stand_in() -> None:
    tensor = torch.ones(2)
    (first, (second, other)), kwargs = stand_in(describe((tensor, (tensor, torch.ones(2))), {"key": tensor}))
    assert first is second is kwargs["key"]
    assert other is not first


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), (True,)),
        ((1,), (1.0,)),
        (([1],), ((1,),)),
        ((torch.ones(2),), (torch.ones(2, dtype=torch.float64),)),
        ((torch.ones(2, 3),), (torch.ones(3, 2).t(),)),
    ],
)
def test_calls_that_may_work_differently_are_described_differently(one: Any, other: Any) -> None:
    assert describe(one, {}) != describe(other, {})


def test_calls_on_other_data_of_the_same_shape_are_described_alike() -> None:
    assert describe((torch.zeros(2),), {"a": 1}) == describe((torch.ones(2),), {"a": 1})


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        lambda: torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1)]),
        lambda: {1, 2},
        object,
    ],
)
def test_what_has_no_stand_in_is_said_to_have_none(make: Any) -> None:
    with pytest.raises(Indescribable, match=r"^a "):
        describe(([make()],), {})


def test_modes_hold_again_and_only_meanwhile() -> None:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        held = describe((), {})
    with torch.inference_mode():
        inferred = describe((), {})
    before = describe((), {})
    for each in (held, inferred):
        assert each != before
        with under(each, "cpu"):
            assert describe((), {}) == each
        assert describe((), {}) == before
    with under(held, "cpu"):
        assert torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.bfloat16
    with torch.inference_mode(), under(before, "cpu"):
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
