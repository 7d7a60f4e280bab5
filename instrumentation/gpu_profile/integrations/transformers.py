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

    A `step` ends with the optimizer's, so with gradient accumulation it has several forwards. `modules`, `depth` and
    `items` as for `gpu_profile.integrations.torch.instrument`; no modules by default. `span=False` emits no spans.

    The Trainer tells nobody of an exception. What is open then ends at exit, with `close()`, when training begins
    anew, or at once in `with GpuProfileCallback() as callback: ... trainer.train()`.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """End what is open and take everything away again; with an error, what was open has failed."""
        atexit.unregister(self.close)
        self._end(error)

    def _begin_next(self, control: Any) -> None:
        """What the trainer is about to do after a step or an epoch, of whose beginning it does not tell."""
        if control.should_evaluate:
            self._begin(EVALUATION)
        elif control.should_save:
            self._begin(CHECKPOINT)

    # ------------------------------------------------------------------ training

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Instrument the model, and every loader."""
        self.close()
        atexit.register(self.close)
        self._instrument(model, items=self._items)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Take everything away again."""
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
        """Begin `evaluation` where `evaluate` or `predict` was called by itself: after its first batch."""
        if not self._open.is_open(EVALUATION):
            self._begin(EVALUATION)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """End `evaluation`; a checkpoint may follow."""
        self._open.close(EVALUATION)
        # "best" decides only after this.
        if self._handle is not None and control.should_save and str(getattr(args.save_strategy, "value", "")) != "best":
            self._begin(CHECKPOINT)

    on_predict, on_save = ends(EVALUATION), ends(CHECKPOINT)
