"""Detects work that bypasses PyTorch's dispatcher, so that incomplete counts are not taken for complete ones.

Compiled code runs its own kernels, and a CUDA graph's replay is one call into the driver. Neither is counted; both are
detected. Libraries that launch kernels themselves (Triton without `torch.library`, CuPy, extensions) are not detected.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, Self

from gpu_profile.regions.session import process

COMPILED: Final = "compiled code ran inside, whose kernels cannot be counted: register a formula for the callable"
REPLAYED: Final = (
    "a CUDA graph was replayed inside, whose kernels cannot be counted: register a formula for the callable"
)

_lock = threading.Lock()
_watching: Final[dict[int, list[Undispatched]]] = {}
_restore: Final[list[Callable[[], object]]] = []


class Undispatched:
    """`with Undispatched() as missed: ...`, then `missed.reason`: why this thread's counts are incomplete, or None."""

    __slots__ = ("_compilations", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        self._compilations = 0

    def __enter__(self) -> Self:
        self._compilations = compilations()
        with _lock:
            if not _watching:
                _watch_compiled()
                _watch_graphs()
            _watching.setdefault(threading.get_ident(), []).append(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            active = _watching[threading.get_ident()]
            active.remove(self)
            if not active:
                del _watching[threading.get_ident()]
            if not _watching:
                while _restore:
                    _restore.pop()()
        self._compare()

    def taken(self) -> str | None:
        """Return the reason so far and reset it."""
        self._compare()
        reason, self.reason = self.reason, None
        return reason

    def _compare(self) -> None:
        if (now := compilations()) != self._compilations:
            self.reason, self._compilations = COMPILED, now


def _note(reason: str) -> None:
    for each in _watching.get(threading.get_ident(), ()):
        each.reason = reason


def compilations() -> int:
    """The number of frames that torch.compile has processed. A frame's first compilation checks no guards."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    try:
        return int(dynamo.counters["frames"]["total"]) if dynamo is not None else 0
    except (AttributeError, KeyError, TypeError):
        return 0


def _watch_compiled() -> None:
    """Detect calls of compiled code by their check of guards. A private hook of PyTorch; skipped if it is missing."""
    torch = sys.modules.get("torch")
    dynamo: Any = getattr(getattr(getattr(torch, "_C", None), "_dynamo", None), "eval_frame", None)
    swap = getattr(dynamo, "set_guard_complete_hook", None)
    if swap is None:
        return
    before: list[Any] = []

    def hook(hit: bool) -> bool:
        _note(COMPILED)
        return bool(before[0](hit)) if before and before[0] is not None else hit

    before.append(swap(hook))
    _restore.append(lambda: swap(before[0]))


def _watch_graphs() -> None:
    """Detect replays by wrapping `CUDAGraph.replay`, because PyTorch has no hook for them."""
    torch = sys.modules.get("torch")
    cuda: Any = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    graph, replay = cuda.CUDAGraph, cuda.CUDAGraph.replay

    @functools.wraps(replay)
    def noted(self: Any) -> Any:
        _note(REPLAYED)
        return replay(self)

    graph.replay = noted
    _restore.append(lambda: setattr(graph, "replay", replay))


@process.in_child
def _forget() -> None:
    """After a fork: the child has only this thread, so no other one watches or holds the lock."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    for thread in _watching.keys() - {threading.get_ident()}:
        del _watching[thread]
    while _restore and not _watching:
        _restore.pop()()
