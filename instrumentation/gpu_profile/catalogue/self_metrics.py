"""Metrics of what the exporter knows beside signals: driver errors by code, and itself."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.metric import Instrument, Metric

XID_ERRORS: Final = Metric(
    "nvidia.gpu.xid.errors",
    "{error}",
    Instrument.COUNTER,
    "XID errors of the device since the exporter started, by code",
    ("hw.id", "nvidia.gpu.xid"),
)
XID_LAST: Final = Metric(
    "nvidia.gpu.xid.last",
    "",
    Instrument.GAUGE,
    "Code of the device's last XID error since the exporter started, 0 before the first",
    ("hw.id", "nvidia.gpu.xid"),
)
XID_LAST_TIME: Final = Metric(
    "nvidia.gpu.xid.last.time", "s", Instrument.GAUGE, "When the device's last XID error came, since the epoch"
)
STALE: Final = Metric(
    "gpu_profile.signals.stale",
    "{signal}",
    Instrument.UPDOWNCOUNTER,
    "Signals that the device can tell and has not told for three of their periods",
)
ROUNDS: Final = Metric(
    "gpu_profile.sampler.rounds", "{round}", Instrument.COUNTER, "Rounds of reading that came to their end", ()
)
LAG: Final = Metric(
    "gpu_profile.sampler.lag", "s", Instrument.GAUGE, "How late the last round of fast signals started", ()
)
SERIES: Final = Metric("gpu_profile.series", "{series}", Instrument.GAUGE, "Series in this exposition", ())
SERIES_DROPPED: Final = Metric(
    "gpu_profile.series.dropped",
    "{series}",
    Instrument.COUNTER,
    "Series left out of an exposition, counted at each, by reason",
    ("reason",),
)
READER_CPU: Final = Metric(
    "gpu_profile.reader.cpu", "s", Instrument.COUNTER, "CPU time of the processes that read the driver", ()
)
READER_MEMORY: Final = Metric(
    "gpu_profile.reader.memory", "By", Instrument.UPDOWNCOUNTER, "Memory of the processes that read the driver", ()
)
READER_RESTARTS: Final = Metric(
    "gpu_profile.reader.restarts",
    "{restart}",
    Instrument.COUNTER,
    "Processes that read the driver that were started again, by what made it necessary",
    ("reason",),
)

SELF_METRICS: Final[tuple[Metric, ...]] = (
    XID_ERRORS,
    XID_LAST,
    XID_LAST_TIME,
    STALE,
    ROUNDS,
    LAG,
    SERIES,
    SERIES_DROPPED,
    READER_CPU,
    READER_MEMORY,
    READER_RESTARTS,
)
