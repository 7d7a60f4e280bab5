"""The table of span attributes that regions carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Attribute:
    """One span attribute. An attribute whose value was not measured is absent."""

    name: str
    type: Literal["string", "double", "int", "string[]"]
    brief: str
    unit: str = ""


REGION: Final = Attribute("gpu_profile.region", "string", "Name of the region")
ITEMS: Final = Attribute("gpu_profile.items", "double", "Units of work that this execution did")
REGIME: Final = Attribute("gpu_profile.regime", "string", "What bounds the region")
CONFIDENCE: Final = Attribute("gpu_profile.confidence", "double", "How sure the verdict is, 0-1")
BASIS: Final = Attribute(
    "gpu_profile.basis", "string", "Evidence that the verdict rests on: operation, counters, coarse, …"
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
)
