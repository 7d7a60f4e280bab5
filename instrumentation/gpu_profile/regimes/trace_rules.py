"""The rules for what a trace of kernels says: the longest wait is the answer. Tried in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu_profile.regimes.evidence import Basis
from gpu_profile.regimes.rule import Regime, Rule, least
from gpu_profile.regimes.scores import Scores, Waits
from gpu_profile.regimes.thresholds import Thresholds
from gpu_profile.units import percent

_KERNELS: Final[frozenset[Basis]] = frozenset({"kernels"})

TRACE_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "in a trace, communication that nothing hides takes longest",
        Regime.COMMUNICATION_BOUND,
        lambda s, t: _waits(s, lambda w: least(w.hungry(t), w.longest(w.communication, w.transfer, w.host, w.other))),
        lambda s: f"communication takes {_share(s, 'communication')} of the time: overlap it with computation",
        _KERNELS,
    ),
    Rule(
        "in a trace, copies that nothing hides take longest",
        Regime.TRANSFER_BOUND,
        lambda s, t: _waits(s, lambda w: least(w.hungry(t), w.longest(w.transfer, w.communication, w.host, w.other))),
        lambda s: f"copies take {_share(s, 'transfer')} of the time: pin host memory, overlap or shrink them",
        _KERNELS,
    ),
    Rule(
        "in a trace, short kernels, and launching them takes longest",
        Regime.OVERHEAD_BOUND,
        lambda s, t: _waits(s, lambda w: least(w.hungry(t), _shortness(w, t), _launching(w))),
        lambda s: (
            f"launching kernels takes {_share(s, 'launch')} of the time, the way from one to the next "
            f"{_share(s, 'other')}: batch more, fuse kernels, or capture a CUDA graph"
        ),
        _KERNELS,
    ),
    Rule(
        "in a trace, busy < idle",
        Regime.IDLE,
        lambda s, t: _waits(s, lambda w: least(w.hungry(t), 1.0 - s.busy / t.idle_busy)),
        lambda _: "hardly anything runs on this GPU: give it work, or look at a shorter part of the trace",
        _KERNELS,
    ),
    Rule(
        "in a trace, waiting for the host takes longest",
        Regime.HOST_BOUND,
        lambda s, t: _waits(s, lambda w: least(w.hungry(t), w.longest(w.host, w.communication, w.transfer, w.other))),
        lambda s: f"the GPU waits {_share(s, 'host')} of the time for the host: prefetch, or raise num_workers",
        _KERNELS,
    ),
)


def _waits(s: Scores, margin: Callable[[Waits], float | None]) -> float | None:
    return None if s.trace is None else margin(s.trace)


def _shortness(w: Waits, limits: Thresholds) -> float | None:
    return None if w.kernel_s is None else 1.0 - w.kernel_s / limits.short_kernel


def _launching(w: Waits) -> float | None:
    """How far launching, and the GPU's own way from kernel to kernel, are ahead of any other wait."""
    if w.host is None or w.launch is None:
        return None
    return w.longest(w.launch + (w.other or 0.0), w.host - w.launch, w.communication, w.transfer)


def _share(s: Scores, key: str) -> str:
    return percent(getattr(s.trace, key, None) or 0.0, 0)
