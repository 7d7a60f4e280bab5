"""Metrics of the exporter itself, and of XID errors by code."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.metric import Family

_SELF: Final = Family()
XID_ANY: Final = _SELF.counter(
    "nvidia.gpu.xid.errors.any",
    "{error}",
    "XID errors of the device since the exporter started, of any code: 0 before the first",
    "hw.id",
)
XID_ERRORS: Final = _SELF.counter(
    "nvidia.gpu.xid.errors",
    "{error}",
    "XID errors of the device since the exporter started, by code: a code's series begins with its first error",
    "hw.id",
    "nvidia.gpu.xid",
)
XID_LAST: Final = _SELF.gauge(
    "nvidia.gpu.xid.last",
    "",
    "Code of the device's last XID error since the exporter started",
    "hw.id",
    "nvidia.gpu.xid",
)
XID_LAST_TIME: Final = _SELF.gauge(
    "nvidia.gpu.xid.last.time", "s", "When the device's last XID error came, since the epoch", "hw.id"
)
STALE: Final = _SELF.updowncounter(
    "gpu_profile.signals.stale",
    "{signal}",
    "Signals that the device supports and has not reported for three of their periods",
    "hw.id",
)
ROUNDS: Final = _SELF.counter("gpu_profile.sampler.rounds", "{round}", "Rounds of reading that were completed")
LAG: Final = _SELF.gauge("gpu_profile.sampler.lag", "s", "How late the last round of fast signals started")
SERIES: Final = _SELF.gauge("gpu_profile.series", "{series}", "Series in this exposition")
SERIES_DROPPED: Final = _SELF.counter(
    "gpu_profile.series.dropped", "{series}", "Series left out of an exposition, counted at each, by reason", "reason"
)
READER_CPU: Final = _SELF.counter("gpu_profile.reader.cpu", "s", "CPU time of the processes that read the driver")
READER_MEMORY: Final = _SELF.updowncounter(
    "gpu_profile.reader.memory", "By", "Memory of the processes that read the driver; shared memory counts once"
)
READER_RESTARTS: Final = _SELF.counter(
    "gpu_profile.reader.restarts", "{restart}", "Restarts of processes that read the driver, by cause", "reason"
)

SELF_METRICS: Final = tuple(_SELF)
