"""The common base of the callbacks for Lightning's and Transformers' trainers. Needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from gpu_profile.integrations.open_regions import OpenRegions
from gpu_profile.integrations.torch import Instrumentation, instrument

EPOCH: Final = "epoch"
STEP: Final = "step"
CHECKPOINT: Final = "checkpoint"


class TrainerRegions:
    """Regions that one call of a trainer begins and another ends, with an instrumented model.

    `modules` and `depth` make modules regions too, as for `gpu_profile.integrations.torch.instrument`; none by default.
    `items` returns the units of work. `span=False` emits no spans. A copy has the settings but no open regions.
    """

    def __init__(
        self,
        *,
        modules: str | type | Iterable[str | type] | None = None,
        depth: int = 0,
        items: Callable[..., float] | None = None,
        span: bool = True,
    ) -> None:
        super().__init__()
        self._modules, self._depth, self._items, self._span = modules, depth, items, span
        self._open = OpenRegions()
        self._handle: Instrumentation | None = None
        #: Functions that remove other additions to the trainer.
        self._undo: list[Callable[[], object]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None, "_undo": []}

    def _begin(self, name: str, items: float | None = None) -> None:
        self._open.open(name, items=items, span=self._span)

    def _instrument(self, model: Any, **which: Any) -> None:
        self._handle = instrument(
            model, modules=self._modules, depth=self._depth, loader=True, span=self._span, **which
        )

    def _end(self, error: BaseException | None = None) -> None:
        """Remove all hooks and end all open regions. With an `error`, these count as failed."""
        while self._undo:
            self._undo.pop()()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._open.close_all(error)


def begins(name: str) -> Callable[..., None]:
    """A trainer's hook that begins a region."""

    def hook(self: TrainerRegions, *_: Any, **__: Any) -> None:
        self._begin(name)

    return hook


def ends(name: str) -> Callable[..., None]:
    """A trainer's hook that ends a region and all regions inside it."""

    def hook(self: TrainerRegions, *_: Any, **__: Any) -> None:
        self._open.close(name)

    return hook
