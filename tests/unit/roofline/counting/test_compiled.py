"""Compiled code stays compiled under counting, and is not taken for what was counted."""

import shutil
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from unit.roofline.backend import Backend  # noqa: E402

from gpu_profile.roofline.counting import register_formula, registry  # noqa: E402
from gpu_profile.roofline.counting.compiled import compiled_part, compiled_work  # noqa: E402
from gpu_profile.roofline.counting.counter import _LEAVES_COMPILED, TOO_OLD, Counting  # noqa: E402
from gpu_profile.roofline.counting.undispatched import COMPILED  # noqa: E402

#: Of code that was compiled before.
LATER = COMPILED if _LEAVES_COMPILED else TOO_OLD

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_callables", {})
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def function(x: Any) -> Any:
    return torch.relu(x @ x) + 1


@pytest.mark.parametrize("warm", [False, True], ids=["first call", "later call"])
def test_a_compiled_function_runs_compiled_under_counting_and_after_it(warm: bool) -> None:
    backend, x = Backend(), torch.randn(8, 8)
    compiled = torch.compile(function, backend=backend)
    if warm:
        compiled(x)
    with Counting(share=1e9) as counting:
        result = compiled(x) * 1
    assert torch.allclose(result, function(x))
    assert (backend.graphs, backend.runs) == (1, 1 + warm)
    work = counting.work()
    assert (work.flops, work.bytes, work.reasons["flops"]) == (None, None, LATER if warm else COMPILED)
    compiled(x)
    assert (backend.graphs, backend.runs) == (1, 2 + warm)


def test_a_module_with_a_compiled_part_runs_it_compiled() -> None:
    backend = Backend()
    model = torch.nn.Sequential(torch.compile(torch.nn.Linear(4, 4), backend=backend), torch.nn.ReLU())
    x = torch.randn(2, 4)
    for reason in (COMPILED, LATER):
        with Counting(share=1e9) as counting:
            model(x).sum().backward()
        assert counting.work().reasons["bytes"] == reason
    assert (backend.graphs, backend.runs) == (1, 2)


def test_a_compiled_function_with_a_break_in_its_graph_is_not_compiled_into_the_counter() -> None:
    backend, x = Backend(), torch.randn(8, 8)

    def broken(x: Any) -> Any:
        y = x @ x
        torch._dynamo.graph_break()
        return y + 1

    compiled = torch.compile(broken, backend=backend)
    for runs in (2, 4):
        with Counting(share=1e9):
            compiled(x)
        assert (backend.graphs, backend.runs) == (2, runs)


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_inductors_kernels_run_under_counting() -> None:
    from torch._inductor import metrics

    x = torch.randn(32, 32)
    metrics.reset()
    compiled = torch.compile(lambda x: torch.sin(x) * 2 + 1)
    with torch._inductor.config.patch(force_disable_caches=True, compile_threads=1), Counting(share=1e9) as counting:
        first = compiled(x)
        kernels = metrics.generated_kernel_count
        second = compiled(x)
    assert kernels == metrics.generated_kernel_count == 1
    assert torch.equal(first, second)
    assert counting.work().reasons["flops"] == COMPILED


def test_what_is_not_compiled_is_counted_though_the_compiler_was_used_before() -> None:
    x = torch.randn(8, 8)
    torch.compile(function, backend=Backend())(x)
    with Counting(share=inf) as counting:
        function(x)
    assert counting.work().flops == 2 * 8**3 + 2 * 64


@pytest.mark.parametrize(
    ("callable_", "word"),
    [
        (torch.compile(function, backend="eager"), "compiled"),
        (torch.compile(torch.nn.Linear(2, 2), backend="eager"), "compiled"),
        (torch.nn.Sequential(torch.compile(torch.nn.Linear(2, 2), backend="eager")), "compiled"),
        (torch.compile(torch.nn.Linear(2, 2), backend="eager").forward, "compiled"),
        (function, None),
        (torch.mm, None),
        (torch.nn.Linear(2, 2), None),
        (torch.nn.Linear(2, 2).forward, None),
    ],
    ids=["function", "module", "part", "method", "plain function", "built-in", "plain module", "plain method"],
)
def test_compiled_callables_are_recognised(callable_: Any, word: str | None) -> None:
    found = compiled_part(callable_)
    assert (found is None) if word is None else (found is not None and word in found)


def test_a_module_that_was_compiled_in_place_is_recognised() -> None:
    module = torch.nn.Linear(2, 2)
    module.compile(backend="eager")
    assert compiled_part(torch.nn.Sequential(module)) is not None


def test_torchscript_is_recognised() -> None:
    scripted = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(2))
    assert "TorchScript" in (compiled_part(scripted) or "")
    assert "TorchScript" in compiled_work(scripted, (torch.ones(2),)).reasons["flops"]


def test_flops_of_a_compiled_module_of_pytorchs_own_are_known_and_its_bytes_are_not() -> None:
    backend = Backend()
    work = compiled_work(torch.compile(torch.nn.Linear(4, 3), backend=backend), (torch.ones(2, 4),))
    assert (work.flops, work.bytes, work.method) == (2 * 2 * 4 * 3 + 6, None, "meta")
    assert "fused" in work.reasons["bytes"]
    assert (backend.graphs, backend.runs) == (0, 0)


def test_a_compiled_callable_has_the_formula_that_is_registered_for_it_or_for_what_was_compiled() -> None:
    compiled = torch.compile(function, backend="eager")
    assert compiled_work(compiled, (torch.ones(2, 2),)).reasons.keys() == {"flops", "bytes"}
    register_formula(function, flops=lambda x: 5, bytes=lambda x: 7)
    work = compiled_work(compiled, (torch.ones(2, 2),))
    assert (work.flops, work.bytes, work.method) == (5, 7, "formula")
