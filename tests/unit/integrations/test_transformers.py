import pickle
from pathlib import Path
from typing import Any

import pytest
from support.regions import Stage

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from torch import nn  # noqa: E402
from transformers import Trainer, TrainingArguments  # noqa: E402
from unit.integrations.modules import count, torch_stage  # noqa: E402, F401

from gpu_profile.integrations.transformers import GpuProfileCallback  # noqa: E402

pytestmark = [
    # Of Transformers' own and of what it uses.
    pytest.mark.filterwarnings("ignore")
]


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(4, 1)
        self.error: BaseException | None = None

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        y = self.body(x)
        return {"loss": (y - labels).square().mean(), "logits": y}


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows() -> list[dict[str, Any]]:
    return [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(6)]


def trainer(callback: GpuProfileCallback, tmp_path: Path, model: Any = None, **options: Any) -> Any:
    given: dict[str, Any] = {
        "output_dir": str(tmp_path / "out"),
        "num_train_epochs": 2,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "logging_strategy": "no",
    }
    return Trainer(
        model=model or Model(),
        args=TrainingArguments(**given | options),
        train_dataset=rows(),
        eval_dataset=rows(),
        callbacks=[callback],
    )


def test_a_training_has_all_its_phases_each_inside_the_right_one(stage: Stage, tmp_path: Path) -> None:
    callback = GpuProfileCallback()
    trainer(callback, tmp_path, save_strategy="epoch", eval_strategy="epoch").train()
    counted = count(stage)
    assert counted.pop("data_wait") >= 12  # 3 batches in 2 epochs of training and evaluation
    assert counted == {
        "epoch": 2,
        "step": 6,
        "forward": 12,  # those of the evaluation are forwards too
        "backward": 6,
        "optimizer.step": 6,
        "evaluation": 2,
        "checkpoint": 2,
    }
    pairs = {(e.name, None if e.parent is None else e.parent.name) for e in stage.ended if e.name != "data_wait"}
    assert pairs == {
        ("epoch", None),
        ("step", "epoch"),
        ("forward", "step"),
        ("forward", "evaluation"),
        ("backward", "step"),
        ("optimizer.step", "step"),
        ("evaluation", None),
        ("checkpoint", None),
    }
    assert not any(e.failed for e in stage.ended)


def test_evaluation_and_checkpoints_by_steps(stage: Stage, tmp_path: Path) -> None:
    callback = GpuProfileCallback(depth=1, items=lambda **batch: len(batch["x"]))
    options = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3}
    trainer(callback, tmp_path, **options).train()
    counted = count(stage)
    assert (counted["evaluation"], counted["checkpoint"], counted["Model.body"]) == (2, 2, 12)
    assert {e.items for e in stage.ended if e.name == "forward"} == {2.0}


def test_gradient_accumulation_is_one_step(stage: Stage, tmp_path: Path) -> None:
    trainer(GpuProfileCallback(span=False), tmp_path, num_train_epochs=1, gradient_accumulation_steps=3).train()
    counted = count(stage)
    assert (counted["step"], counted["forward"], counted["optimizer.step"]) == (1, 3, 1)
    stage.flush()
    assert stage.names() == []


def test_compiled_by_the_trainer_there_is_no_forward_and_all_else(stage: Stage, tmp_path: Path) -> None:
    options = {"torch_compile": True, "torch_compile_backend": "eager", "num_train_epochs": 1}
    trainer(GpuProfileCallback(), tmp_path, **options).train()
    counted = count(stage)
    assert (counted["forward"], counted["step"], counted["backward"]) == (0, 3, 3)


def test_the_best_checkpoint_is_not_told_apart(stage: Stage, tmp_path: Path) -> None:
    options = {"save_strategy": "best", "eval_strategy": "epoch", "metric_for_best_model": "loss"}
    trainer(GpuProfileCallback(), tmp_path, **options).train()
    counted = count(stage)
    assert (counted["evaluation"], counted["checkpoint"]) == (2, 0)
    assert len(list((tmp_path / "out").iterdir())) > 0


def test_evaluate_and_predict_by_themselves(stage: Stage, tmp_path: Path) -> None:
    runner = trainer(GpuProfileCallback(), tmp_path)
    runner.evaluate()
    runner.predict(rows())
    assert count(stage) == {"evaluation": 2}


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_an_exception_ends_everything_in_a_with_block(error: BaseException, stage: Stage, tmp_path: Path) -> None:
    model = Model()
    model.error = error
    with pytest.raises(type(error)), GpuProfileCallback() as callback:
        trainer(callback, tmp_path, model).train()
    stage.session.settle(final=True)
    assert {"epoch", "step"} <= {e.name for e in stage.ended if e.failed} <= {"epoch", "step", "forward"}
    assert len(callback._open) == 0


def test_after_an_exception_the_next_training_begins_afresh(stage: Stage, tmp_path: Path) -> None:
    model, callback = Model(), GpuProfileCallback()
    model.error = ValueError("mine")
    runner = trainer(callback, tmp_path, model)
    with pytest.raises(ValueError, match="mine"):
        runner.train()
    model.error = None
    runner.train()
    stage.session.settle(final=True)
    assert [e.parent for e in stage.ended if e.name == "epoch"] == [None, None, None]
    assert len(callback._open) == 0


def test_a_pickled_callback_keeps_its_settings_only() -> None:
    copied = pickle.loads(pickle.dumps(GpuProfileCallback(depth=3, span=False)))  # noqa: S301
    assert (copied._depth, copied._span, copied._handle) == (3, False, None)
