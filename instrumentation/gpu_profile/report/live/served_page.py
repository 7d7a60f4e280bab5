"""The live page as it is sent: its bytes and headers, its compression, and the address of its answers."""

from __future__ import annotations

from typing import Final, NamedTuple

#: The address of the answers, relative to the page's, so that a proxy may add a prefix.
ANSWERS: Final = "api/live"


class LivePage(NamedTuple):
    """The page, plain and compressed. It changes with the version only: a browser keeps it, and asks by `etag`."""

    body: bytes
    packed: bytes
    etag: str
    policy: str

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The page's headers, in addition to those of every answer."""
        return (
            ("Content-Security-Policy", self.policy),
            ("Cache-Control", "no-cache"),
            ("ETag", self.etag),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        )

    def is_current(self, if_none_match: str) -> bool:
        """Whether the header names the page that a browser already has."""
        return self.etag in (tag.strip().removeprefix("W/") for tag in if_none_match.split(","))


def accepts_gzip(header: str) -> bool:
    """Whether the client with this `Accept-Encoding` takes answers compressed with gzip."""
    for token in header.lower().split(","):
        coding, _, weight = token.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
