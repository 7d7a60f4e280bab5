"""The table of span attributes that regions carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Attribute:
    """One span attribute. An attribute whose value was not measured is absent."""

    name: str
    type: Literal["string", "double", "int", "string[]", "int[]", "double[]"]
    brief: str
    unit: str = ""


REGION: Final = Attribute("gpu_profile.region", "string", "Name of the region")
ITEMS: Final = Attribute("gpu_profile.items", "double", "Units of work that this execution did")
REGIME: Final = Attribute("gpu_profile.regime", "string", "What bounds the region")
CONFIDENCE: Final = Attribute("gpu_profile.confidence", "double", "How sure the verdict is, 0-1")
BASIS: Final = Attribute(
    "gpu_profile.basis", "string", "Evidence that the verdict rests on: kernels, operation, counters, coarse"
)
REASON: Final = Attribute("gpu_profile.reason", "string", "Rule that gave the verdict, or why there is none")
COVERAGE: Final = Attribute("gpu_profile.coverage", "double", "Share of the interval that samples cover")
SCOPE: Final = Attribute(
    "gpu_profile.scope", "string", "`span`: measured on this execution; `pooled`: over the region's executions"
)
POOLED_N: Final = Attribute("gpu_profile.pooled.n", "int", "Executions behind pooled values")
INTERVAL_SOURCE: Final = Attribute(
    "gpu_profile.interval.source", "string", "`host` or `device`: whose clock set the edges"
)
INTERVAL_S: Final = Attribute("gpu_profile.interval.duration", "double", "Length of the interval that was joined", "s")
BUSY_RATIO: Final = Attribute("gpu_profile.busy.ratio", "double", "Share of the interval in which the GPU was busy")
BUSY_HALF_WIDTH: Final = Attribute(
    "gpu_profile.busy.half_width", "double", "Half of the 95 % interval of the pooled busy ratio"
)
BUSY_SOURCE: Final = Attribute("gpu_profile.busy.source", "string", "Signal that the busy time comes from")
ENERGY: Final = Attribute("gpu_profile.energy.joules", "double", "Energy of the GPUs over the interval", "J")
ENERGY_HALF_WIDTH: Final = Attribute(
    "gpu_profile.energy.half_width", "double", "Half of the 95 % interval of the pooled energy", "J"
)
ENERGY_SOURCE: Final = Attribute("gpu_profile.energy.source", "string", "Signal that the energy comes from")
ENERGY_RESOLUTION: Final = Attribute(
    "gpu_profile.energy.resolution", "double", "Update period of the source over the length of the interval"
)
POWER_MEAN: Final = Attribute("gpu_profile.power.mean", "double", "Mean power over the interval", "W")
MEMORY_MAX: Final = Attribute("gpu_profile.memory.max", "int", "Most device memory in use during the interval", "By")
DEVICE_IDS: Final = Attribute("gpu_profile.device.ids", "string[]", "UUIDs of the devices that were joined")
RANK: Final = Attribute("gpu_profile.rank", "int", "Rank of the process in its job, as its launcher says")
LOCAL_RANK: Final = Attribute("gpu_profile.local_rank", "int", "Rank of the process among those on its node")
UNJOINED: Final = Attribute("gpu_profile.unjoined", "string", "Why the span went out without joined values")
OPERATION_FLOPS: Final = Attribute(
    "gpu_profile.operation.flops", "int", "Floating-point operations that this execution did"
)
OPERATION_BYTES: Final = Attribute(
    "gpu_profile.operation.bytes", "int", "Bytes that this execution read and wrote", "By"
)
OPERATION_PRECISION: Final = Attribute(
    "gpu_profile.operation.precision", "string", "Format of the arithmetic: fp32, tf32, bf16, …"
)
OPERATION_COMPUTE: Final = Attribute(
    "gpu_profile.operation.compute.ratio", "double", "FLOPs per second over the machine's ceiling for the precision"
)
OPERATION_MEMORY: Final = Attribute(
    "gpu_profile.operation.memory.ratio", "double", "Bytes per second over the machine's ceiling"
)
OPERATION_OVERHEAD: Final = Attribute(
    "gpu_profile.operation.overhead.ratio", "double", "Share of the operation's time that went into launching it"
)
OPERATION_INTENSITY: Final = Attribute("gpu_profile.operation.intensity", "double", "FLOPs per byte")
OPERATION_GROWTH: Final = Attribute(
    "gpu_profile.operation.growth", "double", "How much longer twice the size takes, as a share of the time of once"
)
OPERATION_N: Final = Attribute("gpu_profile.operation.n", "int", "Timed runs behind the operation's values")
OPERATION_REASON: Final = Attribute(
    "gpu_profile.operation.reason", "string", "Why some of the operation's values are not known"
)
KERNELS_N: Final = Attribute(
    "gpu_profile.kernels.n", "int", "GPU operations behind the values of this execution's kernels"
)
KERNELS_COUNT: Final = Attribute("gpu_profile.kernels.count", "int", "Kernels that this execution launched")
KERNELS_TIME: Final = Attribute("gpu_profile.kernels.time", "double", "Sum of the durations of its kernels", "s")
KERNELS_MEAN: Final = Attribute("gpu_profile.kernels.mean", "double", "Mean duration of its kernels", "s")
KERNELS_SPAN: Final = Attribute(
    "gpu_profile.kernels.span",
    "double",
    "Time of its devices from its start to its end, on the host or there",
    "s",
)
KERNELS_BUSY: Final = Attribute(
    "gpu_profile.kernels.busy.time", "double", "Part of the span in which its own operations ran", "s"
)
KERNELS_OTHERS: Final = Attribute(
    "gpu_profile.kernels.others.time",
    "double",
    "Part of the span in which only operations of others ran; shares are of the rest",
    "s",
)
KERNELS_HOST_WAIT: Final = Attribute(
    "gpu_profile.kernels.host_wait.time", "double", "Idle part of the span in which nothing was launched", "s"
)
KERNELS_LAUNCH: Final = Attribute(
    "gpu_profile.kernels.launch.time", "double", "Part of the host wait that launching took", "s"
)
KERNELS_OTHER_WAIT: Final = Attribute(
    "gpu_profile.kernels.other_wait.time",
    "double",
    "Idle part of the span in which something was launched, and waited",
    "s",
)
KERNELS_COPIES: Final = Attribute("gpu_profile.kernels.copies", "int", "Copies that this execution launched")
KERNELS_COPIED: Final = Attribute(
    "gpu_profile.kernels.copied", "int", "Bytes that they moved, as far as they tell", "By"
)
KERNELS_COPY_TIME: Final = Attribute(
    "gpu_profile.kernels.copy.time", "double", "Sum of the durations of its copies", "s"
)
KERNELS_COMMUNICATION: Final = Attribute(
    "gpu_profile.kernels.communication.time", "double", "Time in which a collective of its own ran", "s"
)
KERNELS_OVERLAP: Final = Attribute(
    "gpu_profile.kernels.overlap.time", "double", "Part of the communication beside a kernel of another kind", "s"
)
KERNELS_OCCUPANCY: Final = Attribute(
    "gpu_profile.kernels.occupancy.ratio",
    "double",
    "Warps that its kernels kept resident over those that fit, as the profiler estimates it; a mean over kernel time",
)
KERNELS_BACKWARD: Final = Attribute(
    "gpu_profile.kernels.backward", "int", "Operations of the backward pass of what ran forward in it"
)
KERNELS_ALLOCATED: Final = Attribute("gpu_profile.kernels.memory.allocated", "int", "Device memory that it took", "By")
KERNELS_FREED: Final = Attribute("gpu_profile.kernels.memory.freed", "int", "Device memory that it gave back", "By")
KERNELS_PEAK: Final = Attribute(
    "gpu_profile.kernels.memory.peak", "int", "Most device memory that the allocator had given out meanwhile", "By"
)
KERNELS_TOP_NAMES: Final = Attribute(
    "gpu_profile.kernels.top.names", "string[]", "The kernels that took longest in all, longest first"
)
KERNELS_TOP_COUNTS: Final = Attribute("gpu_profile.kernels.top.counts", "int[]", "How often each of them ran")
KERNELS_TOP_TIMES: Final = Attribute(
    "gpu_profile.kernels.top.times", "double[]", "Seconds that each of them took in all", "s"
)
KERNELS_BUSY_SHARE: Final = Attribute(
    "gpu_profile.kernels.busy.ratio",
    "double",
    "Share of the span, without others' time, in which its own operations ran",
)
KERNELS_WORK_SHARE: Final = Attribute(
    "gpu_profile.kernels.work.ratio",
    "double",
    "Share of the span, without others' time, in which the GPU worked: busy, less what follows",
)
KERNELS_COMMUNICATION_SHARE: Final = Attribute(
    "gpu_profile.kernels.communication.ratio",
    "double",
    "Share of the span, without others' time, in communication that no kernel hides",
)
KERNELS_TRANSFER_SHARE: Final = Attribute(
    "gpu_profile.kernels.transfer.ratio",
    "double",
    "Share of the span, without others' time, in copies over a link that nothing hides",
)
KERNELS_HOST_WAIT_SHARE: Final = Attribute(
    "gpu_profile.kernels.host_wait.ratio",
    "double",
    "Share of the span, without others' time, in which nothing was launched",
)
KERNELS_LAUNCH_SHARE: Final = Attribute(
    "gpu_profile.kernels.launch.ratio", "double", "Share of the span, without others' time, that launching took"
)
KERNELS_OTHER_WAIT_SHARE: Final = Attribute(
    "gpu_profile.kernels.other_wait.ratio",
    "double",
    "Share of the span, without others' time, in which something was launched, and waited",
)
KERNELS_COVERAGE: Final = Attribute(
    "gpu_profile.kernels.coverage",
    "double",
    "Share of the span, without others' time, that the profiler's records explain",
)
KERNELS_REASON: Final = Attribute(
    "gpu_profile.kernels.reason", "string", "Why some of the kernels' values are not known"
)

#: The span event that tells of one kernel.
KERNEL_EVENT: Final = "gpu_profile.kernel"
KERNEL_NAME: Final = Attribute("gpu_profile.kernel.name", "string", "Name of the kernel")
KERNEL_COUNT: Final = Attribute("gpu_profile.kernel.count", "int", "How often the execution ran it")
KERNEL_TIME: Final = Attribute("gpu_profile.kernel.time", "double", "Sum of its durations", "s")

ATTRIBUTES: Final[tuple[Attribute, ...]] = (
    REGION,
    ITEMS,
    REGIME,
    CONFIDENCE,
    BASIS,
    REASON,
    COVERAGE,
    SCOPE,
    POOLED_N,
    INTERVAL_SOURCE,
    INTERVAL_S,
    BUSY_RATIO,
    BUSY_HALF_WIDTH,
    BUSY_SOURCE,
    ENERGY,
    ENERGY_HALF_WIDTH,
    ENERGY_SOURCE,
    ENERGY_RESOLUTION,
    POWER_MEAN,
    MEMORY_MAX,
    DEVICE_IDS,
    RANK,
    LOCAL_RANK,
    UNJOINED,
    OPERATION_FLOPS,
    OPERATION_BYTES,
    OPERATION_PRECISION,
    OPERATION_COMPUTE,
    OPERATION_MEMORY,
    OPERATION_OVERHEAD,
    OPERATION_INTENSITY,
    OPERATION_GROWTH,
    OPERATION_N,
    OPERATION_REASON,
    KERNELS_N,
    KERNELS_COUNT,
    KERNELS_TIME,
    KERNELS_MEAN,
    KERNELS_SPAN,
    KERNELS_BUSY,
    KERNELS_OTHERS,
    KERNELS_HOST_WAIT,
    KERNELS_LAUNCH,
    KERNELS_OTHER_WAIT,
    KERNELS_COPIES,
    KERNELS_COPIED,
    KERNELS_COPY_TIME,
    KERNELS_COMMUNICATION,
    KERNELS_OVERLAP,
    KERNELS_OCCUPANCY,
    KERNELS_BACKWARD,
    KERNELS_ALLOCATED,
    KERNELS_FREED,
    KERNELS_PEAK,
    KERNELS_TOP_NAMES,
    KERNELS_TOP_COUNTS,
    KERNELS_TOP_TIMES,
    KERNELS_BUSY_SHARE,
    KERNELS_WORK_SHARE,
    KERNELS_COMMUNICATION_SHARE,
    KERNELS_TRANSFER_SHARE,
    KERNELS_HOST_WAIT_SHARE,
    KERNELS_LAUNCH_SHARE,
    KERNELS_OTHER_WAIT_SHARE,
    KERNELS_COVERAGE,
    KERNELS_REASON,
)
#: Of the events named `KERNEL_EVENT`.
KERNEL_ATTRIBUTES: Final[tuple[Attribute, ...]] = (KERNEL_NAME, KERNEL_COUNT, KERNEL_TIME)
