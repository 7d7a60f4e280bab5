"""The table of metrics and their names.

A metric's Prometheus name derives from its OpenTelemetry name by the Collector's rule: dots become underscores, and the
unit becomes a suffix. A gauge of unit 1 ends in `_ratio`, a monotonic sum in `_total`. So a scrape and an OTLP push
write the same series. OpenTelemetry Python's own Prometheus reader leaves `_ratio` out; we do not use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpu_profile.catalogue.allocation import ALLOCATION_METRICS
from gpu_profile.catalogue.http import HTTP_METRICS
from gpu_profile.catalogue.metric import Family, Instrument, Metric
from gpu_profile.catalogue.push import PUSH_METRICS
from gpu_profile.catalogue.receive import RECEIVE_METRICS
from gpu_profile.catalogue.self_metrics import SELF_METRICS
from gpu_profile.catalogue.serving import SERVING_METRICS
from gpu_profile.catalogue.signal import Kind, Signal
from gpu_profile.catalogue.signals import INTEGRATED, MEMORY_USED, SIGNALS


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
#: Briefs of metrics with several signals, each with its own brief.
_SHARED: Final = {
    "hw.gpu.utilization": "Share of the sample period in which the engine was busy",
    "hw.temperature": "Temperature by sensor",
    "nvidia.gpu.clock": "Current clock by domain",
    "nvidia.gpu.clock.max": "Highest clock by domain",
    "hw.gpu.io": "Bytes over PCIe, seen from the GPU",
    "nvidia.gpu.nvlink.io": "Payload bytes over all NVLinks, seen from the GPU",
}

_NODE: Final = Family()
MEMORY_LIMIT: Final = _NODE.updowncounter(
    "hw.gpu.memory.limit", "By", "Total device memory, as the driver reports it", "hw.id"
)
MEMORY_UTILIZATION: Final = _NODE.gauge(
    "hw.gpu.memory.utilization", "1", "Share of the device memory in use", "hw.id", signals=(MEMORY_USED,)
)
STATUS: Final = _NODE.updowncounter(
    "hw.status", "1", "1 for the state that the device is in, 0 for the others", "hw.id", "hw.state", "hw.type"
)
BUSY: Final = _NODE.counter(
    "gpu_profile.busy",
    "s",
    "Time in which at least one kernel ran: rate() of it is the mean utilisation at any scrape interval",
    "hw.id",
)
OBSERVED: Final = _NODE.counter(
    "gpu_profile.observed",
    "s",
    "Time that the busy counter covers: less than the wall clock means gaps in the sampling",
    "hw.id",
)
SPINNING: Final = _NODE.counter(
    "gpu_profile.spinning",
    "s",
    "Time in which the GPU was busy but moved nothing, at the power of an idle GPU: a kernel waits for a peer, a lock "
    "or a request. Missing where the sensors cannot decide it",
    "hw.id",
)
#: The attribute for the unit of the GPU, such as `sm`: the key of the unit's activity signal.
UNIT: Final = "nvidia.gpu.unit"
ACTIVITY: Final = _NODE.counter(
    "gpu_profile.activity",
    "s",
    "Activity of a unit of the GPU, times the time for which it was measured: rate() of it is the mean activity at any "
    "scrape interval",
    "hw.id",
    UNIT,
    signals=INTEGRATED,
)
ACTIVITY_OBSERVED: Final = _NODE.counter(
    "gpu_profile.activity.observed",
    "s",
    "Time for which the activity of a unit was measured: less than the wall clock means gaps in the sampling",
    "hw.id",
    UNIT,
    signals=INTEGRATED,
)
DEVICE_INFO: Final = _NODE.gauge(
    "gpu_profile.device.info",
    "",
    "Identity of a device; join it on hw_id",
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
    "energy.source",
)
DRIVER_INFO: Final = _NODE.gauge(
    "gpu_profile.driver.info",
    "",
    "Versions of the driver, of NVML, and of the CUDA that the driver supports",
    "hw.driver_version",
    "nvml.version",
    "cuda.version",
)
DEVICE_UP: Final = _NODE.gauge("gpu_profile.device.up", "", "1 while the device answers, else 0", "hw.id")
SAMPLE_AGE: Final = _NODE.gauge("gpu_profile.sample.age", "s", "Age of the newest sample of the device", "hw.id")
SAMPLES: Final = _NODE.counter("gpu_profile.samples", "{sample}", "Samples taken in", "hw.id")
DROPPED: Final = _NODE.counter(
    "gpu_profile.samples.dropped",
    "{sample}",
    "Samples of all devices that were left out, by reason: the driver repeated itself, or they came late",
    "reason",
)
READ_ERRORS: Final = _NODE.counter(
    "gpu_profile.driver.errors", "{error}", "Driver calls that failed, by error", "error.type"
)
READ_TIME: Final = _NODE.counter("gpu_profile.driver.time", "s", "Time spent reading the driver, by tier", "tier")
DRIVER_UP: Final = _NODE.gauge("gpu_profile.driver.up", "", "1 while the driver answers, else 0")
BUILD_INFO: Final = _NODE.gauge(
    "gpu_profile.build.info", "", "Version of gpu-profile and the driver that it reads", "version", "driver"
)

_REGIONS: Final = Family("region")
REGION_CALLS: Final = _REGIONS.counter(
    "gpu_profile.region.calls", "{call}", "Executions of a region", "regime", "hw.id"
)
REGION_DURATION: Final = _REGIONS.histogram("gpu_profile.region.duration", "s", "How long a region's executions took")
#: The same as series of a scrape.
REGION_DURATION_PARTS: Final = REGION_DURATION.parts()
REGION_BUSY: Final = _REGIONS.counter(
    "gpu_profile.region.busy", "s", "GPU busy time that a region caused: its exclusive share", "hw.id"
)
REGION_BUSY_UNCERTAIN: Final = _REGIONS.counter(
    "gpu_profile.region.busy.uncertain",
    "s",
    "GPU busy time shared out to a region by time while its rate was refused; not part of the certain busy time",
    "hw.id",
)
REGION_ENERGY: Final = _REGIONS.counter(
    "gpu_profile.region.energy", "J", "Energy that a GPU used for a region: its exclusive share", "hw.id"
)
REGION_ENERGY_UNCERTAIN: Final = _REGIONS.counter(
    "gpu_profile.region.energy.uncertain",
    "J",
    "Energy shared out to a region by time while its power was refused; not part of the certain energy",
    "hw.id",
)
REGION_SPINNING: Final = _REGIONS.counter(
    "gpu_profile.region.spinning",
    "s",
    "Time in which a region was open while its GPU was busy without movement, and none of its regions ended",
    "hw.id",
)
REGION_ITEMS: Final = _REGIONS.counter(
    "gpu_profile.region.items", "{item}", "Units of work that a region's executions did"
)
REGION_ERRORS: Final = _REGIONS.counter(
    "gpu_profile.region.errors", "{error}", "Executions of a region that ended in an exception"
)
REGION_FLOPS: Final = _REGIONS.counter(
    "gpu_profile.region.flops",
    "{operation}",
    "Floating-point operations of a region's profiled operations, as far as they were counted",
)
REGION_TRAFFIC: Final = _REGIONS.counter(
    "gpu_profile.region.traffic",
    "By",
    "Bytes that a region's profiled operations read and wrote, as far as they were counted",
)

#: Counters over the executions in the profiler's windows.
_WINDOWS: Final = Family("region")
REGION_PROFILED: Final = _WINDOWS.counter(
    "gpu_profile.region.profiled",
    "{call}",
    "Executions of a region that a window of the profiler saw: the base of all counts of kernels",
)
REGION_PROFILED_TIME: Final = _WINDOWS.counter(
    "gpu_profile.region.profiled.time",
    "s",
    "Device time of a region's profiled executions, without others' operations: the base of the shares of waits",
)
REGION_KERNELS: Final = _WINDOWS.counter(
    "gpu_profile.region.kernels", "{kernel}", "Kernels that a region's profiled executions launched"
)
REGION_KERNEL_TIME: Final = _WINDOWS.counter(
    "gpu_profile.region.kernel.time", "s", "Sum of the durations of the kernels of a region's profiled executions"
)
REGION_COPIED: Final = _WINDOWS.counter(
    "gpu_profile.region.copied",
    "By",
    "Bytes that the copies of a region's profiled executions moved, as far as recorded",
)
REGION_COMMUNICATION: Final = _WINDOWS.counter(
    "gpu_profile.region.communication", "s", "Time in which a collective of a region's profiled executions ran"
)
REGION_HOST_WAIT: Final = _WINDOWS.counter(
    "gpu_profile.region.host_wait", "s", "Time for which the GPU waited for the host in a region's profiled executions"
)

REGION_KERNEL_METRICS: Final = tuple(_WINDOWS)
REGION_METRICS: Final = (*_REGIONS, *REGION_KERNEL_METRICS)
METRICS: Final[tuple[Metric, ...]] = (
    *_from_signals(),
    *_NODE,
    *SELF_METRICS,
    *ALLOCATION_METRICS,
    *HTTP_METRICS,
    *PUSH_METRICS,
    *RECEIVE_METRICS,
    *SERVING_METRICS,
    *REGION_METRICS,
)
_BY_SIGNAL: Final = {row.key: metric for metric in _from_signals() for row in metric.signals}


def metric_of(row: Signal) -> Metric:
    """The metric that publishes this signal."""
    return _BY_SIGNAL[row.key]
