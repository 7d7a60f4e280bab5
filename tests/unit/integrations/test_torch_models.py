import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.concurrency import in_threads
from support.programs import printed
from support.regions import Stage

from gpu_profile import region

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from unit.integrations.modules import Block, Net, batch, count, torch_stage  # noqa: E402

from gpu_profile.integrations.torch import instrument  # noqa: E402

__all__ = ["torch_stage"]


# ---------------------------------------------------------------------- hard models


def test_shared_and_recursive_modules_nest(stage: Stage) -> None:
    class Recursive(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first

        def forward(self, x: Any, depth: int = 2) -> Any:
            x = self.second(self.first(x))
            return self(x, depth - 1) if depth else x

    with instrument(Recursive()) as handle:
        pass
    assert handle.names == ["forward", "Recursive.first"]
    model = Recursive()
    with instrument(model):
        model(batch())
    stage.session.settle(final=True)
    assert count(stage) == {"forward": 3, "Recursive.first": 6}
    depths = Counter(depth(execution) for execution in stage.ended if execution.name == "forward")
    assert depths == {0: 1, 1: 1, 2: 1}


def depth(execution: Any) -> int:
    return 0 if execution.parent is None else 1 + depth(execution.parent)


def test_several_outputs_inputs_without_gradients_and_modes_without_them(stage: Stage) -> None:
    class Several(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 4)

        def forward(self, x: Any, *, extra: Any = None) -> dict[str, Any]:
            return {"a": self.body(x), "b": (x, extra)}

    model = Several()
    with instrument(model):
        model(batch(), extra=[1])["a"].sum().backward()
        with torch.no_grad():
            model(batch())
        with torch.inference_mode():
            model(batch())
    assert count(stage) == {"forward": 3, "Several.body": 3, "backward": 1}


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointing_computes_anew_is_backwards_time(reentrant: bool, stage: Stage) -> None:
    class Saving(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()
            self.calls = 0

        def forward(self, x: Any) -> Any:
            return checkpoint(self.block, x, use_reentrant=reentrant)

    model = Saving()
    calls: list[int] = []
    model.block.register_forward_pre_hook(lambda *_: calls.append(1))
    with instrument(model):
        model(batch().requires_grad_()).sum().backward()
    assert len(calls) == 2
    assert count(stage) == {"forward": 1, "Saving.block": 1, "backward": 1}


def test_an_optimizer_that_calls_back_has_its_forwards_inside(stage: Stage) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(batch()).square().sum()
        loss.backward()
        return loss

    with instrument(model, optimizer=[optimizer]):
        optimizer.step(closure)
    assert stage.parents() == {"optimizer.step": None, "forward": "optimizer.step", "backward": "optimizer.step"}


def test_threads_have_their_own(stage: Stage) -> None:
    model = Net()
    with instrument(model), region("main"):
        in_threads(lambda: model(batch()))
        model(batch())
    stage.session.settle(final=True)
    around = [None if e.parent is None else e.parent.name for e in stage.ended if e.name == "forward"]
    assert sorted(map(str, around)) == ["None", "main"]


#: In a process of its own that frees nothing: PyTorch's reducer waits for a thread of Gloo's when it is freed, and
#: holds the interpreter's lock meanwhile, which that thread may need to free the last of its work.
PARALLEL = """
import os, sys
from datetime import timedelta
from pathlib import Path
import pytest, torch
from support.regions import Stage
from unit.integrations.modules import Net, batch, count
from torch.utils.data import DataLoader
from gpu_profile.integrations import torch as integration
from gpu_profile.integrations.torch import instrument

place = Path(sys.argv[1])
store = torch.distributed.FileStore(str(place / "store"), 1)
torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store, timeout=timedelta(seconds=60))
with Stage(place, pytest.MonkeyPatch(), on_device=False) as stage:
    model = torch.nn.parallel.DistributedDataParallel(Net())
    before = torch.autograd.backward, DataLoader.__iter__
    with instrument(model) as handle:
        model(batch()).sum().backward()
    assert (torch.autograd.backward, DataLoader.__iter__) == before
    assert len(integration._open) == 0
    print(*handle.names, count(stage)["forward"], count(stage)["backward"], flush=True)
    os._exit(0)
"""


def test_under_distributed_data_parallel_names_are_the_models(tmp_path: Path) -> None:
    # Not what the machine's name resolves to.
    path, where = os.pathsep.join(sys.path), {"GLOO_SOCKET_IFNAME": "lo"}
    found = printed("-c", PARALLEL, tmp_path, PYTHONPATH=path, **where)
    assert found.split() == ["forward", "Net.body", "Net.blocks.0", "Net.blocks.1", "Net.head", "1", "1"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_is_refused_and_left_out_inside_a_model(stage: Stage) -> None:
    scripted = torch.jit.script(nn.Linear(4, 4))
    with pytest.raises(TypeError, match="instrument takes no TorchScript, which has no hooks: Linear"):
        instrument(scripted)
    model = nn.Sequential(scripted, nn.Linear(4, 4))
    with instrument(model):
        model(batch())
    assert count(stage) == {"forward": 1, "Sequential.1": 1}


# ---------------------------------------------------------------------- exceptions


class Failing(nn.Module):  # type: ignore[misc]
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.inner.register_forward_hook(self.fail)
        self.error: BaseException | None = error

    def fail(self, *_: Any) -> None:
        if self.error is not None:
            raise self.error

    def forward(self, x: Any) -> Any:
        return self.inner(x)


def test_a_forward_that_raises_is_a_failed_execution_and_the_next_is_as_always(stage: Stage) -> None:
    model = Failing(ValueError("mine"))
    with instrument(model):
        with pytest.raises(ValueError, match="mine"):
            model(batch())
        stage.session.settle(final=True)
        assert {e.name: e.failed for e in stage.ended} == {"forward": True, "Failing.inner": True}
        stage.ended.clear()
        model.error = None
        model(batch())
    assert stage.parents() == {"forward": None, "Failing.inner": "forward"}


def test_after_ctrl_c_in_a_forward_the_next_one_is_not_inside_it(stage: Stage) -> None:
    model = Failing(KeyboardInterrupt())  # upon which PyTorch calls no hook
    with instrument(model):
        with pytest.raises(KeyboardInterrupt):
            model(batch())
        model.error = None
        model(batch())
    stage.session.settle(final=True)
    assert [(e.failed, depth(e)) for e in stage.ended if e.name == "forward"] == [(True, 0), (False, 0)]


def test_a_call_that_handles_an_exception_has_not_failed(stage: Stage) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with instrument(model, optimizer=optimizer):
        try:
            raise MemoryError
        except MemoryError:
            model(batch()).sum().backward()
            optimizer.step()
    stage.session.settle(final=True)
    assert {e.failed for e in stage.ended} == {False}


def test_removed_after_ctrl_c_leaves_no_region_open(stage: Stage) -> None:
    with pytest.raises(KeyboardInterrupt), instrument(model := Failing(KeyboardInterrupt())):
        model(batch())
    with region("next"):
        pass
    assert stage.parents() == {"forward": None, "Failing.inner": "forward", "next": None}


def test_a_backward_that_raises_is_a_failed_execution(stage: Stage) -> None:
    model = nn.Linear(4, 4)
    with instrument(model, depth=0, forward=False):
        loss = model(batch()).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    stage.session.settle(final=True)
    assert [e.failed for e in stage.ended] == [False, True]


def test_a_step_that_raises_ends_before_the_next_begins(stage: Stage) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def closure() -> Any:
        raise ValueError("mine")

    with instrument(model, optimizer=optimizer):
        with pytest.raises(ValueError, match="mine"):
            optimizer.step(closure)
        optimizer.step()
    stage.session.settle(final=True)
    assert [(e.failed, depth(e)) for e in stage.ended] == [(True, 0), (False, 0)]
