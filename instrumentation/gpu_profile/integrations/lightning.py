"""PyTorch Lightning: `Trainer(callbacks=[GpuProfileCallback()])` makes the trainer's phases regions.

For `lightning` and, where the program has imported that instead, `pytorch_lightning`.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from gpu_profile.integrations.torch import BACKWARD, FORWARD, OPTIMIZER
from gpu_profile.integrations.trainer import CHECKPOINT, EPOCH, STEP, TrainerRegions, begins, ends
from gpu_profile.regions.region import region

try:
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ImportError as missing:
    message = f"gpu_profile.integrations.lightning needs Lightning: pip install lightning ({missing})"
    raise ImportError(message) from missing


class GpuProfileCallback(TrainerRegions, Callback):  # type: ignore[misc]
    """Regions `epoch`, `step` with `forward`, `backward` and `optimizer.step` in it, `data_wait`, `validation`, `test`,
    `predict` and `checkpoint`.

    `forward` is `training_step`. With manual optimization it ends at the first backward of a step. `modules` and
    `depth` make modules regions too, as for `gpu_profile.integrations.torch.instrument`; none by default.
    `items(batch)` returns the units of work of a step. `span=False` emits no spans.
    """

    # ------------------------------------------------------------------ setup and teardown

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - as Lightning calls it
        """Instrument the model and all loaders, before the loaders are made and wait for their first batch."""
        self._end()
        self._instrument(pl_module, forward=False, backward=False)
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            with region(CHECKPOINT, span=self._span):
                return save(*args, **kwargs)

        trainer.save_checkpoint = save_checkpoint
        self._undo.append(lambda: trainer.__dict__.pop("save_checkpoint", None))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - as Lightning calls it
        """Remove all hooks."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """End all open regions, also upon Ctrl-C."""
        self._end(exception)

    # ------------------------------------------------------------------ training

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Hook the end of each optimizer's step: Lightning has no callback for it."""
        for optimizer in trainer.optimizers:
            after = optimizer.register_step_post_hook(lambda *_: self._open.close(OPTIMIZER))
            self._undo.append(after.remove)

    on_train_epoch_start, on_train_epoch_end = begins(EPOCH), ends(EPOCH)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Begin `step` and `forward`."""
        self._begin(STEP, None if self._items is None else self._items(batch))
        self._begin(FORWARD)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:  # noqa: ARG002
        """End `forward` and begin `backward`."""
        self._open.close(FORWARD)
        self._begin(BACKWARD)

    on_after_backward = ends(BACKWARD)
    # If a gradient scaler skips the optimizer's step, this region ends with `step`.
    on_before_optimizer_step = begins(OPTIMIZER)
    on_train_batch_end = ends(STEP)

    # ------------------------------------------------------------------ the other loops

    # Lightning's sanity check is a validation, too.
    on_validation_start, on_validation_end = begins("validation"), ends("validation")
    on_test_start, on_test_end = begins("test"), ends("test")
    on_predict_start, on_predict_end = begins("predict"), ends("predict")
