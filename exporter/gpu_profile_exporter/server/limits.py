"""How much a client may ask for, and how slow it may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server grants to its clients. Times are in seconds.

    `connections`: open at once. Above that one is closed for each that comes, as `admission` says; while all are being
    answered, the new one is refused.
    `tls_connections`: the same with TLS, as asyncio keeps a third of a MiB for each of them.
    `request_s`: from the first byte of a request, or from the connection, until its head is there; TLS as well.
    `body_s`: from the head of a request, once its body is asked for, until that is there.
    `idle_s`: between two requests of one connection; longer than most scrape intervals, so that one handshake serves.
    `write_s`: until the client's side has taken in an answer.
    `answer_s`: for an answer if the client names no timeout of its own; `longest_s`: if it names a long one.
    `header_bytes`, `headers`: size and number of a request's header lines.
    `renderings`: different answers that may be waited for at once.
    """

    connections: int = 512
    tls_connections: int = 128
    request_s: float = 5.0
    body_s: float = 10.0
    idle_s: float = 90.0
    write_s: float = 10.0
    answer_s: float = 10.0
    longest_s: float = 120.0
    header_bytes: int = 16 * 1024
    headers: int = 64
    renderings: int = 64
