import copy
import functools
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
from support.regions import Stage

from gpu_profile import region
from gpu_profile.driver.simulated import Work
from gpu_profile.errors import UsageError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from unit.integrations.modules import Block, Net, batch, count, torch_stage  # noqa: E402

from gpu_profile.integrations.torch import Instrumentation, instrument  # noqa: E402

__all__ = ["torch_stage"]


@pytest.fixture
def model() -> Net:
    return Net()


# ---------------------------------------------------------------------- what becomes a region


def test_a_step_is_forward_with_its_modules_backward_and_the_optimizers_step(stage: Stage, model: Net) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with instrument(model, optimizer=optimizer) as handle, region("step"):
        model(batch()).sum().backward()
        optimizer.step()
    assert handle.names == ["forward", "Net.body", "Net.blocks.0", "Net.blocks.1", "Net.head"]
    assert stage.parents() == {
        "step": None,
        "forward": "step",
        "Net.body": "forward",
        "Net.blocks.0": "forward",
        "Net.blocks.1": "forward",
        "Net.head": "forward",
        "backward": "step",
        "optimizer.step": "step",
    }
    stage.flush()
    assert stage.parent("Net.body") == "forward"


def test_nothing_of_what_is_computed_changes(stage: Stage) -> None:
    def grads(*, instrumented: bool) -> list[Any]:
        torch.manual_seed(0)
        model = Net()
        if instrumented:
            with instrument(model, depth=5):
                model(batch()).sum().backward()
        else:
            model(batch()).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(grads(instrumented=True), grads(instrumented=False), strict=True))


def test_depth_and_patterns_and_classes_choose_modules() -> None:
    def names(**options: Any) -> list[str]:
        with instrument(Net(), forward=False, **options) as handle:
            return handle.names

    assert names(depth=0) == []
    assert "Net.body.inner" not in names(depth=1)
    assert names(depth=2)[:3] == ["Net.body", "Net.body.inner", "Net.body.act"]
    assert names(modules="blocks.*.inner") == ["Net.blocks.0.inner", "Net.blocks.1.inner"]
    assert names(modules=nn.Linear)[-1] == "Net.head"
    assert names(modules=["head", Block]) == ["Net.body", "Net.blocks.0", "Net.blocks.1", "Net.head"]


def test_only_what_is_asked_for_is_measured(stage: Stage, model: Net) -> None:
    with instrument(model, depth=0, backward=False):
        model(batch()).sum().backward()
    with instrument(model, depth=0, forward=False):
        model(batch()).sum().backward()
    assert count(stage) == {"forward": 1, "backward": 1}


def test_items_are_counted_from_the_forwards_arguments_and_spans_are_optional(stage: Stage, model: Net) -> None:
    with instrument(model, depth=0, items=lambda *, x: len(x), span=False):
        model(x=batch(7))
    assert stage.only().items == 7
    stage.flush()
    assert stage.names() == []


def test_what_items_raises_reaches_the_user(stage: Stage, model: Net) -> None:
    with instrument(model, items=lambda x: x.rows), pytest.raises(AttributeError, match="rows"):
        model(batch())


def test_modules_have_the_devices_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Stage(tmp_path, monkeypatch) as stage:

        class Launching(nn.Module):  # type: ignore[misc]
            def forward(self, x: Any) -> Any:
                stage.queue.launch(Work(seconds=0.3))
                return x

        model, began_ns = nn.Sequential(Launching(), Launching()), stage.clock.now_ns()
        with instrument(model):
            model(batch())
        stage.run(1.0)
        stage.session.settle(final=True)
        found = {e.name: e.interval() for e in stage.ended}
    spans = {name: (at.start_ns - began_ns, at.end_ns - began_ns) for name, at in found.items() if at is not None}
    assert spans["Sequential.0"][1] == pytest.approx(0.3e9, abs=1e6)
    assert spans["Sequential.1"][0] == spans["Sequential.0"][1]
    assert spans["forward"][1] == spans["Sequential.1"][1] == pytest.approx(0.6e9, abs=1e6)


# ---------------------------------------------------------------------- taking it away


def test_removed_leaves_nothing_behind(stage: Stage, model: Net) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(batch()))
    before = torch.autograd.backward, DataLoader.__iter__
    handle = instrument(model, optimizer=optimizer, loader=loader)
    assert torch.autograd.backward is not before[0]
    handle.remove()
    handle.remove()
    assert (torch.autograd.backward, DataLoader.__iter__) == before
    hooks = [m._forward_hooks or m._forward_pre_hooks for m in model.modules()]
    assert not any(hooks)
    assert not optimizer._optimizer_step_pre_hooks
    for (rows,) in loader:
        model(rows).sum().backward()
    optimizer.step()
    assert count(stage) == {}


def test_two_models_are_instrumented_and_removed_in_any_order(stage: Stage) -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    one = instrument(first)
    with instrument(second):
        one.remove()
        first(second(batch())).sum().backward()
    assert count(stage) == {"forward": 1, "backward": 1}


def test_who_has_wrapped_backward_since_still_works(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    model, handle = nn.Linear(4, 4), Instrumentation("none", [], True)
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    handle = instrument(model)
    ours = torch.autograd.backward
    torch.autograd.backward = functools.partial(ours)
    handle.remove()
    model(batch()).sum().backward()
    assert count(stage) == {}
    monkeypatch.undo()


def test_a_model_is_instrumented_once(model: Net) -> None:
    with instrument(model, depth=0), pytest.raises(UsageError, match=r"Net is instrumented already: remove\(\) that"):
        instrument(model)
    with instrument(model):
        pass


def test_an_instrumented_model_can_be_copied_and_saved(stage: Stage, model: Net) -> None:
    with instrument(model, items=len):
        twin = copy.deepcopy(model)
        twin(batch())
        stored = io.BytesIO()
        torch.save(model, stored)
        stored.seek(0)
        loaded = torch.load(stored, weights_only=False)
        loaded(batch())
        pickle.loads(pickle.dumps(model))(batch())  # noqa: S301
        model.load_state_dict(twin.state_dict())
    twin(batch())
    assert count(stage)["forward"] == 1


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modules": "blok.*"}, r"modules: Net has no 'blok\.\*'; it has blocks"),
        ({"modules": nn.Conv2d}, "modules: Net has no 'Conv2d'; it has body"),
    ],
)
def test_a_choice_that_fits_no_module_is_an_error_that_names_some(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        instrument(Net(), **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": print}, r"instrument takes a torch.nn.Module, not <built-in function print>"),
        ({"optimizer": 3}, r"optimizer takes one or several of torch.optim.optimizer.Optimizer, not 3"),
        ({"loader": [[1, 2]]}, r"loader takes one or several of torch.utils.data.dataloader.DataLoader, not \[\[1, 2"),
        ({"optimizer": DataLoader([1])}, r"optimizer takes one or several"),
    ],
)
def test_what_is_no_module_optimizer_or_loader_is_an_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        instrument(**{"model": Net(), **arguments})
