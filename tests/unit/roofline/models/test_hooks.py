"""Which modules are watched, and that nothing of it changes them or stays."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from unit.roofline.backend import Backend  # noqa: E402

from gpu_profile.roofline.models.hooks import Submodule, submodules, watched  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Diary:
    """An observer that writes down."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, submodule: Submodule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.lines.append(f"begin {submodule.path}")

    def finish(self, submodule: Submodule) -> None:
        self.lines.append(f"finish {submodule.path}")


def paths(model: Any) -> list[str]:
    return [submodule.path for submodule in submodules(model)]


def state(model: Any) -> list[Any]:
    """What watching could leave on its modules."""
    return [
        (
            list(module._forward_hooks),
            list(module._forward_pre_hooks),
            module.__dict__.get("forward"),
            module.__dict__.get("_compiled_call_impl"),
        )
        for module in model.modules()
        if not isinstance(module, torch.jit.ScriptModule)
    ]


@pytest.fixture
def backend() -> Any:
    torch._dynamo.reset()
    yield Backend()
    torch._dynamo.reset()


@pytest.fixture
def diary() -> Diary:
    return Diary()


def test_each_module_is_a_part_once_and_lists_of_modules_are_none() -> None:
    shared = nn.ReLU()
    model = nn.Sequential(nn.ModuleList([shared, nn.Linear(1, 1)]), nn.Sequential(shared))
    assert paths(model) == ["", "0.0", "0.1", "1"]


def test_calls_are_told_from_the_outside_in_and_back(diary: Diary) -> None:
    model = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity()))
    with watched(submodules(model), diary):
        model(1)
    model(1)
    assert diary.lines == [
        *("begin ", "begin 0", "finish 0", "begin 1", "begin 1.0", "finish 1.0", "finish 1", "finish ")
    ]


def test_nothing_stays_on_the_model_also_when_it_fails() -> None:
    class Failing(nn.Module):  # type: ignore[misc]
        def forward(self, value: Any) -> Any:
            raise LookupError(value)

    model = nn.Sequential(nn.Identity(), nn.TransformerEncoderLayer(2, 2), Failing())
    model.eval()
    before = state(model)
    during = []

    def run() -> None:
        with watched(submodules(model), Diary()):
            during.append(state(model))
            model(torch.ones(1, 1, 2))

    with pytest.raises(LookupError) as raised:
        run()
    assert during != [before]
    assert state(model) == before
    assert raised.value.__context__ is None


def test_hooks_of_the_users_stay_and_are_inside_of_what_is_watched(diary: Diary) -> None:
    model = nn.Identity()
    model.register_forward_pre_hook(lambda *_: diary.lines.append("user's before"))
    model.register_forward_hook(lambda *_: diary.lines.append("user's after"))
    with watched(submodules(model), diary):
        model(1)
    assert diary.lines == ["begin ", "user's before", "user's after", "finish "]
    assert (len(model._forward_hooks), len(model._forward_pre_hooks)) == (1, 1)


def test_a_forward_of_the_objects_own_is_put_back() -> None:
    layer = nn.TransformerEncoderLayer(2, 2, batch_first=True).eval()
    own = layer.linear1.forward
    layer.linear1.forward = own
    with watched(submodules(layer), Diary()):
        assert layer.linear1.forward is not own
    assert layer.linear1.forward is own
    assert "forward" not in layer.linear2.__dict__


def test_a_copy_that_is_made_meanwhile_falls_silent(diary: Diary) -> None:
    model = nn.Linear(1, 1)
    with watched(submodules(model), diary):
        twin = copy.deepcopy(model)
    twin(torch.ones(1, 1))
    assert diary.lines == []


def test_an_encoder_layer_takes_its_fused_path_as_it_does_unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = torch._transformer_encoder_layer_fwd
    calls = []

    def counted(*args: Any) -> Any:
        calls.append(1)
        return fused(*args)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counted)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    diary = Diary()
    with torch.no_grad(), watched(submodules(model), diary):
        model(torch.ones(1, 3, 4))
    assert calls == [1, 1]
    assert diary.lines == [
        *("begin ", "begin layers.0", "finish layers.0", "begin layers.1", "finish layers.1", "finish ")
    ]


def test_an_encoder_layer_that_does_not_fuse_shows_what_is_inside() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    for module in (layer.train(), layer.eval()):  # in eval mode gradients keep it from fusing
        diary = Diary()
        with watched(submodules(module), diary):
            module(torch.ones(1, 3, 4))
        assert {"begin self_attn", "begin linear1", "begin norm2"} <= set(diary.lines)


def test_a_scripted_module_is_one_part(diary: Diary) -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    model = nn.Sequential(scripted)
    with watched(submodules(model), diary):
        model(torch.ones(1, 2))
    assert paths(model) == ["", "0"]
    assert diary.lines == ["begin ", "begin 0", "finish 0", "finish "]
    assert submodules(model)[1].kind == "Sequential (scripted)"
    assert isinstance(scripted.forward, torch.ScriptMethod)


def test_a_data_parallel_module_is_one_part() -> None:
    assert paths(nn.Sequential(nn.DataParallel(nn.Sequential(nn.Linear(2, 2))))) == ["", "0"]


@pytest.mark.parametrize("how", ["torch.compile", "module.compile", "forward"])
def test_what_is_compiled_stays_compiled_and_is_one_part(backend: Backend, how: str) -> None:
    class Inner(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, value: Any) -> Any:
            return self.linear(value).relu()

    inner: Any = Inner()
    if how == "torch.compile":
        compiled: Any = torch.compile(inner, backend=backend)
    elif how == "module.compile":
        compiled = inner
        compiled.compile(backend=backend)
    else:
        compiled = inner
        compiled.forward = torch.compile(inner.forward, backend=backend)
    model = nn.Sequential(nn.Linear(2, 2), compiled)
    for warm in (False, True):
        diary = Diary()
        with watched(submodules(model), diary):
            model(torch.ones(1, 2))
        assert diary.lines == ["begin ", "begin 0", "finish 0", "begin 1", "finish 1", "finish "]
        assert (backend.graphs, backend.runs) == (1, 1 + warm)
    model(torch.ones(1, 2))
    assert (backend.graphs, backend.runs) == (1, 3)
    assert submodules(model)[2].kind == "Inner (compiled)"


@pytest.mark.parametrize("warm", [False, True])
def test_a_compiled_function_that_calls_watched_modules_runs_compiled_in_one_graph(
    backend: Backend, warm: bool, diary: Diary
) -> None:
    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
            self.both = torch.compile(lambda value: self.second(self.first(value)), backend=backend)

        def forward(self, value: Any) -> Any:
            return self.both(value)

    model = Model()
    if warm:
        model(torch.ones(1, 2))
    with watched(submodules(model), diary):
        model(torch.ones(1, 2))
    assert (backend.graphs, backend.runs) == (1, 1 + warm)
    assert diary.lines == ["begin ", "finish "]
    model(torch.ones(1, 2))
    # Its guards want the hooks that were there when it was compiled.
    assert (backend.graphs, backend.runs) == (1 if warm else 2, 2 + warm)
