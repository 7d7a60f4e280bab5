"""Models, data and a trainer of Lightning, whose import takes seconds: tests import this when they run."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from gpu_profile.integrations.lightning import GpuProfileCallback


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
