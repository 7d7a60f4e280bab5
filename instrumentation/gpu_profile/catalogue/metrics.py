"""The table of metrics: what is published, under which names.

A metric's Prometheus name derives from its OpenTelemetry name by the Collector's rule (dots become underscores, the
unit becomes a suffix, a gauge of unit 1 ends in `_ratio`, a monotonic sum in `_total`), so that a scrape and an OTLP
push land on the same series. OpenTelemetry Python's own Prometheus reader leaves `_ratio` out; we do not use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpu_profile.catalogue.allocation import ALLOCATION_METRICS
from gpu_profile.catalogue.http import HTTP_METRICS
from gpu_profile.catalogue.metric import Instrument, Metric
from gpu_profile.catalogue.push import PUSH_METRICS
from gpu_profile.catalogue.self_metrics import SELF_METRICS
from gpu_profile.catalogue.signal import Kind, Signal
from gpu_profile.catalogue.signals import MEMORY_USED, SIGNALS


def _from_signals() -> Iterable[Metric]:
    """One metric per OpenTelemetry name; signals that share one differ by their fixed attributes."""
    rows: dict[str, list[Signal]] = {}
    for row in SIGNALS:
        rows.setdefault(row.otel, []).append(row)
    for name, members in rows.items():
        first = members[0]
        if first.kind is Kind.COUNTER:
            instrument = Instrument.COUNTER
        elif first.unit == "By":
            instrument = Instrument.UPDOWNCOUNTER
        else:
            instrument = Instrument.GAUGE
        labels = tuple(sorted({key for row in members for key, _ in row.attributes}))
        brief = _SHARED.get(name, first.brief)
        if name in _HW_TYPE:
            labels = (*labels, "hw.type")
        yield Metric(name, first.unit, instrument, brief, ("hw.id", *labels), tuple(members))


#: Names that semantic conventions give to every kind of hardware: they carry `hw.type`.
_HW_TYPE: Final = frozenset({"hw.energy", "hw.power", "hw.temperature", "hw.temperature.limit"})
#: What metrics say whose signals have briefs of their own.
_SHARED: Final = {
    "hw.gpu.utilization": "Share of the sample period in which the engine was busy",
    "hw.temperature": "Temperature by sensor",
    "nvidia.gpu.clock": "Current clock by domain",
    "nvidia.gpu.clock.max": "Highest clock by domain",
    "hw.gpu.io": "Bytes over PCIe, seen from the GPU",
    "nvidia.gpu.nvlink.io": "Payload bytes over all NVLinks, seen from the GPU",
}

MEMORY_LIMIT: Final = Metric(
    "hw.gpu.memory.limit", "By", Instrument.UPDOWNCOUNTER, "Device memory in all, as the driver tells it"
)
MEMORY_UTILIZATION: Final = Metric(
    "hw.gpu.memory.utilization", "1", Instrument.GAUGE, "Share of the device memory in use", signals=(MEMORY_USED,)
)
STATUS: Final = Metric(
    "hw.status",
    "1",
    Instrument.UPDOWNCOUNTER,
    "1 for the state that the device is in, 0 for the others",
    ("hw.id", "hw.state", "hw.type"),
)
BUSY: Final = Metric(
    "gpu_profile.busy",
    "s",
    Instrument.COUNTER,
    "Time in which at least one kernel ran: rate() of it is the mean utilisation at any scrape interval",
)
OBSERVED: Final = Metric(
    "gpu_profile.observed",
    "s",
    Instrument.COUNTER,
    "Time that the busy counter has seen: less than the wall clock means gaps in the sampling",
)
DEVICE_INFO: Final = Metric(
    "gpu_profile.device.info",
    "",
    Instrument.GAUGE,
    "What a device is; join it on hw_id",
    (
        "hw.id",
        "hw.name",
        "hw.parent",
        "hw.driver_version",
        "hw.firmware_version",
        "pci.bus_id",
        "index",
        "minor",
        "kind",
        "board.part_number",
        "cuda.compute_capability",
        "mig.profile",
        "mig.instance",
        "busy.source",
    ),
)
DRIVER_INFO: Final = Metric(
    "gpu_profile.driver.info",
    "",
    Instrument.GAUGE,
    "Versions of the driver, of NVML, and of the CUDA that the driver supports",
    ("hw.driver_version", "nvml.version", "cuda.version"),
)
DEVICE_UP: Final = Metric("gpu_profile.device.up", "", Instrument.GAUGE, "1 while the device answers, else 0")
SAMPLE_AGE: Final = Metric(
    "gpu_profile.sample.age", "s", Instrument.GAUGE, "Age of the newest sample of the device", ("hw.id",)
)
SAMPLES: Final = Metric("gpu_profile.samples", "{sample}", Instrument.COUNTER, "Samples taken in")
DROPPED: Final = Metric(
    "gpu_profile.samples.dropped",
    "{sample}",
    Instrument.COUNTER,
    "Samples left out, by reason: the driver repeated itself, or they came late",
    ("hw.id", "reason"),
)
READ_ERRORS: Final = Metric(
    "gpu_profile.driver.errors", "{error}", Instrument.COUNTER, "Driver calls that failed, by error", ("error.type",)
)
READ_TIME: Final = Metric(
    "gpu_profile.driver.time", "s", Instrument.COUNTER, "Time spent reading the driver, by tier", ("tier",)
)
DRIVER_UP: Final = Metric("gpu_profile.driver.up", "", Instrument.GAUGE, "1 while the driver answers, else 0", ())
BUILD_INFO: Final = Metric(
    "gpu_profile.build.info",
    "",
    Instrument.GAUGE,
    "Version of gpu-profile and the driver that it reads",
    ("version", "driver"),
)

REGION_CALLS: Final = Metric(
    "gpu_profile.region.calls", "{call}", Instrument.COUNTER, "Executions of a region", ("region", "regime", "hw.id")
)
REGION_DURATION: Final = Metric(
    "gpu_profile.region.duration", "s", Instrument.HISTOGRAM, "How long a region's executions took", ("region",)
)
REGION_BUSY: Final = Metric(
    "gpu_profile.region.busy",
    "s",
    Instrument.COUNTER,
    "GPU busy time that a region caused: its exclusive share",
    ("region", "hw.id"),
)
REGION_ENERGY: Final = Metric(
    "gpu_profile.region.energy",
    "J",
    Instrument.COUNTER,
    "Energy that a GPU used for a region: its exclusive share",
    ("region", "hw.id"),
)
REGION_ITEMS: Final = Metric(
    "gpu_profile.region.items",
    "{item}",
    Instrument.COUNTER,
    "Units of work that a region's executions did",
    ("region",),
)
REGION_ERRORS: Final = Metric(
    "gpu_profile.region.errors",
    "{error}",
    Instrument.COUNTER,
    "Executions of a region that ended in an exception",
    ("region",),
)
REGION_FLOPS: Final = Metric(
    "gpu_profile.region.flops",
    "{operation}",
    Instrument.COUNTER,
    "Floating-point operations of a region's profiled operations, as far as they are known",
    ("region",),
)
REGION_TRAFFIC: Final = Metric(
    "gpu_profile.region.traffic",
    "By",
    Instrument.COUNTER,
    "Bytes that a region's profiled operations read and wrote, as far as they are known",
    ("region",),
)
REGION_PROFILED: Final = Metric(
    "gpu_profile.region.profiled",
    "{call}",
    Instrument.COUNTER,
    "Executions of a region that a window of the profiler saw: what all that is counted of kernels is of",
    ("region",),
)
REGION_PROFILED_TIME: Final = Metric(
    "gpu_profile.region.profiled.time",
    "s",
    Instrument.COUNTER,
    "Time of the devices in a region's profiled executions, but for others' operations: what waits are a share of",
    ("region",),
)
REGION_KERNELS: Final = Metric(
    "gpu_profile.region.kernels",
    "{kernel}",
    Instrument.COUNTER,
    "Kernels that a region's profiled executions launched",
    ("region",),
)
REGION_KERNEL_TIME: Final = Metric(
    "gpu_profile.region.kernel.time",
    "s",
    Instrument.COUNTER,
    "Sum of the durations of the kernels of a region's profiled executions",
    ("region",),
)
REGION_COPIED: Final = Metric(
    "gpu_profile.region.copied",
    "By",
    Instrument.COUNTER,
    "Bytes that the copies of a region's profiled executions moved, as far as they tell",
    ("region",),
)
REGION_COMMUNICATION: Final = Metric(
    "gpu_profile.region.communication",
    "s",
    Instrument.COUNTER,
    "Time in which a collective of a region's profiled executions ran",
    ("region",),
)
REGION_HOST_WAIT: Final = Metric(
    "gpu_profile.region.host_wait",
    "s",
    Instrument.COUNTER,
    "Time for which the GPU waited for the host in a region's profiled executions",
    ("region",),
)

#: What is counted of the executions that a window of the profiler saw.
REGION_KERNEL_METRICS: Final = (
    REGION_PROFILED,
    REGION_PROFILED_TIME,
    REGION_KERNELS,
    REGION_KERNEL_TIME,
    REGION_COPIED,
    REGION_COMMUNICATION,
    REGION_HOST_WAIT,
)
REGION_METRICS: Final = (
    REGION_CALLS,
    REGION_DURATION,
    REGION_BUSY,
    REGION_ENERGY,
    REGION_ITEMS,
    REGION_ERRORS,
    REGION_FLOPS,
    REGION_TRAFFIC,
    *REGION_KERNEL_METRICS,
)
METRICS: Final[tuple[Metric, ...]] = (
    *_from_signals(),
    MEMORY_LIMIT,
    MEMORY_UTILIZATION,
    STATUS,
    BUSY,
    OBSERVED,
    DEVICE_INFO,
    DRIVER_INFO,
    DEVICE_UP,
    SAMPLE_AGE,
    SAMPLES,
    DROPPED,
    READ_ERRORS,
    READ_TIME,
    DRIVER_UP,
    BUILD_INFO,
    *SELF_METRICS,
    *ALLOCATION_METRICS,
    *HTTP_METRICS,
    *PUSH_METRICS,
    *REGION_METRICS,
)
_BY_SIGNAL: Final = {row.key: metric for metric in _from_signals() for row in metric.signals}


def metric_of(row: Signal) -> Metric:
    """The metric that publishes this signal."""
    return _BY_SIGNAL[row.key]
