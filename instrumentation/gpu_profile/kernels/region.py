"""The sums of one region's GPU operations. Pure; times in ns, sums over devices where several were used.

Sums of two recordings of the same region add up. Every ratio is made of sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpu_profile.kernels.counters.sums import CounterSums
from gpu_profile.kernels.joining.idle import Idle
from gpu_profile.kernels.memory.region import RegionMemory, merge
from gpu_profile.kernels.sums import CopySum, KernelSum, TimeSums, longest_first, merged
from gpu_profile.regimes import Verdict, classify
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.regimes.kernel_work import MOST_TOP, KernelWork


@dataclass(frozen=True, slots=True)
class RegionKernels(TimeSums):
    """One region, over all its executions. Operations belong to the region that launched them and the regions around.

    `host_ns` is the time of the executions on the host. `span_ns` is each device's time from the earlier start of an
    execution (host or device) to its later end. Operations launched for it after its end, such as its backward pass,
    add the time from the first to the last of them. Overlapping times count once. `span_ns` is `busy_ns` (the region's
    own operations) + `others_ns` (only other operations ran) + `idle.total_ns`. `own` counts the operations launched in
    no region inside this one. `backward` counts operations in the backward pass (autograd) of its forward operators.
    `beside_ns` is the devices' busy time during the executions on the host, from any launcher: attribution by time, not
    by launch. `communication_ns` and `overlap_ns` (beside a kernel of any region), `transfer_ns` and
    `exposed_transfer_ns` (beside no operation at all) are as in `Activity`. `waits` counts calls that wait for the GPU;
    `wait_ns` is the host's time in them.
    `occupancy_ns` sums duration × estimated occupancy over `occupancy_of_ns` of kernel time. `breadth_ns` sums duration
    × share of multiprocessors with a block, over `breadth_of_ns`. `on_host`: these are a CPU's operators.
    """

    name: str
    executions: int = 0
    host_ns: int = 0
    devices: tuple[int, ...] = ()
    span_ns: int = 0
    busy_ns: int = 0
    others_ns: int = 0
    idle: Idle = field(default_factory=Idle)
    operations: int = 0
    own: int = 0
    launches: int = 0
    kernels: Mapping[str, KernelSum] = field(default_factory=dict)
    copies: Mapping[str, CopySum] = field(default_factory=dict)
    communication_ns: int = 0
    overlap_ns: int = 0
    transfer_ns: int = 0
    exposed_transfer_ns: int = 0
    backward: int = 0
    backward_ns: int = 0
    graph: int = 0
    beside_ns: int = 0
    waits: int = 0
    wait_ns: int = 0
    occupancy_ns: float = 0.0
    occupancy_of_ns: int = 0
    breadth_ns: float = 0.0
    breadth_of_ns: int = 0
    on_host: bool = False
    memory: tuple[RegionMemory, ...] = ()
    counters: CounterSums | None = None

    def __add__(self, other: RegionKernels) -> RegionKernels:
        """The same region in two recordings."""
        if (self.name, self.on_host) != (other.name, other.on_host):
            raise ValueError(f"{self.name!r} and {other.name!r} are not the same region")
        special: dict[str, Any] = {
            "name": self.name,
            "on_host": self.on_host,
            "devices": tuple(sorted({*self.devices, *other.devices})),
            "kernels": merged(self.kernels, other.kernels),
            "copies": merged(self.copies, other.copies),
            "memory": merge(self.memory, other.memory),
            "counters": self.counters + other.counters if self.counters and other.counters else None,
        }
        names = {each.name for each in fields(self)} - special.keys()
        return RegionKernels(**special, **{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def busy_ratio(self) -> float | None:
        """`busy_ns` over `span_ns`; None if no device was used."""
        return self.busy_ns / self.span_ns if self.span_ns else None

    @property
    def kernel_count(self) -> int:
        """Kernels and collectives."""
        return sum(each.count for each in self.kernels.values())

    @property
    def kernel_ns(self) -> int:
        """The sum of their durations. Kernels that run side by side count twice."""
        return sum(each.total_ns for each in self.kernels.values())

    @property
    def mean_kernel_ns(self) -> float | None:
        """The mean duration of kernels and collectives; None without any."""
        return self.kernel_ns / self.kernel_count if self.kernel_count else None

    @property
    def copy_count(self) -> int:
        """Copies of either kind."""
        return sum(each.count for each in self.copies.values())

    @property
    def copy_bytes(self) -> int | None:
        """Bytes that copies moved; None if no copy has a recorded size."""
        sizes = [each.bytes for each in self.copies.values() if each.known_ns]
        return sum(sizes) if sizes else None

    @property
    def copy_ns(self) -> int:
        """The sum of the durations of copies."""
        return sum(each.total_ns for each in self.copies.values())

    @property
    def occupancy(self) -> float | None:
        """The estimated achieved occupancy, a mean over `occupancy_of_ns` of kernel time; None if no kernel has an
        estimate.
        """
        return self.occupancy_ns / self.occupancy_of_ns if self.occupancy_of_ns else None

    @property
    def breadth(self) -> float | None:
        """The share of multiprocessors with a block, a mean over `breadth_of_ns` of kernel time. Kineto's "estimated SM
        efficiency" is the same over the step's time.
        """
        return self.breadth_ns / self.breadth_of_ns if self.breadth_of_ns else None

    def top(self, most: int) -> list[tuple[str, KernelSum]]:
        """The kernels with the longest total time."""
        return longest_first(self.kernels)[:most]

    def evidence(self) -> Evidence:
        """The evidence for a regime: shares of the span less `others_ns`, and the share of `others_ns` in the span."""
        whole = self.span_ns - self.others_ns
        if self.on_host:
            return Evidence("kernels", {}, self.operations, 0.0, reason="a CPU's operators tell nothing about a GPU")
        if not self.operations:
            return Evidence("kernels", {}, 0, 0.0, reason="it launched nothing on a GPU")
        if not whole:
            return Evidence("kernels", {}, self.operations, 0.0, reason="its GPU operations take no time")
        own = self.evidence_over(whole, self.mean_kernel_ns)
        return replace(own, values={**own.values, "others": self.others_ns / self.span_ns})

    def verdict(self) -> Verdict:
        """The regime, on the basis `kernels`."""
        return classify(self.evidence())

    def work(self) -> KernelWork:
        """A summary for a span and for metrics."""
        # Without calls, the cause of idle time is not recorded.
        allocated, caused = self.memory, self.launches > 0
        peaks = [each.peak_bytes for each in allocated if each.peak_bytes is not None]
        return KernelWork(
            kernels=self.kernel_count,
            kernel_ns=self.kernel_ns,
            busy_ns=self.busy_ns,
            span_ns=self.span_ns,
            others_ns=self.others_ns,
            host_wait_ns=self.idle.host_wait_ns if caused else None,
            launch_ns=self.idle.launch_ns if caused else None,
            other_wait_ns=self.idle.kernel_wait_ns + self.idle.other_ns if caused else None,
            copies=self.copy_count,
            copy_bytes=self.copy_bytes,
            copy_ns=self.copy_ns,
            communication_ns=self.communication_ns,
            overlap_ns=self.overlap_ns,
            occupancy=self.occupancy,
            backward=self.backward,
            allocated_bytes=sum(each.allocated_bytes for each in allocated) if allocated else None,
            freed_bytes=sum(each.freed_bytes for each in allocated) if allocated else None,
            peak_bytes=max(peaks, default=None),
            top=tuple((name, each.count, each.total_ns) for name, each in self.top(MOST_TOP)),
            evidence=self.evidence(),
        )
