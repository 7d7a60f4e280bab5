from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import pytest
from support.concurrency import in_threads

torch = pytest.importorskip("torch")

from gpu_profile.roofline.counting import counter, register_formula, registry  # noqa: E402
from gpu_profile.roofline.counting.counter import Counting  # noqa: E402
from gpu_profile.roofline.counting.dry_run import count_without_running  # noqa: E402
from gpu_profile.roofline.counting.footprint import Footprint  # noqa: E402
from gpu_profile.roofline.counting.recorder import tf32  # noqa: E402
from gpu_profile.roofline.counting.undispatched import REPLAYED, Undispatched  # noqa: E402
from gpu_profile.roofline.work import Work  # noqa: E402

GENEROUS = inf
Tensor: Any = torch.Tensor


def counted(function: Callable[[], Any]) -> Work:
    with Counting(share=GENEROUS) as counting:
        function()
    return counting.work()


@pytest.fixture(autouse=True)
def _no_formulas_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_operations", {})
    monkeypatch.setattr(registry, "_callables", {})


def test_results_and_exceptions_are_the_users_own() -> None:
    x = torch.ones(4, 4)

    def fails() -> None:
        torch.add(x, x)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), Counting(share=GENEROUS) as counting:
        fails()
    assert counting.work().operations == 1
    with pytest.raises(RuntimeError, match="mat1"), Counting():
        torch.mm(x, torch.ones(3, 3))
    assert torch._C._len_torch_dispatch_stack() == 0


def test_numbers_and_random_states_are_those_of_a_run_without_counting() -> None:
    def run() -> tuple[Any, Any]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.BatchNorm1d(4))
        model(torch.randn(8, 4)).sum().backward()
        return model[0].weight.grad, torch.get_rng_state()

    plain = run()
    with Counting(share=GENEROUS):
        observed = run()
    assert all(torch.equal(a, b) for a, b in zip(plain, observed, strict=True))


def test_counting_that_costs_too_much_stops_and_says_so() -> None:
    x = torch.ones(4)
    with Counting(share=0.0, grace_s=0.0) as counting:
        for _ in range(1000):
            x + x
    work = counting.work()
    assert (work.flops, work.bytes, work.operations) == (None, None, 0)
    assert work.reasons["flops"].startswith("needs passes=2")
    assert work.counting_s > 0


def test_a_run_for_counting_alone_is_counted_whatever_its_cost_is_estimated_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter, "_passing_ns", 10**9)
    assert counted(lambda: [torch.ones(4) + 1 for _ in range(200)]).flops == 800


def test_what_counting_costs_is_measured() -> None:
    x = torch.ones(4)
    with Counting(share=GENEROUS) as counting:
        for _ in range(1000):
            x + x
    assert counting.work().counting_s == counting.counting_s > 1000 * counter.passing_ns() / 1e9


def test_memory_is_bounded_when_every_operation_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_profile.roofline.counting.recorder.DISTINCT", 8)
    x = torch.ones(100)
    with Counting(share=GENEROUS) as counting:
        for size in range(100):
            torch.cos(x[:size])
    assert len(counting._record._counts) <= 8
    assert counting.work().flops == sum(range(100))


def test_nothing_seen_is_absent_and_not_zero() -> None:
    work = counted(lambda: None)
    assert (work.flops, work.bytes, work.coverage) == (None, None, None)
    assert "no operation of PyTorch was seen" in work.reasons["flops"]


def test_only_the_callers_thread_is_counted() -> None:
    x = torch.ones(4, 4)

    def elsewhere() -> None:
        in_threads(partial(torch.mm, x, x))

    assert counted(elsewhere).operations == 0


def test_vmap_and_grad_count_what_they_dispatch() -> None:
    x = torch.ones(3, 4, 4)
    assert counted(lambda: torch.vmap(lambda each: each @ each)(x)).flops == 3 * 128
    gradient = counted(lambda: torch.func.grad(lambda each: (each @ each).sum())(x[0]))
    assert gradient.flops == 3 * 128 + 15 + 16  # the product, its sum, two products back and their sum


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_nested_tensors_leave_bytes_absent_with_the_operation_named() -> None:
    nested = torch.nested.nested_tensor([torch.eye(4), torch.eye(3)])
    work = counted(lambda: torch.relu(nested))
    assert (work.flops, work.bytes, work.unknown) == (None, None, {"aten.relu": 1})
    assert "aten.relu" in work.reasons["bytes"]


def test_tensors_of_other_classes_are_counted_by_the_plain_ones_that_they_are_made_of() -> None:
    class Wrapped(Tensor):  # type: ignore[misc]
        inner: Any

        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
            made.inner = inner
            return made

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return Wrapped(func(*[each.inner for each in args], **(kwargs or {})))

    x = Wrapped(torch.ones(4, 4))
    assert counted(lambda: torch.mm(x, x)).flops == 128


@pytest.mark.filterwarnings("ignore:.*quantized:UserWarning")
def test_quantised_and_scalar_tensors_do_not_fail_the_call() -> None:
    x = torch.ones(4, 4)
    work = counted(lambda: (torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), torch.tensor(2.0) * 3))
    assert work.unknown == {"aten.quantize_per_tensor": 1}
    assert (work.flops, work.at_least) == (None, 1)


def test_a_users_formula_for_a_custom_operation_is_used_wherever_it_runs() -> None:
    @torch.library.custom_op("counting_test::twice", mutates_args=(), schema="(Tensor x) -> Tensor")  # type: ignore[untyped-decorator]
    def twice(x: Any) -> Any:
        return x * 2

    x = torch.ones(4, 4)
    assert counted(lambda: twice(x)).unknown == {"counting_test.twice": 1}
    register_formula(twice, flops=lambda x: x.numel())
    work = counted(lambda: twice(x))
    assert (work.flops, work.bytes, work.unknown) == (16, 128, {})
    register_formula(torch.ops.counting_test.twice, flops=lambda x: x.shape[0], bytes=lambda x: 7)
    assert (counted(lambda: twice(x)).flops, counted(lambda: twice(x)).bytes) == (4, 7)


def test_a_users_formula_replaces_the_projects_own() -> None:
    register_formula(torch.ops.aten.mm, flops=lambda self, mat2: self.shape[0] * mat2.shape[1])
    assert counted(lambda: torch.mm(torch.ones(2, 3), torch.ones(3, 5))).flops == 10


@pytest.mark.parametrize(
    "formula",
    [
        lambda self, mat2: self.shape[0] * mat2.shape[1],
        lambda a, b: a.shape[0] * b.shape[1],
        lambda a, b, /: a.shape[0] * b.shape[1],
        lambda *given: given[0].shape[0] * given[1].shape[1],
        lambda **given: given["self"].shape[0] * given["mat2"].shape[1],
        lambda mat2, **_: 2 * mat2.shape[1],
        lambda mat2: 2 * mat2.shape[1],
        lambda left, right=None: left.shape[0] * right.shape[1],
        lambda left, **others: left.shape[0] * others["mat2"].shape[1],
    ],
    ids=range(9),
)
def test_a_formula_may_name_what_it_takes_as_it_likes(formula: Any) -> None:
    register_formula(torch.ops.aten.mm, flops=formula)
    assert counted(lambda: torch.mm(torch.ones(2, 3), torch.ones(3, 5))).flops == 10


def test_a_formula_counts_at_once_for_what_was_counted_before() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 5)
    linear = torch.nn.Linear(3, 5, bias=False)
    for function, given in ((torch.mm, (a, b)), (linear, (a,))):
        before = count_without_running(function, given)
        assert before is not None
        assert before.flops == 60
    register_formula(torch.ops.aten.mm, flops=lambda x, y: 7)
    for function, given in ((torch.mm, (a, b)), (linear, (a,))):
        after = count_without_running(function, given)
        assert after is not None
        assert after.flops == 7


def test_a_formula_that_fails_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    register_formula(torch.ops.aten.tanh, flops=lambda x: x.no_such_thing)
    for _ in range(3):
        assert counted(lambda: torch.tanh(torch.ones(4))).flops is None
    (line,) = [record.getMessage() for record in caplog.records]
    assert "registered for aten.tanh failed" in line
    assert "no_such_thing" in line
    caplog.clear()
    register_formula(torch.ops.aten.tanh, flops=lambda x: 1 // 0)
    work = counted(lambda: torch.linalg.pinv(torch.tanh(torch.eye(4))))
    assert "ZeroDivisionError" in caplog.text  # it is another one
    why = "no formula for aten.linalg_pinv and the formula registered for aten.tanh failed"
    assert work.reasons["flops"] == why


@pytest.mark.parametrize(
    "formula", [lambda x: 1 // 0, lambda x: -1, lambda x: 1.5, lambda: 1, lambda x: True], ids=range(5)
)
def test_a_formula_that_fails_makes_the_operation_unknown_and_nothing_else(formula: Any) -> None:
    register_formula(torch.ops.aten.cos.default, flops=formula)
    work = counted(lambda: torch.cos(torch.ones(4)) + 1)
    assert work.unknown == {"aten.cos": 1}
    assert (work.flops, work.at_least) == (None, 4)


def test_a_formula_for_a_callable_stands_for_the_call_as_a_whole() -> None:
    def mine(x: list[int], *, scale: int) -> None:
        raise AssertionError("nothing of the user's runs")

    register_formula(mine, flops=lambda x, *, scale: len(x) * scale)
    work = count_without_running(mine, ([1, 2],), {"scale": 3})
    assert work is not None
    assert (work.flops, work.bytes, work.method) == (6, None, "formula")
    assert "bytes" in work.reasons
    failed = count_without_running(mine, (1,), {"scale": 3})
    assert failed is not None
    assert failed.reasons["flops"].startswith("the formula for flops failed: TypeError")


def test_what_is_no_operation_and_no_formula_is_refused() -> None:
    with pytest.raises(TypeError, match="takes callables"):
        register_formula("aten.mm", flops=lambda: 1)
    with pytest.raises(TypeError, match="takes callables"):
        register_formula(torch.mm, flops=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="flops=, bytes= or both"):
        register_formula(torch.mm)


def test_a_replay_of_a_cuda_graph_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        replays = 0

        def replay(self) -> None:
            self.replays += 1

    original = Graph.replay
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    graph, x = Graph(), torch.ones(4)
    with Counting(share=GENEROUS) as counting, Undispatched() as within:
        x + x
        graph.replay()
    assert graph.replays == 1
    assert counting.work().reasons["flops"] == within.reason == REPLAYED
    assert Graph.replay is original


def test_memory_that_overlaps_counts_once_and_too_many_addresses_are_told() -> None:
    memory = Footprint()
    memory.touch([100, 104], [(8, 8), (8, 8)])
    memory.touch([100, 1000], [(8, 4), (64, 16)])
    assert memory.size() == 12 + 16
    crowded = Footprint(4)
    for address in range(0, 100, 10):
        crowded.touch([address], [(1, 1)])
    assert crowded.size() is None
    stretch = Footprint(4)
    for address in range(100):
        stretch.touch([address], [(1, 1)])
    assert stretch.size() == 100


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_whether_tf32_is_allowed_is_what_pytorch_says(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        allowed = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        assert tf32() == allowed
        assert allowed == (precision == "high", True)
    finally:
        torch.set_float32_matmul_precision(before)


def test_with_an_older_pytorch_counting_is_refused_once_something_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter, "_LEAVES_COMPILED", False)
    monkeypatch.setattr(counter, "compilations", lambda: 1)
    with Counting() as counting:
        assert torch._C._len_torch_dispatch_stack() == 0
    assert counting.work().reasons["flops"] == counter.TOO_OLD
    assert counting.counting_s == 0.0
    # What `passes=2` does, as the reason says that it would be counted then.
    assert counted(lambda: torch.ones(4) + 1).flops == 4


def test_an_operation_that_the_dispatcher_does_not_know_is_sorted_without_raising() -> None:
    # PyTorch asks for it from C++ that lets no exception through: one would end the process.
    assert counter._classify(torch.ops.prim.device.default) == "still"
    model, x = torch.nn.Linear(3, 3), torch.ones(2, 3)
    with Counting(share=GENEROUS) as counting:
        model(x).sum().backward()
    assert counting.work().flops
