"""PyTorch Lightning: `Trainer(callbacks=[GpuProfileCallback()])` makes the trainer's phases regions.

For `lightning` and, where the program has imported that instead, `pytorch_lightning`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from gpu_profile.integrations.open_regions import OpenRegions
from gpu_profile.integrations.torch import BACKWARD, FORWARD, OPTIMIZER, Instrumentation, instrument
from gpu_profile.regions.region import region

try:
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ImportError as missing:
    message = f"gpu_profile.integrations.lightning needs Lightning: pip install lightning ({missing})"
    raise ImportError(message) from missing

EPOCH: Final = "epoch"
STEP: Final = "step"
CHECKPOINT: Final = "checkpoint"


class GpuProfileCallback(Callback):  # type: ignore[misc]
    """Regions `epoch`, `step` with `forward`, `backward` and `optimizer.step` in it, `data_wait`, `validation`, `test`,
    `predict` and `checkpoint`.

    `forward` is `training_step`. With manual optimization it ends at the first backward of a step. `modules` and
    `depth` make modules regions too, as for `gpu_profile.integrations.torch.instrument`; none by default. `items` tells
    the units of work of a step from its batch. `span=False` emits no spans.
    """

    def __init__(
        self,
        *,
        modules: str | type | Iterable[str | type] | None = None,
        depth: int = 0,
        items: Callable[[Any], float] | None = None,
        span: bool = True,
    ) -> None:
        super().__init__()
        self._modules, self._depth, self._items, self._span = modules, depth, items, span
        self._open = OpenRegions()
        self._handle: Instrumentation | None = None
        self._undo: list[Callable[[], object]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None, "_undo": []}

    def _begin(self, name: str, items: float | None = None) -> None:
        self._open.open(name, items=items, span=self._span)

    # ------------------------------------------------------------------ the whole

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - as Lightning calls it
        """Before the loaders are made, which wait for their first batch then."""
        self._end()
        self._handle = instrument(
            pl_module,
            modules=self._modules,
            depth=self._depth,
            forward=False,
            backward=False,
            loader=True,
            span=self._span,
        )
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            with region(CHECKPOINT, span=self._span):
                return save(*args, **kwargs)

        trainer.save_checkpoint = save_checkpoint
        self._undo.append(lambda: trainer.__dict__.pop("save_checkpoint", None))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - as Lightning calls it
        """Take everything away again."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """End what is open, also upon Ctrl-C."""
        self._end(exception)

    def _end(self, error: BaseException | None = None) -> None:
        while self._undo:
            self._undo.pop()()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._open.close_all(error)

    # ------------------------------------------------------------------ training

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Learn of the end of each optimizer's step, of which Lightning does not tell."""
        for optimizer in trainer.optimizers:
            after = optimizer.register_step_post_hook(lambda *_: self._open.close(OPTIMIZER))
            self._undo.append(after.remove)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin `epoch`."""
        self._begin(EPOCH)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End `epoch`."""
        self._open.close(EPOCH)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Begin `step`, and `forward`."""
        self._begin(STEP, None if self._items is None else self._items(batch))
        self._begin(FORWARD)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:  # noqa: ARG002
        """End `forward`, and begin `backward`."""
        self._open.close(FORWARD)
        self._begin(BACKWARD)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End `backward`."""
        self._open.close(BACKWARD)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:  # noqa: ARG002
        """Begin `optimizer.step`. A step that is left out, as a scaler does, ends with `step`."""
        self._begin(OPTIMIZER)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """End `step` and what is open in it."""
        self._open.close(STEP)

    # ------------------------------------------------------------------ the other loops

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin `validation`; the sanity check is one, too."""
        self._begin("validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End `validation`."""
        self._open.close("validation")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin `test`."""
        self._begin("test")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End `test`."""
        self._open.close("test")

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin `predict`."""
        self._begin("predict")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End `predict`."""
        self._open.close("predict")
