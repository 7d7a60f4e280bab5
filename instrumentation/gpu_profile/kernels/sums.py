"""The sums of traces and regions: kernels of one name, copies of one direction, busy and idle time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import add
from typing import TypeVar

from gpu_profile.kernels.joining.idle import Idle
from gpu_profile.regimes.evidence import Evidence

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KernelSum:
    """Kernels of one name: their number, their total time, and the longest."""

    count: int
    total_ns: int
    max_ns: int

    def __add__(self, other: KernelSum) -> KernelSum:
        return KernelSum(self.count + other.count, self.total_ns + other.total_ns, max(self.max_ns, other.max_ns))


@dataclass(frozen=True, slots=True)
class CopySum:
    """Copies of one direction. `known_ns` is the time of the copies with a recorded size, which moved `bytes`."""

    count: int
    total_ns: int
    bytes: int
    known_ns: int

    @property
    def bytes_per_s(self) -> float | None:
        """`bytes` over `known_ns`; None if no copy has a recorded size."""
        return self.bytes * 1e9 / self.known_ns if self.known_ns else None

    def __add__(self, other: CopySum) -> CopySum:
        return CopySum(
            self.count + other.count,
            self.total_ns + other.total_ns,
            self.bytes + other.bytes,
            self.known_ns + other.known_ns,
        )


def merged(one: Mapping[K, T], other: Mapping[K, T], plus: Callable[[T, T], T] = add) -> dict[K, T]:
    """Both mappings as one. The values of a key that is in both are added up."""
    result = dict(one)
    for key, value in other.items():
        result[key] = plus(result[key], value) if key in result else value
    return result


def longest_first(kernels: Mapping[str, KernelSum]) -> list[tuple[str, KernelSum]]:
    """Kernels by total time, longest first. Equal times are ordered by name, so that the result is deterministic."""
    return sorted(kernels.items(), key=lambda item: (-item[1].total_ns, item[0]))


class TimeSums:
    """The sums that a whole trace and a region share: busy time and idle time by parts; see `Activity`."""

    __slots__ = ()

    operations: int
    launches: int
    busy_ns: int
    communication_ns: int
    overlap_ns: int
    transfer_ns: int
    exposed_transfer_ns: int
    idle: Idle

    @property
    def exposed_communication_ns(self) -> int:
        """Communication that no kernel of another kind hides."""
        return self.communication_ns - self.overlap_ns

    @property
    def work_ns(self) -> int:
        """Busy time that is neither exposed communication nor an exposed transfer."""
        return self.busy_ns - self.exposed_communication_ns - self.exposed_transfer_ns

    @property
    def overlap_ratio(self) -> float | None:
        """The share of the communication beside kernels of another kind; None without communication."""
        return self.overlap_ns / self.communication_ns if self.communication_ns else None

    def evidence_over(self, whole_ns: int, mean_kernel_ns: float | None) -> Evidence:
        """The evidence for a regime, as shares of a time above 0; `kernel_s` is the mean kernel in seconds.

        Idle time without a recorded cause lowers the coverage. Without calls of the host, waits are absent.
        """
        values = {
            "busy": self.busy_ns / whole_ns,
            "work": self.work_ns / whole_ns,
            "communication": self.exposed_communication_ns / whole_ns,
            "transfer": self.exposed_transfer_ns / whole_ns,
        }
        if self.launches:
            values["host_wait"] = self.idle.host_wait_ns / whole_ns
            values["launch"] = self.idle.launch_ns / whole_ns
            values["other_wait"] = (self.idle.kernel_wait_ns + self.idle.other_ns) / whole_ns
        if mean_kernel_ns is not None:
            values["kernel_s"] = mean_kernel_ns / 1e9
        return Evidence("kernels", values, self.operations, 1.0 - self.idle.unknown_ns / whole_ns)
