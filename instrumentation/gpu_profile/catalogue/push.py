"""The metrics that a push publishes about itself: what was sent, what failed, what waits."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.metric import Instrument, Metric

SENT: Final = Metric(
    "gpu_profile.push.batches",
    "{batch}",
    Instrument.COUNTER,
    "Batches that the OTLP endpoint took",
    ("signal",),
)
FAILURES: Final = Metric(
    "gpu_profile.push.failures",
    "{failure}",
    Instrument.COUNTER,
    "Tries to push a batch over OTLP that failed, by reason",
    ("signal", "error.type"),
)
DROPPED: Final = Metric(
    "gpu_profile.push.dropped",
    "{batch}",
    Instrument.COUNTER,
    "Batches given up, by reason: the queue was full, the endpoint will not take them, or the exporter stopped",
    ("signal", "reason"),
)
REJECTED: Final = Metric(
    "gpu_profile.push.rejected",
    "{item}",
    Instrument.COUNTER,
    "Data points or log records that the endpoint rejected out of batches that it took",
    ("signal",),
)
QUEUE: Final = Metric(
    "gpu_profile.push.queue.length",
    "{batch}",
    Instrument.GAUGE,
    "Batches that wait to be pushed",
    ("signal",),
)
QUEUE_BYTES: Final = Metric(
    "gpu_profile.push.queue.size",
    "By",
    Instrument.GAUGE,
    "Memory of the batches that wait to be pushed",
    ("signal",),
)
SUCCESS_AGE: Final = Metric(
    "gpu_profile.push.success.age",
    "s",
    Instrument.GAUGE,
    "Time since the endpoint last took a batch; absent until it took one",
    ("signal",),
)
BYTES: Final = Metric(
    "gpu_profile.push.io",
    "By",
    Instrument.COUNTER,
    "Bytes of the batches that the endpoint took, as they were sent",
    ("signal",),
)

PUSH_METRICS: Final[tuple[Metric, ...]] = (
    SENT,
    FAILURES,
    DROPPED,
    REJECTED,
    QUEUE,
    QUEUE_BYTES,
    SUCCESS_AGE,
    BYTES,
)
