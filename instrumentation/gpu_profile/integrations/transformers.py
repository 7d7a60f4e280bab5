"""Hugging Face Transformers: `Trainer(..., callbacks=[GpuProfileCallback()])` makes the trainer's phases regions."""

from __future__ import annotations

import atexit
from types import TracebackType
from typing import Any, Final, Self

from gpu_profile.integrations.torch import OPTIMIZER
from gpu_profile.integrations.trainer import CHECKPOINT, EPOCH, STEP, TrainerRegions, begins, ends

try:
    from transformers import TrainerCallback
except ImportError as missing:
    message = f"gpu_profile.integrations.transformers needs Transformers: pip install transformers ({missing})"
    raise ImportError(message) from missing

EVALUATION: Final = "evaluation"


class GpuProfileCallback(TrainerRegions, TrainerCallback):  # type: ignore[misc]
    """Regions `epoch`, `step` with `forward`, `backward` and `optimizer.step` in it, `data_wait`, `evaluation` and
    `checkpoint`.

    A `step` ends with the optimizer's step, so with gradient accumulation it has several forwards. `modules`, `depth`
    and `items` as for `gpu_profile.integrations.torch.instrument`; no modules by default. `span=False` emits no spans.

    The Trainer has no callback for an exception. Open regions then end with `close()`, at the next training, or at the
    end of the process. In `with GpuProfileCallback() as callback: ... trainer.train()` they end at once.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """End all open regions and remove all hooks. With an `error`, the regions count as failed."""
        atexit.unregister(self.close)
        self._end(error)

    def _begin_next(self, control: Any) -> None:
        """Begin the evaluation or checkpoint that follows a step or an epoch: no callback marks its beginning."""
        if control.should_evaluate:
            self._begin(EVALUATION)
        elif control.should_save:
            self._begin(CHECKPOINT)

    # ------------------------------------------------------------------ training

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Instrument the model and all loaders."""
        self.close()
        atexit.register(self.close)
        self._instrument(model, items=self._items)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Remove all hooks."""
        self.close()

    on_epoch_begin = begins(EPOCH)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """End `epoch`."""
        self._open.close(EPOCH)
        self._begin_next(control)

    on_step_begin = begins(STEP)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """End `step`."""
        self._open.close(STEP)
        self._begin_next(control)

    on_pre_optimizer_step, on_optimizer_step = begins(OPTIMIZER), ends(OPTIMIZER)

    # ------------------------------------------------------------------ evaluation and checkpoints

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Begin `evaluation` after the first batch if the program has called `evaluate` or `predict` directly."""
        if not self._open.is_open(EVALUATION):
            self._begin(EVALUATION)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """End `evaluation`; a checkpoint may follow."""
        self._open.close(EVALUATION)
        # With the strategy "best", the trainer decides after this call.
        if self._handle is not None and control.should_save and str(getattr(args.save_strategy, "value", "")) != "best":
            self._begin(CHECKPOINT)

    on_predict, on_save = ends(EVALUATION), ends(CHECKPOINT)
