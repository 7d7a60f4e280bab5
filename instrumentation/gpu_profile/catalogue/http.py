"""What the exporter tells of its own listener."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.metric import Instrument, Metric

REQUESTS: Final = Metric(
    "gpu_profile.http.requests",
    "{request}",
    Instrument.COUNTER,
    "Requests that were answered, by route and status",
    ("http.route", "http.response.status_code"),
)
REQUEST_TIME: Final = Metric(
    "gpu_profile.http.request.time",
    "s",
    Instrument.COUNTER,
    "Time between requests and their answers, by route",
    ("http.route",),
)
ACTIVE: Final = Metric(
    "gpu_profile.http.active", "{request}", Instrument.UPDOWNCOUNTER, "Requests that wait for their answer now", ()
)
CONNECTIONS: Final = Metric(
    "gpu_profile.http.connections", "{connection}", Instrument.UPDOWNCOUNTER, "Connections that are open now", ()
)
COALESCED: Final = Metric(
    "gpu_profile.http.coalesced",
    "{request}",
    Instrument.COUNTER,
    "Requests that shared the rendering of another that came at the same time",
    (),
)
RENDERINGS: Final = Metric("gpu_profile.http.renderings", "{rendering}", Instrument.COUNTER, "Answers rendered", ())
RENDERING_TIME: Final = Metric(
    "gpu_profile.http.rendering.time", "s", Instrument.COUNTER, "Time spent rendering answers", ()
)
REJECTED: Final = Metric(
    "gpu_profile.http.rejected",
    "{request}",
    Instrument.COUNTER,
    "Connections and requests that were turned away, by reason",
    ("reason",),
)
AUTH_FAILURES: Final = Metric(
    "gpu_profile.http.auth.failures", "{request}", Instrument.COUNTER, "Requests without a right name and password", ()
)
TIMEOUTS_IGNORED: Final = Metric(
    "gpu_profile.http.timeout.ignored",
    "{request}",
    Instrument.COUNTER,
    "Requests whose X-Prometheus-Scrape-Timeout-Seconds was no usable number",
    (),
)
RELOADS: Final = Metric(
    "gpu_profile.http.config.reloads",
    "{reload}",
    Instrument.COUNTER,
    "Times that the web configuration was read again: failed means that the old one was kept",
    ("outcome",),
)
CERTIFICATE_END: Final = Metric(
    "gpu_profile.http.certificate.end.timestamp",
    "s",
    Instrument.GAUGE,
    "When the server's certificate expires, in seconds since the epoch",
    (),
)

HTTP_METRICS: Final[tuple[Metric, ...]] = (
    REQUESTS,
    REQUEST_TIME,
    ACTIVE,
    CONNECTIONS,
    COALESCED,
    RENDERINGS,
    RENDERING_TIME,
    REJECTED,
    AUTH_FAILURES,
    TIMEOUTS_IGNORED,
    RELOADS,
    CERTIFICATE_END,
)
