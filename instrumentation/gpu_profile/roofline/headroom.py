"""How much device memory is left, and how near that is to running out. Pure."""

from __future__ import annotations

from typing import Any, Final

from gpu_profile.roofline.machines.machine import Memory
from gpu_profile.units import MIB

_GIB: Final = 1 << 30
#: Bands of GPURegimeProfiler's `analyze_memory`: headroom below so many bytes, or a share of the memory in use above.
_BANDS: Final = (("HIGH", 1 * _GIB, 0.9), ("MEDIUM", 4 * _GIB, 0.7))


def headroom(memory: Memory) -> int:
    """Bytes that this process can still get: what the device has free, and what its own allocator keeps unused."""
    return memory.free + max(0, memory.reserved - memory.allocated)


def oom_risk(memory: Memory) -> str:
    """`LOW`, `MEDIUM` or `HIGH`: whether a somewhat larger batch may run out of memory.

    HIGH below 1 GiB of headroom or above 90 % in use, MEDIUM below 4 GiB or above 70 %: the bands of GPURegimeProfiler.
    On a small device the share alone decides: one of 4 GiB would never be anything but MEDIUM.
    """
    left, used = headroom(memory), _used(memory)
    return next(
        (name for name, least, most in _BANDS if used > most or (left < least and memory.total > 4 * least)), "LOW"
    )


def as_profile(memory: Memory) -> dict[str, Any]:
    """The profile's entry `memory`, in GPURegimeProfiler's units: MiB, and a ratio of 0-1 beside a percentage."""
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
