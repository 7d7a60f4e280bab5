import importlib
import importlib.util
import pickle
from pathlib import Path
from typing import Any

import pytest
from support.regions import Stage

pytest.importorskip("torch")

from unit.integrations.modules import count, torch_stage  # noqa: F401

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs Lightning"),
    # Of Lightning's own and of what it uses.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def parts() -> Any:
    return importlib.import_module("unit.integrations.lightning_parts")


def test_a_fit_has_all_its_phases_each_inside_the_right_one(stage: Stage, tmp_path: Path, parts: Any) -> None:
    callback = parts.GpuProfileCallback(items=lambda batch: len(batch[0]))
    fit = parts.trainer(callback, tmp_path, enable_checkpointing=True)
    fit.fit(parts.Model(), parts.loader(), parts.loader())
    counted = count(stage)
    assert counted.pop("data_wait") >= 12  # 3 batches in 2 epochs of training and validation
    assert counted == {
        "epoch": 2,
        "step": 6,
        "forward": 6,
        "backward": 6,
        "optimizer.step": 6,
        "validation": 2,
        "checkpoint": 2,
    }
    parents = stage.parents()
    assert [parents[name] for name in ("step", "forward", "backward", "optimizer.step")] == ["epoch"] + ["step"] * 3
    assert {e.items for e in stage.ended if e.name == "step"} == {2.0}
    assert not any(e.failed for e in stage.ended)
    assert "save_checkpoint" not in fit.__dict__


def test_gradient_accumulation_has_fewer_optimizer_steps_and_modules_are_inside(
    stage: Stage, tmp_path: Path, parts: Any
) -> None:
    callback = parts.GpuProfileCallback(depth=1)
    parts.trainer(callback, tmp_path, max_epochs=1, accumulate_grad_batches=3).fit(parts.Model(), parts.loader())
    counted = count(stage)
    assert (counted["forward"], counted["optimizer.step"], counted["Model.body"]) == (3, 1, 3)
    assert stage.parents()["Model.body"] == "forward"


def test_manual_optimization(stage: Stage, tmp_path: Path, parts: Any) -> None:
    parts.trainer(parts.GpuProfileCallback(), tmp_path, max_epochs=1).fit(parts.Manual(), parts.loader())
    counted = count(stage)
    assert (counted["step"], counted["forward"], counted["backward"], counted["optimizer.step"]) == (3, 3, 6, 6)


def test_test_and_predict_are_regions(stage: Stage, tmp_path: Path, parts: Any) -> None:
    runner, model = parts.trainer(parts.GpuProfileCallback(span=False), tmp_path), parts.Model()
    runner.test(model, parts.loader(), verbose=False)
    runner.predict(model, parts.loader())
    counted = count(stage)
    assert (counted["test"], counted["predict"]) == (1, 1)
    stage.flush()
    assert stage.names() == []


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_an_exception_ends_everything(error: BaseException, stage: Stage, tmp_path: Path, parts: Any) -> None:
    callback, model = parts.GpuProfileCallback(), parts.Model()
    model.error = error
    with pytest.raises((ValueError, KeyboardInterrupt, SystemExit)):
        parts.trainer(callback, tmp_path).fit(model, parts.loader())
    stage.session.settle(final=True)
    failed = {e.name for e in stage.ended if e.failed}
    assert failed == {"epoch", "step", "forward"}
    assert len(callback._open) == 0


def test_a_pickled_callback_keeps_its_settings_only(parts: Any) -> None:
    copied = pickle.loads(pickle.dumps(parts.GpuProfileCallback(depth=3, span=False)))  # noqa: S301
    assert (copied._depth, copied._span, copied._handle) == (3, False, None)
