"""The metrics of the exporter's own listener."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.metric import Family

_HTTP: Final = Family()
REQUESTS: Final = _HTTP.counter(
    "gpu_profile.http.requests",
    "{request}",
    "Requests that were answered, by route and status",
    "http.route",
    "http.response.status_code",
)
REQUEST_TIME: Final = _HTTP.counter(
    "gpu_profile.http.request.time", "s", "Time between requests and their answers, by route", "http.route"
)
ACTIVE: Final = _HTTP.updowncounter("gpu_profile.http.active", "{request}", "Requests that wait for their answer now")
CONNECTIONS: Final = _HTTP.updowncounter(
    "gpu_profile.http.connections", "{connection}", "Connections that are open now"
)
COALESCED: Final = _HTTP.counter(
    "gpu_profile.http.coalesced",
    "{request}",
    "Requests that shared the rendering of another that came at the same time",
)
RENDERINGS: Final = _HTTP.counter("gpu_profile.http.renderings", "{rendering}", "Answers rendered")
RENDERING_TIME: Final = _HTTP.counter("gpu_profile.http.rendering.time", "s", "Time spent rendering answers")
REJECTED: Final = _HTTP.counter(
    "gpu_profile.http.rejected", "{request}", "Connections and requests that were turned away, by reason", "reason"
)
AUTH_FAILURES: Final = _HTTP.counter(
    "gpu_profile.http.auth.failures", "{request}", "Requests without a right name and password"
)
TIMEOUTS_IGNORED: Final = _HTTP.counter(
    "gpu_profile.http.timeout.ignored",
    "{request}",
    "Requests whose X-Prometheus-Scrape-Timeout-Seconds was no usable number",
)
RELOADS: Final = _HTTP.counter(
    "gpu_profile.http.config.reloads",
    "{reload}",
    "Times that the web configuration was read again: failed means that the old one was kept",
    "outcome",
)
CERTIFICATE_END: Final = _HTTP.gauge(
    "gpu_profile.http.certificate.end.timestamp",
    "s",
    "When the server's certificate expires, in seconds since the epoch",
)

HTTP_METRICS: Final = tuple(_HTTP)
