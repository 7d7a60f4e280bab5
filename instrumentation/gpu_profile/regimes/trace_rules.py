"""The rules for a trace of kernels: the longest wait is the answer. Tried in order.

The advice names the cause and its share of the time. If work takes more, it gives that share too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu_profile.regimes.evidence import Basis
from gpu_profile.regimes.rule import Regime, Rule, least
from gpu_profile.regimes.scores import SLIGHT, Scores, Waits
from gpu_profile.regimes.thresholds import Thresholds
from gpu_profile.units import percent

_KERNELS: Final[frozenset[Basis]] = frozenset({"kernels"})
_SMALLER: Final = "batch more, fuse kernels, or capture a CUDA graph"
#: Smaller shares would be 0 % in words.
_LEAST_SHOWN: Final = 0.005

TRACE_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "in a trace, communication that nothing hides takes longest",
        Regime.COMMUNICATION_BOUND,
        lambda s, t: _waits(
            s, lambda w: least(w.shortfall(t), w.longest(w.communication, w.transfer, w.host, w.gaps, w.other))
        ),
        lambda s: _advice(
            s, lambda w: w.communication, "communication that no kernel hides", "overlap it with computation"
        ),
        _KERNELS,
    ),
    Rule(
        "in a trace, copies that nothing hides take longest",
        Regime.TRANSFER_BOUND,
        lambda s, t: _waits(
            s, lambda w: least(w.shortfall(t), w.longest(w.transfer, w.communication, w.host, w.gaps, w.other))
        ),
        lambda s: _advice(
            s, lambda w: w.transfer, "copies over a link that nothing hides", "pin host memory, overlap or shrink them"
        ),
        _KERNELS,
    ),
    Rule(
        "in a trace, short kernels, and launching them takes longest",
        Regime.OVERHEAD_BOUND,
        lambda s, t: _waits(s, lambda w: least(w.shortfall(t), _shortness(w, t), _launching(w))),
        lambda s: _advice(s, _overhead, _overheads(s), _SMALLER),
        _KERNELS,
    ),
    Rule(
        "in a trace, busy < idle",
        Regime.IDLE,
        lambda s, t: _waits(s, lambda w: least(w.shortfall(t), 1.0 - (1.0 - w.idle) / t.idle_busy)),
        lambda s: _advice(s, lambda w: w.idle, "idle", "give the GPU work, or look at a shorter part of the trace"),
        _KERNELS,
    ),
    Rule(
        "in a trace, waiting for the host takes longest",
        Regime.HOST_BOUND,
        lambda s, t: _waits(
            s, lambda w: least(w.shortfall(t), w.longest(w.host, w.communication, w.transfer, w.gaps, w.other))
        ),
        lambda s: _advice(s, lambda w: w.host, _host(s), _feed(s)),
        _KERNELS,
    ),
)


def unfit(w: Waits, limits: Thresholds) -> str:
    """Why no rule holds for a trace."""
    shortfall = w.shortfall(limits)
    if shortfall is None:
        return "the trace holds no calls of the host: record its activities as well"
    if shortfall < 0:
        return (
            f"work takes {_percent(w.work)} of the time; kernel times alone do not tell what bounds it: "
            "activity counters would"
        )
    reasons = {
        "only others' operations run on the device: judge the regions that launched them": w.others,
        "the GPU is idle, and the calls that tell why are missing in the trace": w.unknown,
        "operations wait that had been launched, such as for an event of another stream": w.gaps + (w.other or 0.0),
    }
    reason, share = max(reasons.items(), key=lambda each: each[1])
    if share < SLIGHT:
        return f"work takes {_percent(w.work)} of the time, and no wait as much as {_percent(SLIGHT)}"
    return f"for {_percent(share)} of the time {reason}"


def _waits(s: Scores, margin: Callable[[Waits], float | None]) -> float | None:
    return None if s.trace is None else margin(s.trace)


def _shortness(w: Waits, limits: Thresholds) -> float | None:
    return None if w.kernel_s is None else 1.0 - w.kernel_s / limits.short_kernel


def _overhead(w: Waits) -> float:
    """The time for launching, and the gaps between kernels."""
    return (w.launch or 0.0) + w.gaps


def _launching(w: Waits) -> float | None:
    """How far overhead is ahead of any other wait."""
    if w.host is None or w.launch is None:
        return None
    return w.longest(_overhead(w), w.host - w.launch, w.other, w.communication, w.transfer)


def _advice(s: Scores, share: Callable[[Waits], float | None], cause: str, step: str) -> str:
    """The cause's share of the time, with that of work if it is larger, and the next step."""
    if s.trace is None:
        return step
    taken, work = share(s.trace) or 0.0, s.trace.work or 0.0
    if work > taken:
        return f"work takes {_percent(work)} of the time; the longest wait, {_percent(taken)}, is {cause}: {step}"
    return f"{_percent(taken)} of the time is {cause}: {step}"


def _overheads(s: Scores) -> str:
    if s.trace is None:
        return ""
    parts = (("launching kernels", s.trace.launch or 0.0), ("gaps between kernels", s.trace.gaps))
    some = [(name, share) for name, share in parts if share >= _LEAST_SHOWN]
    if len(some) == 1:
        return some[0][0]
    return " and ".join(f"{name} ({_percent(share)})" for name, share in some)


def _host(s: Scores) -> str:
    launch = 0.0 if s.trace is None else s.trace.launch or 0.0
    return "waiting for the host" + (f" ({_percent(launch)} launching)" if launch >= SLIGHT else "")


def _feed(s: Scores) -> str:
    """The remedy for the larger part of the host wait."""
    launching = s.trace is not None and (s.trace.launch or 0.0) > (s.trace.host or 0.0) / 2
    return _SMALLER if launching else "prefetch, or raise num_workers"


def _percent(share: float | None) -> str:
    return percent(share or 0.0, 0)
