"""The outcome of a try to push a batch: taken or failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from gpu_profile.protobuf import fields
from gpu_profile_exporter.push.batch import Batch

#: Reasons for a failed try: the values of `error.type`. `internal` is a defect of the exporter.
REASONS: Final = (
    "closed",
    "dns",
    "garbage",
    "internal",
    "redirected",
    "rejected",
    "throttled",
    "timeout",
    "tls",
    "unauthenticated",
    "unavailable",
    "unreachable",
)
#: The longest pause that a server can request.
MOST_PATIENCE_S: Final = 300.0
#: The most characters of a server's text in a message.
_MOST_WORDS: Final = 120


class Accepted(NamedTuple):
    """The endpoint has accepted the batch, except for `rejected` items."""

    rejected: int = 0
    message: str = ""


class PushFailed(Exception):  # noqa: N818 - an outcome, not a kind of error that a user sees
    """The endpoint did not accept the batch. `retry`: it may later, after `after_s` seconds if the server set that.

    `reason` is one of `REASONS`. `content`: the content may be the cause, so that a part of it may be accepted. The
    exception's text follows the endpoint in a log line.
    """

    def __init__(
        self, reason: str, text: str, *, retry: bool, after_s: float | None = None, content: bool = False
    ) -> None:
        super().__init__(text)
        self.reason, self.retry, self.content = reason, retry, content
        self.after_s = None if after_s is None else min(max(0.0, after_s), MOST_PATIENCE_S)


class Client(Protocol):
    """Pushes to one endpoint."""

    def send(self, batch: Batch, timeout_s: float) -> Accepted:
        """Push one batch within `timeout_s`. Raises PushFailed."""
        ...

    def close(self) -> None:
        """Close open connections."""
        ...


def taken(response: bytes) -> Accepted:
    """The outcome in an Export{Metrics,Logs}ServiceResponse. ValueError for other bytes."""
    rejected, text = 0, ""
    for number, partial in fields(response):
        if number == 1 and isinstance(partial, bytes):
            for part, content in fields(partial):
                if part == 1 and isinstance(content, int):
                    rejected = content if content < 1 << 63 else 0
                elif part == 2 and isinstance(content, bytes):
                    text = words(content)
    return Accepted(rejected, text)


def status_message(status: bytes) -> str:
    """The message in a google.rpc.Status, in which OTLP servers explain a failure. ValueError for other bytes."""
    text = dict(fields(status)).get(2, b"")
    return words(text) if isinstance(text, bytes) else ""


def retry_delay_s(status: bytes) -> float | None:
    """The RetryInfo in a google.rpc.Status, in seconds. None if there is none."""
    try:
        for number, detail in fields(status):
            if number == 3 and isinstance(detail, bytes):
                packed = dict(fields(detail))
                url, info = packed.get(1, b""), packed.get(2, b"")
                if isinstance(url, bytes) and url.endswith(b"google.rpc.RetryInfo") and isinstance(info, bytes):
                    delay = dict(fields(info)).get(1, b"")
                    return _duration_s(dict(fields(delay))) if isinstance(delay, bytes) else 0.0
    except ValueError:
        pass
    return None


def _duration_s(duration: Mapping[int, int | bytes]) -> float:
    seconds, nanos = duration.get(1, 0), duration.get(2, 0)
    return (seconds if isinstance(seconds, int) else 0) + (nanos if isinstance(nanos, int) else 0) / 1e9


def words(raw: bytes | str) -> str:
    """A server's text as at most 120 printable characters of one line, for a log."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:1000]).split())
    return line if len(line) <= _MOST_WORDS else f"{line[:_MOST_WORDS]}…"
