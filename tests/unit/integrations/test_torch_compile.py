import logging
from collections.abc import Iterator
from typing import Any

import pytest
from support.regions import Stage

from gpu_profile.errors import UsageError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from unit.integrations.modules import Block, Net, batch, count, torch_stage  # noqa: E402

from gpu_profile.integrations.torch import instrument  # noqa: E402

__all__ = ["torch_stage"]


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


#: PyTorch's own, from its compiler, which means to hide it.
NON_LEAF = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Breaking(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.body = Block()
        self.head = Block()

    def forward(self, x: Any) -> Any:
        x = self.body(x)
        torch._dynamo.graph_break()
        return self.head(x)


@NON_LEAF
@pytest.mark.parametrize("make", [Net, Breaking])
@pytest.mark.parametrize("early", [False, True])
def test_graphs_and_their_breaks_are_the_same_with_and_without(
    make: type, early: bool, stage: Stage, fresh_compiler: None
) -> None:
    def graphs(*, instrumented: bool) -> tuple[int, int, int]:
        torch._dynamo.reset()
        model, x = make(), batch()
        if instrumented and early:
            with instrument(model, depth=5):
                found = torch._dynamo.explain(model)(x)
        elif instrumented:
            compiled = torch.compile(model, backend="eager")
            with instrument(compiled, depth=5):
                compiled(x)
                found = torch._dynamo.explain(model)(x)
        else:
            found = torch._dynamo.explain(model)(x)
        return found.graph_count, found.graph_break_count, found.op_count

    assert graphs(instrumented=True) == graphs(instrumented=False)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_has_its_forward_and_is_compiled_whole_and_once(
    backend: str, stage: Stage, fresh_compiler: None
) -> None:
    compiled = torch.compile(Net(), backend=backend, fullgraph=True)
    optimizer = torch.optim.SGD(compiled.parameters(), 0.1)
    with instrument(compiled, depth=5, optimizer=optimizer) as handle:
        for _ in range(3):
            compiled(batch()).sum().backward()
            optimizer.step()
    assert handle.names == ["forward"]
    assert count(stage) == {"forward": 3, "backward": 3, "optimizer.step": 3}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    compiled(batch())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_module_that_is_compiled_in_place_has_its_region(stage: Stage, fresh_compiler: None) -> None:
    model = Net()
    model.body.compile(backend="eager", fullgraph=True)
    with instrument(model, depth=5) as handle:
        model(batch())
        model(batch())
    assert "Net.body" in handle.names
    assert "Net.body.inner" not in handle.names
    assert count(stage)["Net.body"] == 2
    model(batch())
    assert count(stage)["Net.body"] == 2


def test_a_model_that_is_compiled_in_place_has_its_forward(stage: Stage, fresh_compiler: None) -> None:
    model = Net()
    model.compile(backend="eager", fullgraph=True)
    with instrument(model, items=len):
        model(batch(5))
        with pytest.raises(UsageError, match="instrumented already"):
            instrument(model)
    assert stage.only().items == 5


def test_choosing_inside_a_compiled_model_is_an_error() -> None:
    with pytest.raises(UsageError, match="Net has no modules to choose from: it is compiled"):
        instrument(torch.compile(Net(), backend="eager"), modules="body")


def test_a_model_that_was_compiled_after_instrument_is_whole_and_its_missing_forward_is_told_once(
    stage: Stage, fresh_compiler: None, caplog: pytest.LogCaptureFixture
) -> None:
    model = Net()
    with instrument(model, depth=5), caplog.at_level(logging.WARNING, logger="gpu_profile"):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        compiled(batch()).sum().backward()
        compiled(batch()).sum().backward()
    assert count(stage) == {"backward": 2}
    (record,) = caplog.records
    assert "no forward of Net before the first backward; if it was compiled after instrument()" in record.message


@NON_LEAF
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_training_step_breaks_no_more_than_before(stage: Stage, fresh_compiler: None) -> None:
    def breaks(*, instrumented: bool) -> Any:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        @torch.compile(backend="eager")  # type: ignore[untyped-decorator,unused-ignore]
        def step(x: Any) -> None:
            model(x).sum().backward()
            optimizer.step()

        if instrumented:
            with instrument(model, optimizer=optimizer):
                step(batch())
        else:
            step(batch())
        return sum(torch._dynamo.utils.counters["graph_break"].values())

    assert breaks(instrumented=True) == breaks(instrumented=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_export_and_the_tracers_see_the_same_model(stage: Stage, fresh_compiler: None) -> None:
    model, plain = Net(), Net()

    def nodes(module: Any) -> list[int]:
        exported = torch.export.export(module, (batch(),)).graph
        traced = torch.jit.trace(module, batch()).graph
        return [len(exported.nodes), len(list(traced.nodes())), len(torch.fx.symbolic_trace(module).graph.nodes)]

    with instrument(model, depth=5):
        assert nodes(model) == nodes(plain)
