"""What a profiler remembers of calls keeps nothing of theirs alive: tensors may be all that a device has room for."""

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.roofline import CEILINGS, FakeMachine

from gpu_profile.regimes import DEFAULT_THRESHOLDS
from gpu_profile.roofline import GPUProfiler
from gpu_profile.roofline.call import BoundCall
from gpu_profile.roofline.light import Light
from gpu_profile.roofline.measurement import RunCount, measure

torch: Any = pytest.importorskip("torch")
nn = torch.nn
x = torch.ones(16, 16)


class Squares:
    def method(self, a: Any) -> Any:
        return a @ a


class Held(nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, a: Any) -> Any:
        return a + 1


KEEPERS: dict[str, Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "a closure": lambda held: (lambda: held + 1, ()),
    "a tensor's method": lambda held: (held.add, (1,)),
    "a tensor's method in Python": lambda held: (held.norm, ()),
    "a partial of PyTorch's": lambda held: (functools.partial(torch.add, held), (1,)),
    "a partial of a user's": lambda held: (functools.partial(lambda a, b: a + b, held), (1,)),
    "an argument in an object": lambda held: (lambda each: each[0] + 1, (np.array([held], dtype=object),)),
    "an iterator": lambda held: (next, (iter([held]),)),
}


@pytest.mark.parametrize("name", KEEPERS)
@pytest.mark.parametrize("options", [{}, {"lightweight": True}], ids=str)
def test_no_tensor_is_kept_alive(name: str, options: dict[str, Any], profiler: GPUProfiler) -> None:
    held = torch.ones(4)
    died = weakref.ref(held)
    function, args = KEEPERS[name](held)
    profiler.profile_with_result(function, *args, **options)
    del held, function, args
    gc.collect()
    assert died() is None


@pytest.mark.parametrize("make", [Held, lambda: nn.Linear(16, 16)], ids=["a user's", "PyTorch's"])
@pytest.mark.parametrize("as_argument", [False, True])
def test_no_module_is_kept_alive(make: Callable[[], Any], as_argument: bool, profiler: GPUProfiler) -> None:
    module = make()
    died = weakref.ref(module)
    each_way: list[dict[str, Any]] = [{}, {"lightweight": True}]
    for options in each_way:
        if as_argument:
            profiler.profile_with_result(lambda each: each(x), module, **options)
        else:
            profiler.profile_with_result(module, x, **options)
    del module
    gc.collect()
    assert died() is None


def test_one_result_is_alive_at_a_time() -> None:
    alive: list[int] = []
    results: weakref.WeakSet[Any] = weakref.WeakSet()

    def theirs() -> Any:
        alive.append(len(results))
        results.add(made := torch.ones(3))
        return made

    measure(BoundCall(theirs, (), {}, flops=1, bytes=1), FakeMachine(), CEILINGS, runs=RunCount(warmup=2, repeats=3))
    assert alive == [0] * 5


def test_methods_of_different_objects_are_told_apart_and_one_shape_is_counted_once() -> None:
    light = Light(FakeMachine(), CEILINGS, DEFAULT_THRESHOLDS, regions=False)
    for rows in (3, 3, 5):
        light.profile(torch.ones(rows, rows).mm, (torch.ones(rows, rows),), {})
    assert sorted(each.work.flops or 0 for each in light._cache.values()) == [2 * 3**3, 2 * 5**3]
    first, second = Squares(), Squares()
    for each in (first, second, first):
        light.profile(each.method, (x,), {})
    assert len(light._cache) == 4
