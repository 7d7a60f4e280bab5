"""Limits on the size, number and duration of requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The server's limits for clients. Times are in seconds.

    `connections`: open at once. Each further connection closes one of them (see `admission`). If all are being
    answered, the new one is refused.
    `tls_connections`: the same with TLS, because asyncio needs a third of a MiB per TLS connection.
    `request_s`: from the connection or the first byte of a request until its head is complete. Also for TLS handshakes.
    `body_s`: from the start of receiving a request's body until its end.
    `idle_s`: between two requests of a connection. Longer than most scrape intervals, so that one handshake suffices.
    `write_s`: until the client has acknowledged an answer.
    `answer_s`: for an answer if the client names no timeout. `longest_s`: at most, if the client names one.
    `header_bytes`, `headers`: size and number of a request's header lines.
    `renderings`: different answers that may be pending at once.
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
