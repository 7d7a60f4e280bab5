"""The table of the attributes of regions' spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Literal

AttributeType = Literal["string", "double", "int", "string[]", "int[]", "double[]"]


@dataclass(frozen=True, slots=True)
class Attribute:
    """One span attribute. An attribute whose value was not measured is absent."""

    name: str
    type: AttributeType
    brief: str
    unit: str = ""

    def of(self, attributes: Mapping[str, Any]) -> Any:
        """Its value among attributes of any origin, None if absent. TypeError for a wrong type, and for a number that
        is negative (of an int) or not finite."""
        value = attributes.get(self.name)
        return None if value is None else _typed(value, self.type)


def _typed(value: Any, kind: str) -> Any:
    if kind.endswith("[]") and isinstance(value, list | tuple):
        return tuple(_typed(each, kind[:-2]) for each in value)
    if kind == "int" and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if kind == "double" and isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
        return float(value)
    if kind == "string" and isinstance(value, str):
        return value
    raise TypeError(f"{value!r} is no {kind}")


_ROWS: Final[list[Attribute]] = []


def _span(name: str, kind: AttributeType, brief: str, unit: str = "") -> Attribute:
    """The next row of the table."""
    _ROWS.append(Attribute(name, kind, brief, unit))
    return _ROWS[-1]


def _share(name: str, condition: str) -> Attribute:
    return _span(name, "double", f"Share of the span, without others' time, {condition}")


REGION: Final = _span("gpu_profile.region", "string", "Name of the region")
ITEMS: Final = _span("gpu_profile.items", "double", "Units of work that this execution did")
REGIME: Final = _span("gpu_profile.regime", "string", "Bound of the region's speed, such as MEMORY_BOUND or HOST_BOUND")
CONFIDENCE: Final = _span("gpu_profile.confidence", "double", "Confidence of the verdict, 0-1")
BASIS: Final = _span(
    "gpu_profile.basis", "string", "Evidence that the verdict rests on: kernels, operation, counters, coarse"
)
REASON: Final = _span("gpu_profile.reason", "string", "Rule that gave the verdict, or why there is none")
COVERAGE: Final = _span("gpu_profile.coverage", "double", "Share of the interval that samples cover")
SCOPE: Final = _span(
    "gpu_profile.scope", "string", "`span`: measured on this execution; `pooled`: over the region's executions"
)
POOLED_N: Final = _span("gpu_profile.pooled.n", "int", "Executions behind pooled values")
INTERVAL_SOURCE: Final = _span(
    "gpu_profile.interval.source", "string", "`host` or `device`: the clock of the interval's ends"
)
INTERVAL_S: Final = _span("gpu_profile.interval.duration", "double", "Length of the interval that was joined", "s")
BUSY_RATIO: Final = _span("gpu_profile.busy.ratio", "double", "Share of the interval in which the GPU was busy")
BUSY_HALF_WIDTH: Final = _span(
    "gpu_profile.busy.half_width", "double", "Half of the 95 % interval of the pooled busy ratio"
)
BUSY_SOURCE: Final = _span("gpu_profile.busy.source", "string", "Signal that the busy time comes from")
ENERGY: Final = _span("gpu_profile.energy.joules", "double", "Energy of the GPUs over the interval", "J")
ENERGY_HALF_WIDTH: Final = _span(
    "gpu_profile.energy.half_width", "double", "Half of the 95 % interval of the pooled energy", "J"
)
ENERGY_SOURCE: Final = _span("gpu_profile.energy.source", "string", "Signal that the energy comes from")
ENERGY_RESOLUTION: Final = _span(
    "gpu_profile.energy.resolution", "double", "Update period of the source over the length of the interval"
)
POWER_MEAN: Final = _span("gpu_profile.power.mean", "double", "Mean power over the interval", "W")
MEMORY_MAX: Final = _span("gpu_profile.memory.max", "int", "Most device memory in use during the interval", "By")
DEVICE_IDS: Final = _span("gpu_profile.device.ids", "string[]", "UUIDs of the devices that were joined")
RANK: Final = _span("gpu_profile.rank", "int", "Rank of the process in its job, as its launcher says")
LOCAL_RANK: Final = _span("gpu_profile.local_rank", "int", "Rank of the process on its node")
UNJOINED: Final = _span("gpu_profile.unjoined", "string", "Why the span went out without joined values")
OPERATION_FLOPS: Final = _span(
    "gpu_profile.operation.flops", "int", "Floating-point operations that this execution did"
)
OPERATION_AT_LEAST: Final = _span(
    "gpu_profile.operation.flops.at_least",
    "int",
    "Lower bound of this execution's floating-point operations: some of its operations have no formula",
)
OPERATION_BYTES: Final = _span("gpu_profile.operation.bytes", "int", "Bytes that this execution read and wrote", "By")
OPERATION_PRECISION: Final = _span(
    "gpu_profile.operation.precision", "string", "Format of the arithmetic: fp32, tf32, bf16, …"
)
OPERATION_COMPUTE: Final = _span(
    "gpu_profile.operation.compute.ratio",
    "double",
    "FLOPs per second over the machine's ceiling for the precision; a lower bound beside `flops.at_least`",
)
OPERATION_CEILING: Final = _span(
    "gpu_profile.operation.ceiling",
    "double",
    "Compute ceiling of the machine for the operation's precisions, in FLOP/s",
)
OPERATION_MEMORY: Final = _span(
    "gpu_profile.operation.memory.ratio", "double", "Bytes per second over the machine's ceiling"
)
OPERATION_OVERHEAD: Final = _span(
    "gpu_profile.operation.overhead.ratio", "double", "Share of the operation's time that went into launching it"
)
OPERATION_INTENSITY: Final = _span("gpu_profile.operation.intensity", "double", "FLOPs per byte")
OPERATION_GROWTH: Final = _span(
    "gpu_profile.operation.growth", "double", "How much longer twice the size takes, as a share of the time of once"
)
OPERATION_N: Final = _span("gpu_profile.operation.n", "int", "Timed runs behind the operation's values")
OPERATION_CERTAINTY: Final = _span(
    "gpu_profile.operation.certainty",
    "double",
    "Part of the ceilings' calibration without other users of the processor, if that part was too small",
)
OPERATION_REASON: Final = _span(
    "gpu_profile.operation.reason", "string", "Why some of the operation's values are missing or uncertain"
)
KERNELS_N: Final = _span("gpu_profile.kernels.n", "int", "GPU operations behind the values of this execution's kernels")
KERNELS_COUNT: Final = _span("gpu_profile.kernels.count", "int", "Kernels that this execution launched")
KERNELS_TIME: Final = _span("gpu_profile.kernels.time", "double", "Sum of the durations of its kernels", "s")
KERNELS_MEAN: Final = _span("gpu_profile.kernels.mean", "double", "Mean duration of its kernels", "s")
KERNELS_SPAN: Final = _span(
    "gpu_profile.kernels.span", "double", "Time of its devices from its start to its end, on the host or there", "s"
)
KERNELS_BUSY: Final = _span(
    "gpu_profile.kernels.busy.time", "double", "Part of the span in which its own operations ran", "s"
)
KERNELS_OTHERS: Final = _span(
    "gpu_profile.kernels.others.time",
    "double",
    "Part of the span in which only operations of others ran; shares are of the rest",
    "s",
)
KERNELS_HOST_WAIT: Final = _span(
    "gpu_profile.kernels.host_wait.time", "double", "Idle part of the span in which nothing was launched", "s"
)
KERNELS_LAUNCH: Final = _span(
    "gpu_profile.kernels.launch.time", "double", "Part of the host wait that launching took", "s"
)
KERNELS_OTHER_WAIT: Final = _span(
    "gpu_profile.kernels.other_wait.time",
    "double",
    "Idle part of the span in which something was launched, and waited",
    "s",
)
KERNELS_COPIES: Final = _span("gpu_profile.kernels.copies", "int", "Copies that this execution launched")
KERNELS_COPIED: Final = _span("gpu_profile.kernels.copied", "int", "Bytes that they moved, as far as recorded", "By")
KERNELS_COPY_TIME: Final = _span("gpu_profile.kernels.copy.time", "double", "Sum of the durations of its copies", "s")
KERNELS_COMMUNICATION: Final = _span(
    "gpu_profile.kernels.communication.time", "double", "Time in which a collective of its own ran", "s"
)
KERNELS_OVERLAP: Final = _span(
    "gpu_profile.kernels.overlap.time", "double", "Part of the communication beside a kernel of another kind", "s"
)
KERNELS_OCCUPANCY: Final = _span(
    "gpu_profile.kernels.occupancy.ratio",
    "double",
    "Warps that its kernels kept resident over those that fit, as the profiler estimates it; a mean over kernel time",
)
KERNELS_BACKWARD: Final = _span(
    "gpu_profile.kernels.backward", "int", "Operations of the backward pass of its forward work"
)
KERNELS_ALLOCATED: Final = _span("gpu_profile.kernels.memory.allocated", "int", "Device memory that it allocated", "By")
KERNELS_FREED: Final = _span("gpu_profile.kernels.memory.freed", "int", "Device memory that it freed", "By")
KERNELS_PEAK: Final = _span(
    "gpu_profile.kernels.memory.peak", "int", "Most device memory allocated at one time during the execution", "By"
)
KERNELS_TOP_NAMES: Final = _span(
    "gpu_profile.kernels.top.names", "string[]", "The kernels with the longest total time, longest first"
)
KERNELS_TOP_COUNTS: Final = _span("gpu_profile.kernels.top.counts", "int[]", "How often each of them ran")
KERNELS_TOP_TIMES: Final = _span("gpu_profile.kernels.top.times", "double[]", "Total seconds of each of them", "s")
KERNELS_BUSY_SHARE: Final = _share("gpu_profile.kernels.busy.ratio", "in which its own operations ran")
KERNELS_WORK_SHARE: Final = _share(
    "gpu_profile.kernels.work.ratio", "in which the GPU worked: busy, less exposed communication and copies"
)
KERNELS_COMMUNICATION_SHARE: Final = _share(
    "gpu_profile.kernels.communication.ratio", "in communication that no kernel hides"
)
KERNELS_TRANSFER_SHARE: Final = _share("gpu_profile.kernels.transfer.ratio", "in copies over a link that nothing hides")
KERNELS_HOST_WAIT_SHARE: Final = _share("gpu_profile.kernels.host_wait.ratio", "in which nothing was launched")
KERNELS_LAUNCH_SHARE: Final = _share("gpu_profile.kernels.launch.ratio", "that launching took")
KERNELS_OTHER_WAIT_SHARE: Final = _share(
    "gpu_profile.kernels.other_wait.ratio", "in which something was launched, and waited"
)
KERNELS_OTHERS_SHARE: Final = _span(
    "gpu_profile.kernels.others.ratio", "double", "Share of the span in which only operations of others ran"
)
KERNELS_COVERAGE: Final = _share("gpu_profile.kernels.coverage", "that the profiler's records explain")
KERNELS_REASON: Final = _span("gpu_profile.kernels.reason", "string", "Why some of the kernels' values are missing")

ATTRIBUTES: Final = tuple(_ROWS)

#: The name of the span event of one kernel.
KERNEL_EVENT: Final = "gpu_profile.kernel"
KERNEL_NAME: Final = Attribute("gpu_profile.kernel.name", "string", "Name of the kernel")
KERNEL_COUNT: Final = Attribute("gpu_profile.kernel.count", "int", "How often the execution ran it")
KERNEL_TIME: Final = Attribute("gpu_profile.kernel.time", "double", "Sum of its durations", "s")
#: The attributes of the events named `KERNEL_EVENT`.
KERNEL_ATTRIBUTES: Final[tuple[Attribute, ...]] = (KERNEL_NAME, KERNEL_COUNT, KERNEL_TIME)
