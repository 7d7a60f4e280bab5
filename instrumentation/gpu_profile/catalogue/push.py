"""The metrics of a push: batches and items that were sent, failed, were dropped or wait."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.metric import Family

_PUSH: Final = Family("signal")
SENT: Final = _PUSH.counter("gpu_profile.push.batches", "{batch}", "Batches that the OTLP endpoint took")
ITEMS: Final = _PUSH.counter(
    "gpu_profile.push.items", "{item}", "Data points, log records or spans that the OTLP endpoint took"
)
FAILURES: Final = _PUSH.counter(
    "gpu_profile.push.failures", "{failure}", "Tries to push a batch over OTLP that failed, by reason", "error.type"
)
DROPPED: Final = _PUSH.counter(
    "gpu_profile.push.dropped",
    "{batch}",
    "Batches that were dropped, by reason: the queue was full, the endpoint refuses them, the exporter stopped, or the "
    "file on disk is damaged",
    "reason",
)
DROPPED_ITEMS: Final = _PUSH.counter(
    "gpu_profile.push.dropped.items", "{item}", "Data points, log records or spans of these batches", "reason"
)
REJECTED: Final = _PUSH.counter(
    "gpu_profile.push.rejected",
    "{item}",
    "Data points, log records or spans that the endpoint rejected out of batches that it took",
)
QUEUE: Final = _PUSH.gauge("gpu_profile.push.queue.length", "{batch}", "Batches that wait to be pushed")
QUEUE_BYTES: Final = _PUSH.gauge("gpu_profile.push.queue.size", "By", "Memory of the batches that wait to be pushed")
QUEUE_ITEMS: Final = _PUSH.gauge(
    "gpu_profile.push.queue.items",
    "{item}",
    "Data points, log records or spans that wait to be pushed, or are on their way",
)
DISK: Final = _PUSH.gauge("gpu_profile.push.queue.disk", "By", "Files of the queue on disk; absent without one")
RESTORED: Final = _PUSH.counter(
    "gpu_profile.push.restored",
    "{item}",
    "Data points, log records or spans that an earlier process left in the queue on disk; absent without one",
)
SUCCESS_AGE: Final = _PUSH.gauge(
    "gpu_profile.push.success.age", "s", "Time since the endpoint last took a batch; absent until it took one"
)
BYTES: Final = _PUSH.counter(
    "gpu_profile.push.io", "By", "Bytes of the batches that the endpoint took, as they were sent"
)

PUSH_METRICS: Final = tuple(_PUSH)
