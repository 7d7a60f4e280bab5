"""How a try to push a batch ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from gpu_profile.protobuf import fields
from gpu_profile_exporter.push.batch import Batch

#: Why a try can fail: the values of `error.type`. `internal` is a defect of ours.
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
#: A server that asks for more patience than this is asked again anyway.
MOST_PATIENCE_S: Final = 300.0
#: What is told of a server's own words.
_MOST_WORDS: Final = 120


class Taken(NamedTuple):
    """The endpoint took the batch, except for this many items."""

    rejected: int = 0
    message: str = ""


class PushFailed(Exception):  # noqa: N818 - what happened, not a kind of error that a user meets
    """The endpoint did not take the batch. `retry`: it may take it later, not before `after_s` if that is told.

    `reason` is one of `REASONS`; the exception's text is for people and starts with what to know.
    """

    def __init__(self, reason: str, text: str, *, retry: bool, after_s: float | None = None) -> None:
        super().__init__(text)
        self.reason, self.retry = reason, retry
        self.after_s = None if after_s is None else min(max(0.0, after_s), MOST_PATIENCE_S)


class Client(Protocol):
    """Speaks to one endpoint."""

    def send(self, batch: Batch, timeout_s: float) -> Taken:
        """Push one batch within the time; raises PushFailed."""
        ...

    def close(self) -> None:
        """Let go of what is open."""
        ...


def taken(response: bytes) -> Taken:
    """What an Export{Metrics,Logs}ServiceResponse says; ValueError if the bytes are none."""
    rejected, text = 0, ""
    for number, partial in fields(response):
        if number == 1 and isinstance(partial, bytes):
            for part, content in fields(partial):
                if part == 1 and isinstance(content, int):
                    rejected = content if content < 1 << 63 else 0
                elif part == 2 and isinstance(content, bytes):
                    text = words(content)
    return Taken(rejected, text)


def status_message(status: bytes) -> str:
    """The message in a google.rpc.Status, which is how OTLP servers explain themselves; ValueError if it is none."""
    found = dict(fields(status)).get(2, b"")
    return words(found) if isinstance(found, bytes) else ""


def retry_delay_s(status: bytes) -> float | None:
    """The RetryInfo in a google.rpc.Status, in seconds; None without."""
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


def words(said: bytes | str) -> str:
    """A server's own words, fit for one line of a log."""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:1000]).split())
    return line if len(line) <= _MOST_WORDS else f"{line[:_MOST_WORDS]}…"
