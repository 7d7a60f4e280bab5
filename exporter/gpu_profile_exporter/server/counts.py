"""The server's counters of its requests and connections, as readings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from gpu_profile.catalogue import http as m
from gpu_profile_exporter.readings.readings import MetricReading

#: Reasons for rejecting connections and requests. Published from 0 on, so that increase() sees the first rejection.
REASONS: Final = (
    "bad_request",
    "body",
    "busy",
    "client_certificate",
    "connections",
    "evicted",
    "handshake",
    "header_count",
    "header_size",
    "method",
    "no_descriptor",
    "rate",
    "slow_reader",
    "slow_request",
    "timeout",
)


class Counts:
    """The counters. Only the server's thread writes them; any thread may read them."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter({("/metrics", 200): 0})
        self.time_s: dict[str, float] = {"/metrics": 0.0}
        self.rejected: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self.reloads: Counter[str] = Counter({"ok": 0, "failed": 0})
        self.auth_failures = 0
        self.coalesced = 0
        self.renderings = 0
        self.rendering_s = 0.0
        self.timeouts_ignored = 0
        self.active = 0
        self.connections = 0
        self.certificate_ends_s: float | None = None

    def answered(self, route: str, status: int, took_s: float) -> None:
        """Count one answer."""
        self.requests[route, status] += 1
        self.time_s[route] = self.time_s.get(route, 0.0) + took_s

    def readings(self) -> Iterator[MetricReading]:
        """All counters as metrics of the catalogue."""
        for (route, status), n in sorted(dict(self.requests).items()):
            yield MetricReading(m.REQUESTS, {"http.route": route, "http.response.status_code": str(status)}, n)
        for route, time_s in sorted(dict(self.time_s).items()):
            yield MetricReading(m.REQUEST_TIME, {"http.route": route}, time_s)
        yield MetricReading(m.ACTIVE, {}, self.active)
        yield MetricReading(m.CONNECTIONS, {}, self.connections)
        yield MetricReading(m.COALESCED, {}, self.coalesced)
        yield MetricReading(m.RENDERINGS, {}, self.renderings)
        yield MetricReading(m.RENDERING_TIME, {}, self.rendering_s)
        for reason in REASONS:
            yield MetricReading(m.REJECTED, {"reason": reason}, self.rejected[reason])
        yield MetricReading(m.AUTH_FAILURES, {}, self.auth_failures)
        yield MetricReading(m.TIMEOUTS_IGNORED, {}, self.timeouts_ignored)
        for outcome, n in sorted(self.reloads.items()):
            yield MetricReading(m.RELOADS, {"outcome": outcome}, n)
        if self.certificate_ends_s is not None:
            yield MetricReading(m.CERTIFICATE_END, {}, self.certificate_ends_s)
