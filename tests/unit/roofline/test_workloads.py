import math
from typing import Any

import pytest

from gpu_profile.errors import UsageError
from gpu_profile.roofline.workloads import WORKLOADS, prepare

torch: Any = pytest.importorskip("torch")


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("size", [1, 10, 5_000])
def test_each_runs_at_any_size(name: str, size: int) -> None:
    made = prepare(name, size)
    result = made.function(*made.args, **made.kwargs)
    assert isinstance(result, torch.Tensor)
    assert made.name == name
    assert made.size == made.args[0].numel()


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_size_is_about_that_of_the_first_input(name: str) -> None:
    made = prepare(name, 1_000_000)
    assert made.size == pytest.approx(1_000_000, rel=0.12)


def test_the_shapes_are_told() -> None:
    assert prepare("matmul", 1_000_000).shape == "1000×1000, 1000×1000"
    assert prepare("cos", 1_000).shape == "1000"


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float64", "float64"), ("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")]
)
def test_all_inputs_have_the_data_type_that_was_asked_for(dtype: str, expected: str) -> None:
    made = prepare("layernorm", 4096, dtype=dtype)
    tensors = [each for each in (*made.args, *made.kwargs.values()) if isinstance(each, torch.Tensor)]
    assert [each.dtype for each in tensors] == [getattr(torch, expected)] * 3


def test_values_differ_repeat_themselves_and_leave_the_programs_random_numbers_alone() -> None:
    state = torch.random.get_rng_state()
    first, again = (prepare("cos", 3_000_000).args[0] for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not math.isclose(float(first[0]), float(first[1]))
    assert 0.49 < float(first.mean()) < 0.51
    assert float(first.min()) >= 0
    assert float(first.max()) <= 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("matmull", 10), r"unknown operation 'matmull': there are cos, .*; did you mean 'matmul'\?$"),
        (("", 10), "unknown operation ''"),
        (("cos", 0), "the size of an input is at least 1, not 0"),
    ],
)
def test_what_is_none_is_one_line(arguments: tuple[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        prepare(*arguments)
    with pytest.raises(UsageError, match="unknown data type 'int3'"):
        prepare("cos", 10, dtype="int3")
