import pickle
from pathlib import Path
from typing import Any

import pytest
from support.regions import Stage

torch = pytest.importorskip("torch")
pytest.importorskip("lightning.pytorch")

from lightning.pytorch import LightningModule, Trainer  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from unit.integrations.modules import count, torch_stage  # noqa: E402, F401

from gpu_profile.integrations.lightning import GpuProfileCallback  # noqa: E402

pytestmark = [
    # Of Lightning's own and of what it uses.
    pytest.mark.filterwarnings("ignore")
]


class Model(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(4, 1)
        self.error: BaseException | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.error is not None:
            raise self.error
        return self.body(batch[0]).sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.body(batch[0])

    test_step = predict_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)


class Manual(Model):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        for _ in range(2):
            self.manual_backward(self.body(batch[0]).sum())
            optimizer.step()


def loader() -> Any:
    return DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2)


def trainer(callback: GpuProfileCallback, tmp_path: Path, **options: Any) -> Any:
    given: dict[str, Any] = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": tmp_path,
        "callbacks": [callback],
    }
    return Trainer(**given | options)


def test_a_fit_has_all_its_phases_each_inside_the_right_one(stage: Stage, tmp_path: Path) -> None:
    callback = GpuProfileCallback(items=lambda batch: len(batch[0]))
    fit = trainer(callback, tmp_path, enable_checkpointing=True)
    fit.fit(Model(), loader(), loader())
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


def test_gradient_accumulation_has_fewer_optimizer_steps_and_modules_are_inside(stage: Stage, tmp_path: Path) -> None:
    callback = GpuProfileCallback(depth=1)
    trainer(callback, tmp_path, max_epochs=1, accumulate_grad_batches=3).fit(Model(), loader())
    counted = count(stage)
    assert (counted["forward"], counted["optimizer.step"], counted["Model.body"]) == (3, 1, 3)
    assert stage.parents()["Model.body"] == "forward"


def test_manual_optimization(stage: Stage, tmp_path: Path) -> None:
    trainer(GpuProfileCallback(), tmp_path, max_epochs=1).fit(Manual(), loader())
    counted = count(stage)
    assert (counted["step"], counted["forward"], counted["backward"], counted["optimizer.step"]) == (3, 3, 6, 6)


def test_test_and_predict_are_regions(stage: Stage, tmp_path: Path) -> None:
    runner, model = trainer(GpuProfileCallback(span=False), tmp_path), Model()
    runner.test(model, loader(), verbose=False)
    runner.predict(model, loader())
    counted = count(stage)
    assert (counted["test"], counted["predict"]) == (1, 1)
    stage.flush()
    assert stage.names() == []


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_an_exception_ends_everything(error: BaseException, stage: Stage, tmp_path: Path) -> None:
    callback, model = GpuProfileCallback(), Model()
    model.error = error
    with pytest.raises((ValueError, KeyboardInterrupt, SystemExit)):
        trainer(callback, tmp_path).fit(model, loader())
    stage.session.settle(final=True)
    failed = {e.name for e in stage.ended if e.failed}
    assert failed == {"epoch", "step", "forward"}
    assert len(callback._open) == 0


def test_a_pickled_callback_keeps_its_settings_only() -> None:
    copied = pickle.loads(pickle.dumps(GpuProfileCallback(depth=3, span=False)))  # noqa: S301
    assert (copied._depth, copied._span, copied._handle) == (3, False, None)
