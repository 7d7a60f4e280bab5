"""The metrics of the receiver of spans."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.metric import Family

_RECEIVE: Final = Family()
RECEIVED: Final = _RECEIVE.counter(
    "gpu_profile.receive.spans",
    "{span}",
    "Received spans, by outcome: joined with GPU samples, unjoined although they are regions, or passed on unchanged",
    "outcome",
)
REQUESTS: Final = _RECEIVE.counter(
    "gpu_profile.receive.requests",
    "{request}",
    "Requests with spans that were answered, by status",
    "http.response.status_code",
)
REFUSED: Final = _RECEIVE.counter(
    "gpu_profile.receive.rejected", "{request}", "Connections and requests that were turned away, by reason", "reason"
)
LEFT_OUT: Final = _RECEIVE.counter(
    "gpu_profile.receive.left_out",
    "{span}",
    "Spans that are missing from their region's numbers, by reason: late, impossible times, or too many that wait",
    "reason",
)
WAITING: Final = _RECEIVE.gauge(
    "gpu_profile.receive.waiting", "{span}", "Spans that wait for the samples of their time"
)
LOST_ROWS: Final = _RECEIVE.counter(
    "gpu_profile.receive.lost_rows",
    "{row}",
    "Rows of the node's timeline that were overwritten before they were read, or are damaged",
)

RECEIVE_METRICS: Final = tuple(_RECEIVE)
