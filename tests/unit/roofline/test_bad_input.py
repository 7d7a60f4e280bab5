"""What users do to a profiler: each call runs as often as they said, and what comes of it is theirs."""

import asyncio
import functools
import logging
import operator
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.concurrency import in_threads

from gpu_profile.errors import UsageError
from gpu_profile.regions import region as region_module
from gpu_profile.roofline import GPUProfiler, measurement

torch: Any = pytest.importorskip("torch")
nn = torch.nn
x = torch.ones(16, 16)
#: Both ways to profile a call.
EACH_WAY: list[dict[str, Any]] = [{}, {"lightweight": True}]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    assert torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0
    assert torch.is_grad_enabled()
    assert region_module.current_name() is None


class Squares:
    """Something that can be called, without a name of its own."""

    def __call__(self, a: Any) -> Any:
        return a @ a

    def method(self, a: Any) -> Any:
        return a @ a


class Unnamed(Squares):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Numbered(Squares):
    __name__ = 5


class Unhashable(Squares):
    __hash__ = None  # type: ignore[assignment]


CALLABLES: dict[str, tuple[str, Callable[..., Any], tuple[Any, ...]]] = {
    "a lambda without arguments": ("<lambda>", lambda: x @ x, ()),
    "a callable object": ("Squares", Squares(), (x,)),
    "an object whose attributes raise": ("Unnamed", Unnamed(), (x,)),
    "an object whose name is a number": ("Numbered", Numbered(), (x,)),
    "an object that cannot be hashed": ("Unhashable", Unhashable(), (x,)),
    "a bound method": ("method", Squares().method, (x,)),
    "a partial of a partial": ("mm", functools.partial(functools.partial(torch.mm, x), mat2=x), ()),
    "a partial of an object": ("Squares", functools.partial(Squares(), x), ()),
    "an operator": ("matmul", operator.matmul, (x, x)),
    "a packet of overloads": ("mm", torch.ops.aten.mm, (x, x)),
    "an overload": ("mm.default", torch.ops.aten.mm.default, (x, x)),
    "a tensor's method by its class": ("matmul", torch.Tensor.matmul, (x, x)),
    "a tensor's method": ("matmul", x.matmul, (x,)),
    "a module": ("Linear", nn.Linear(16, 16, bias=False), (x,)),
}


@pytest.mark.parametrize("name", CALLABLES)
@pytest.mark.parametrize("options", [{"passes": 2}, {"lightweight": True}], ids=["whole", "lightweight"])
def test_whatever_can_be_called_is_profiled_under_its_name(
    name: str, options: dict[str, Any], profiler: GPUProfiler
) -> None:
    called, function, args = CALLABLES[name]
    result, found = profiler.profile_with_result(function, *args, **options)
    assert result.shape == (16, 16)
    assert found.get("operation", called) == called
    if "flops" in found and name != "an object whose attributes raise":
        assert found["flops"] == 2 * 16**3


@pytest.mark.parametrize(
    ("function", "args", "result"),
    [(len, ([1, 2],), 2), (dict, (), {}), (sorted, ((2, 1),), [1, 2]), (lambda: None, (), None), (int, ("7",), 7)],
)
def test_functions_without_pytorch_count_nothing_and_say_so(
    function: Callable[..., Any], args: tuple[Any, ...], result: object, profiler: GPUProfiler
) -> None:
    got, found = profiler.profile_with_result(function, *args, passes=2)
    assert got == result
    assert found["flops"] is found["bytes"] is None
    assert "give flops= and bytes=" in found["reasons"]["flops"]


def test_numpy_s_work_is_not_known_rather_than_none(profiler: GPUProfiler) -> None:
    a = np.ones((8, 8))
    result, found = profiler.profile_with_result(np.dot, a, a, passes=2)
    assert result[0, 0] == 8
    assert found["flops"] is None
    amounts: dict[str, Any] = {"flops": np.int64(1024), "bytes": np.int64(1536)}
    _, given = profiler.profile_with_result(np.dot, a, a, **amounts)
    assert (given["flops"], type(given["flops"])) == (1024, int)


# ------------------------------------------------------------------ what fails


@pytest.mark.parametrize(
    "error",
    [ValueError("theirs"), MemoryError(), KeyboardInterrupt(), SystemExit(3), RuntimeError("can't allocate memory")],
    ids=repr,
)
@pytest.mark.parametrize(
    ("run", "options"),
    [
        (1, {}),
        (1, {"lightweight": True}),
        (2, {"warmup": 3}),
        (3, {"warmup": 1, "repeats": 2}),
        (2, {"passes": 2}),
        (4, {"growth": True}),
    ],
    ids=str,
)
def test_what_the_function_raises_in_whichever_run_is_the_same_object_as_it_was(
    run: int, options: dict[str, Any], error: BaseException, profiler: GPUProfiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A first run that a busy machine draws out is counted for nothing, and there is no second one for it.
    monkeypatch.setattr(measurement, "COUNTING_SHARE", 0.0)
    runs = 0

    def theirs(a: Any) -> Any:
        nonlocal runs
        runs += 1
        a.add_(1)
        if runs == run:
            raise error
        return sorted([1])

    error.__traceback__ = None
    with pytest.raises(type(error)) as caught:
        profiler.profile_with_result(theirs, torch.zeros(3), **options)
    assert caught.value is error
    assert error.__cause__ is error.__context__ is None
    assert runs == run


def test_an_operation_that_refuses_its_arguments_says_so_itself_and_nobody_else_does(profiler: GPUProfiler) -> None:
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append  # type: ignore[method-assign,assignment]
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addHandler(handler)
    try:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
            profiler.profile_with_result(torch.mm, x, torch.ones(3, 5))
    finally:
        log.removeHandler(handler)
    assert caught.value.__context__ is None
    assert not told


@pytest.mark.parametrize("function", [None, 3, "matmul", x])
def test_what_cannot_be_called_is_refused(function: Any, profiler: GPUProfiler) -> None:
    with pytest.raises(TypeError, match="an operation is a function that can be called"):
        profiler.profile_with_result(function)


@pytest.mark.parametrize("amount", [1e9, "9", True, -1, 1 << 63, 10**400], ids=lambda each: f"{each!r:.9}")
def test_amounts_that_are_no_counts_are_refused_before_anything_runs(amount: Any, profiler: GPUProfiler) -> None:
    for name in ("flops", "bytes"):
        given: dict[str, Any] = {name: amount}
        with pytest.raises(ValueError, match=f"{name} is a whole number from 0 to") as caught:
            profiler.profile_with_result(pytest.fail, "it ran", **given)
        assert len(str(caught.value)) < 120


def test_a_name_that_is_no_text_is_refused_before_anything_runs(profiler: GPUProfiler) -> None:
    with pytest.raises(TypeError, match="an operation's name is text, not 5"):
        profiler.profile_with_result(pytest.fail, "it ran", name=5)  # type: ignore[arg-type]


def test_arguments_that_are_called_as_an_option_go_into_a_partial(profiler: GPUProfiler) -> None:
    def theirs(*, repeats: int, name: str) -> tuple[int, str]:
        return repeats, name

    assert profiler.profile_with_result(functools.partial(theirs, repeats=7, name="n"))[0] == (7, "n")


# ------------------------------------------------------------------ what is done later


@pytest.mark.parametrize("options", [{}, {"passes": 2, "flops": 1}, {"lightweight": True}], ids=str)
def test_a_coroutine_comes_back_to_be_awaited_and_has_no_regime(options: dict[str, Any], profiler: GPUProfiler) -> None:
    async def theirs() -> int:
        return 5

    result, found = profiler.profile_with_result(theirs, **options)
    assert asyncio.run(result) == 5
    assert found["regime"] == "UNKNOWN"
    if not options.get("lightweight"):
        assert "asyncio.run(f(...))" in found["reasons"]["regime"]


def test_generators_come_back_to_be_iterated_and_have_no_regime(profiler: GPUProfiler) -> None:
    async def slowly() -> Any:
        yield 1

    result, found = profiler.profile_with_result(lambda: (each for each in "ab"))
    assert "list(f(...))" in found["reasons"]["regime"]
    assert list(result) == ["a", "b"]
    _, found = profiler.profile_with_result(slowly)
    assert found["regime"] == "UNKNOWN"


def test_within_a_running_loop_calls_are_profiled_as_elsewhere(profiler: GPUProfiler) -> None:
    async def theirs() -> list[int]:
        profiles = [profiler.profile_operation(torch.mm, x, x) for _ in range(3)]
        await asyncio.sleep(0)
        return [each["flops"] for each in profiles]

    assert asyncio.run(theirs()) == [2 * 16**3] * 3


# ------------------------------------------------------------------ tensors of all kinds


def test_results_and_arguments_of_all_kinds_come_back_as_they_are(profiler: GPUProfiler) -> None:
    values, indices = profiler.profile_with_result(torch.max, x, 0)[0]
    assert (values.shape, indices.dtype) == ((16,), torch.int64)
    view, found = profiler.profile_with_result(x.t)
    assert view.data_ptr() == x.data_ptr()
    assert (found["flops"], found["bytes"]) == (0, 0)
    total = torch.zeros(4)
    for run, options in enumerate([*EACH_WAY, {"passes": 2}], start=1):
        assert profiler.profile_with_result(total.add_, 1, **options)[0] is total
        assert total.tolist() == [run] * 4


@pytest.mark.parametrize("kind", ["sparse", "csr", "complex", "nested", "quantised", "empty", "subclass"])
def test_tensors_of_every_kind_go_through(kind: str, profiler: GPUProfiler) -> None:
    class Mine(torch.Tensor):  # type: ignore[misc]
        pass

    makes: dict[str, Callable[[], Any]] = {
        "sparse": x.to_sparse,
        "csr": x.to_sparse_csr,
        "complex": lambda: x.to(torch.complex64),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=torch.jagged),
        "quantised": lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        "empty": lambda: x[:0],
        "subclass": lambda: x.as_subclass(Mine),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, on kinds that are new or old
        tensor = makes[kind]()
        for function in (torch.clone, lambda a: a.clone()):
            for options in EACH_WAY:
                result, _ = profiler.profile_with_result(function, tensor, **options)
                assert type(result) is type(tensor)
                assert result.dtype == tensor.dtype


def test_a_result_can_be_differentiated_and_keeps_no_graph_alive(profiler: GPUProfiler) -> None:
    weight = torch.ones(16, 16, requires_grad=True)
    for function in (torch.mm, lambda a, b: (a @ b).relu()):
        weight.grad = None
        result, _ = profiler.profile_with_result(function, x, weight)
        assert weight.grad is None
        result.sum().backward()
        assert weight.grad is not None
        died = weakref.ref(result)
        del result
        assert died() is None


def test_the_mode_that_the_user_is_in_is_the_call_s(profiler: GPUProfiler) -> None:
    weight = torch.ones(16, 16, requires_grad=True)
    for function in (torch.mm, lambda a, b: a @ b):
        with torch.no_grad():
            assert not profiler.profile_with_result(function, x, weight)[0].requires_grad
        with torch.inference_mode():
            assert profiler.profile_with_result(function, x, weight, flush=True)[0].is_inference()
        assert profiler.profile_with_result(function, x, weight, flush=True)[0].requires_grad
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result, found = profiler.profile_with_result(function, x, x, passes=2)
        assert result.dtype == torch.bfloat16
        assert found["precision"] == "bf16"


def test_arguments_on_another_device_are_refused_where_pytorch_would_run_there(profiler: GPUProfiler) -> None:
    there = x.to("meta")
    for options in EACH_WAY:
        with pytest.raises(UsageError, match=r"^mm: its arguments are on meta, this profiler is for cpu .* move them$"):
            profiler.profile_with_result(torch.mm, there, there, **options)
        made, _ = profiler.profile_with_result(torch.zeros_like, there, device="cpu", **options)
        assert made.device.type == "cpu"
        assert profiler.profile_with_result(there.to, "meta", **options)[0] is there
        assert profiler.profile_with_result(lambda theirs: theirs, there, **options)[0] is there


# ------------------------------------------------------------------ modules and optimisers


@pytest.mark.parametrize("options", EACH_WAY, ids=str)
def test_a_training_step_happens_once(options: dict[str, Any], profiler: GPUProfiler) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    hooked = nn.Linear(16, 16)
    optimiser = torch.optim.Adam(hooked.parameters())
    calls: list[Any] = []
    hooked.register_forward_hook(lambda *_: calls.append(1))
    profiler.profile_with_result(model, torch.ones(2, 3, 8, 8), **options)
    assert model[1].num_batches_tracked.item() == 1
    result, _ = profiler.profile_with_result(hooked, x, **options)
    assert calls == [1]
    result.sum().backward()
    profiler.profile_with_result(optimiser.step, **options)
    assert [int(state["step"]) for state in optimiser.state.values()] == [1, 1]


def test_a_lazy_module_gets_its_parameters_from_its_first_call(profiler: GPUProfiler) -> None:
    module = nn.LazyLinear(3)
    assert profiler.profile_with_result(module, x)[0].shape == (16, 3)
    assert module.weight.shape == (3, 16)


def test_random_numbers_are_those_of_a_bare_call(profiler: GPUProfiler) -> None:
    for function in (nn.functional.dropout, lambda a: nn.functional.dropout(a) + 0):
        torch.manual_seed(0)
        expected = function(x)
        torch.manual_seed(0)
        assert torch.equal(profiler.profile_with_result(function, x)[0], expected)


# ------------------------------------------------------------------ inside of other things


def test_a_mode_of_the_user_s_sees_each_operation_once(profiler: GPUProfiler) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils.flop_counter import FlopCounterMode

    called: list[str] = []

    class Names(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(func.__name__)
            return func(*args, **(kwargs or {}))

    a = torch.ones(17, 17)
    with FlopCounterMode(display=False) as counted:
        for options in EACH_WAY:
            profiler.profile_with_result(torch.mm, a, a, **options)
            profiler.profile_with_result(lambda: a @ a, **options)
    assert counted.get_total_flops() == 4 * 2 * 17**3
    with Names():
        profiler.profile_with_result(torch.mm, a, a)
    assert [name for name in called if name != "__get__"] == ["mm"]
    # What a mode kept from being counted is counted without it.
    assert profiler.profile_operation(torch.mm, a, a)["flops"] == 2 * 17**3


def test_a_profiler_may_be_used_within_what_it_profiles(profiler: GPUProfiler) -> None:
    products = 0
    at_the_end: list[int] = []

    def product() -> Any:
        nonlocal products
        products += 1
        return torch.mm(x, x)

    def outer() -> Any:
        nonlocal products
        products = 0
        found = profiler.profile_with_result(product, passes=2)
        at_the_end.append(products)
        return found

    (_, inner), found = profiler.profile_with_result(outer, passes=2)
    assert inner["flops"] == 2 * 16**3
    # Each runs again, to be counted, where counting took too large a part of its run: what the outer one did is told.
    assert set(at_the_end) <= {1, 2}
    assert found["flops"] in {runs * 2 * 16**3 for runs in at_the_end}


def test_threads_may_share_a_profiler(profiler: GPUProfiler) -> None:
    found: list[int] = []

    def work(rows: int) -> None:
        part = torch.ones(rows, 16)
        for _ in range(10):
            found.append(profiler.profile_operation(torch.mm, part, x)["flops"] // rows)
            profiler.profile_operation(lambda: part @ x, flush=True)
            profiler.profile_operation(torch.cos, part, lightweight=True)

    in_threads(*(partial(work, rows) for rows in (2, 3)))
    assert found == [2 * 16 * 16] * 20
