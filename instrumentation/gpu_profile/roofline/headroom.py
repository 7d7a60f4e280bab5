"""How much device memory is left, and the risk to run out of it. Pure."""

from __future__ import annotations

from typing import Any, Final

from gpu_profile.roofline.machines.machine import Memory
from gpu_profile.units import MIB

_GIB: Final = 1 << 30
#: `(risk, headroom below these bytes, share in use above this)`: the bands of GPURegimeProfiler's `analyze_memory`.
_BANDS: Final = (("HIGH", 1 * _GIB, 0.9), ("MEDIUM", 4 * _GIB, 0.7))


def headroom(memory: Memory) -> int:
    """Bytes that this process can still allocate: free on the device, or reserved but unused by its allocator."""
    return memory.free + max(0, memory.reserved - memory.allocated)


def oom_risk(memory: Memory) -> str:
    """`LOW`, `MEDIUM` or `HIGH`: the risk that a somewhat larger batch runs out of memory.

    HIGH: below 1 GiB of headroom or above 90 % in use. MEDIUM: below 4 GiB or above 70 %. These are the bands of
    GPURegimeProfiler. A limit in bytes applies only to a device with more than four times as much memory, otherwise the
    share alone decides: a device of 4 GiB could never be LOW.
    """
    left, used = headroom(memory), _used(memory)
    return next(
        (name for name, least, most in _BANDS if used > most or (left < least and memory.total > 4 * least)), "LOW"
    )


def as_profile(memory: Memory) -> dict[str, Any]:
    """The entry `memory` of a profile in GPURegimeProfiler's units: MiB, a ratio from 0 to 1, a percentage."""
    kept = memory.reserved - memory.allocated
    return {
        "allocated_mb": memory.allocated / MIB,
        "reserved_mb": memory.reserved / MIB,
        "peak_allocated_mb": memory.peak / MIB,
        "total_available_mb": memory.total / MIB,
        "fragmentation_ratio": max(0, kept) / memory.reserved if memory.reserved else 0.0,
        "headroom_mb": headroom(memory) / MIB,
        "usage_percentage": 100 * _used(memory),
        "oom_risk": oom_risk(memory),
    }


def _used(memory: Memory) -> float:
    return 1.0 - headroom(memory) / memory.total if memory.total else 1.0
