"""Sums that regions are made of: kernels of one name, and copies of one direction. They add up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelSum:
    """Kernels of one name: how many, their time, and the longest."""

    count: int
    total_ns: int
    max_ns: int

    def __add__(self, other: KernelSum) -> KernelSum:
        return KernelSum(self.count + other.count, self.total_ns + other.total_ns, max(self.max_ns, other.max_ns))


@dataclass(frozen=True, slots=True)
class CopySum:
    """Copies of one direction. `bytes` were moved in `known_ns`, the time of those that tell their bytes."""

    count: int
    total_ns: int
    bytes: int
    known_ns: int

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes over the time of the copies that moved them; None if no copy tells."""
        return self.bytes * 1e9 / self.known_ns if self.known_ns else None

    def __add__(self, other: CopySum) -> CopySum:
        return CopySum(
            self.count + other.count,
            self.total_ns + other.total_ns,
            self.bytes + other.bytes,
            self.known_ns + other.known_ns,
        )
