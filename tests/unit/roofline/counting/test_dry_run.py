import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
from support.concurrency import in_threads

torch = pytest.importorskip("torch")

from gpu_profile.roofline.counting import dry_run  # noqa: E402
from gpu_profile.roofline.counting.dry_run import count_without_running, signature  # noqa: E402

nn = torch.nn
r = torch.randn
Linear: Any = nn.Linear
FunctionMode: Any = torch.overrides.TorchFunctionMode


def work_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    found = count_without_running(function, args, kwargs)
    assert found is not None
    return found


def test_nothing_of_a_module_its_inputs_or_the_random_state_changes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.LazyLinear(2))
    x = r(2, 3, 8, 8, requires_grad=True)
    model(x)
    before, parameters = copy.deepcopy(model.state_dict()), list(model.parameters())
    random, version = torch.get_rng_state(), x._version
    assert work_of(model, x).flops > 0
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert x.grad is None
    assert x._version == version


def test_operations_in_place_change_nothing() -> None:
    x = torch.ones(4)
    assert work_of(torch.Tensor.add_, x, 1).flops == 4
    assert work_of(x.zero_).bytes == 16
    assert torch.equal(x, torch.ones(4))


def test_no_memory_is_taken_for_the_copies() -> None:
    x = torch.ones(1).expand(1 << 20, 1 << 20)
    assert work_of(torch.cos, x).flops == 1 << 40


class Mine(Linear):  # type: ignore[misc]
    pass


def hooked() -> Any:
    module = nn.Linear(4, 4)
    module.register_forward_hook(lambda *_: None)
    return nn.Sequential(module)


def with_a_function_of_the_users() -> Any:
    return nn.TransformerEncoderLayer(4, 2, 8, activation=lambda x: x)


NOT_BESIDE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "a function of the user's": (lambda x: x, (r(4),)),
    "a partial of one": (functools.partial(lambda x: x), (r(4),)),
    "a module of the user's": (Mine(4, 4), (r(4),)),
    "a module with a hook in it": (hooked(), (r(4),)),
    "a module that calls a function of the user's": (with_a_function_of_the_users(), (r(3, 2, 4),)),
    "a module without parameters yet": (nn.LazyLinear(3), (r(4),)),
    "a seed": (torch.manual_seed, (0,)),
    "a setting": (torch.set_num_threads, (1,)),
    "a result whose size is data": (torch.nonzero, (r(4),)),
    "a list": (torch.Tensor.tolist, (r(4),)),
    "a number": (torch.Tensor.item, (r(1),)),
    "sparse": (torch.mm, (torch.eye(4).to_sparse(), r(4, 4))),
    "what fails": (torch.mm, (r(4, 4), r(3, 3))),
    "vmap": (torch.vmap, (torch.cos,)),
    "cond": (torch.cond, (True, torch.cos, torch.sin, (r(4),))),
    "no operation of PyTorch": (len, ([1],)),
    "an argument of another type": (torch.add, (object(), 1)),
}


@pytest.mark.parametrize("name", NOT_BESIDE)
def test_what_is_not_pytorchs_own_or_needs_data_is_not_counted_beside(name: str) -> None:
    function, args = NOT_BESIDE[name]
    random, threads = torch.get_rng_state(), torch.get_num_threads()
    assert count_without_running(function, args) is None
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.get_num_threads() == threads


def test_a_module_that_has_got_a_hook_is_not_counted_any_more() -> None:
    module, x = nn.Linear(4, 4), r(4)
    assert count_without_running(module, (x,)) is not None
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert count_without_running(module, (x,)) is None
    finally:
        handle.remove()
    assert count_without_running(module, (x,)) is not None
    module.register_forward_hook(lambda *_: None)
    assert count_without_running(module, (x,)) is None


def test_modes_of_the_user_see_no_copies() -> None:
    seen: list[Any] = []

    class Seeing(FunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = r(3, 3, 3)
    with Seeing():
        seen.clear()
        count_without_running(torch.bmm, (x, x))
        assert torch.bmm not in seen


def test_a_default_device_is_no_mode_of_the_users() -> None:
    x = r(3, 4, 3)
    with torch.device("cpu"):
        assert work_of(torch.bmm, x, x.transpose(1, 2)).flops == 3 * 2 * 4 * 3 * 4


def test_what_was_counted_is_kept_by_function_and_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    x = r(5, 6)
    first = work_of(torch.cos, x)
    monkeypatch.setattr(dry_run, "_counted", lambda *_: pytest.fail("counted again"))
    assert work_of(torch.cos, r(5, 6)) is first


def test_the_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(dry_run, "KEPT", 4)
    monkeypatch.setattr(dry_run, "_functions", kept)
    for size in range(10):
        work_of(torch.sin, torch.empty(size))
    assert len(kept) == 4


def test_a_modules_settings_are_part_of_what_its_work_is_kept_by() -> None:
    module = nn.Conv2d(3, 4, 3)
    x = r(1, 3, 9, 9)
    before = work_of(module, x).flops
    module.stride = (3, 3)
    assert work_of(module, x).flops < before
    norm = nn.BatchNorm1d(4)
    assert work_of(norm, r(8, 4)).flops != work_of(norm.eval(), r(8, 4)).flops


def test_signatures_tell_apart_what_counts_differently() -> None:
    x, y = r(4, 4), r(4, 4)
    different = [
        signature((x, y)),
        signature((x, x)),
        signature((x, y[:3])),
        signature((x, y.t())),
        signature((x, y.double())),
        signature((x, r(4, 4, requires_grad=True))),
        signature((x, 1)),
        signature((x, 1.0)),
        signature((x, True)),
        signature(([x, y],)),
        signature((x,), {"other": y}),
        signature((x,), {"other": x}),
        signature((x, slice(1, 2))),
    ]
    with torch.no_grad():
        different.append(signature((x, y)))
    with torch.autocast("cpu"):
        different.append(signature((x, y)))
    assert len(set(different)) == len(different)
    assert None not in different
    assert signature((x, y)) == signature((r(4, 4), r(4, 4)))


@pytest.mark.parametrize("value", [torch.eye(2).to_sparse(), {"a": object()}, {1}])
def test_what_cannot_be_keyed_has_no_signature(value: Any) -> None:
    assert signature((value,)) is None


def test_autocast_is_counted_in_its_precision() -> None:
    x = r(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        work = work_of(torch.mm, x, x)
    assert {str(each) for each in work.by_precision} == {"bf16"}


def test_threads_may_count_beside_each_other() -> None:
    found: list[Any] = []
    shapes = [(n, n) for n in range(2, 8)]

    def count() -> None:
        found.extend(work_of(torch.mm, r(shape), r(shape)).flops for shape in shapes)

    in_threads(*[count] * 4)
    assert sorted(found) == sorted(4 * [2 * n**3 for n, _ in shapes])
