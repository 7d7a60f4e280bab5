"""Which spans of requests came already, and how late they come. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

from gpu_profile.serving.streams.request_spans import ServedRequest

#: A request without a span has none to come after twice the longest wait of the latest spans, and some time more: its
#: client aborted it, or the span is lost. From this many spans on.
_LATEST, _LEAST, _LONGER_NS = 200, 10, 3_000_000_000
#: The most spans that are kept, to recognise copies.
_MOST: Final = 20_000


class SpanArrivals:
    """The latest spans of an engine's requests. Iterations wait for them for `deadline_ns`."""

    def __init__(self, deadline_ns: int) -> None:
        self._deadline_ns = deadline_ns
        self._latest: dict[tuple[str, int, int], None] = {}
        self._fresh: list[int] = []
        self._lateness_ns: deque[int] = deque(maxlen=_LATEST)
        #: When the last one came. None before the first one.
        self.last_ns: int | None = None

    def is_copy(self, request: ServedRequest) -> bool:
        """Whether the span of a request came before: senders repeat spans without an acknowledgement."""
        key = request.id, request.scheduled_ns, request.end_ns
        before = key in self._latest
        self._latest[key] = None
        if len(self._latest) > _MOST:
            del self._latest[next(iter(self._latest))]
        return before

    def add(self, request: ServedRequest) -> None:
        """Add a span, which has come since the last step."""
        self._fresh.append(request.end_ns)

    def step(self, now_ns: int) -> None:
        """Take the spans that were added as come by now."""
        if self._fresh:
            # No iteration waits longer: the clock of the host is wrong.
            since_ns = now_ns - self._deadline_ns
            self._lateness_ns.extend(now_ns - end_ns for end_ns in self._fresh if end_ns >= since_ns)
            self._fresh, self.last_ns = [], now_ns

    def restart(self) -> None:
        """The clock was set back."""
        self._fresh, self.last_ns = [], None
        self._lateness_ns.clear()

    def complete_until_ns(self, now_ns: int) -> int:
        """The time up to which requests that ended have their spans, as far as the latest spans show. 0: unknown."""
        if len(self._lateness_ns) < _LEAST:
            return 0
        return now_ns - 2 * max(0, *self._lateness_ns) - _LONGER_NS
