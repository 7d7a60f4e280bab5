"""The settings of an exporter. Where they come from (flags, environment) is `cli`'s matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu_profile.errors import UsageError

ENVIRONMENT: Final = "GPU_PROFILE_EXPORTER"
INTERVAL_S: Final = (0.01, 60.0)
RETENTION_S: Final = (1.0, 86_400.0)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0 lets the system choose."""

    host: str = "0.0.0.0"  # noqa: S104 - a node's exporter is there to be scraped from elsewhere
    port: int = 9400

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """An exporter's settings; UsageError if one is out of bounds. Times are in seconds."""

    listen: Address = Address()
    driver: str = "auto"
    interval_s: float = 0.1
    retention_s: float = 120.0

    def __post_init__(self) -> None:
        for flag, value, (low, high) in (
            ("--interval", self.interval_s, INTERVAL_S),
            ("--retention", self.retention_s, RETENTION_S),
        ):
            if not low <= value <= high:
                raise UsageError(f"{flag} must lie between {low:g} and {high:g} seconds, not {value:g}")


def parse_listen(text: str) -> Address:
    """`:9400`, `9400`, `127.0.0.1:9400`, `localhost:9400` or `[::1]:9400` as an address; UsageError otherwise."""
    host, colon, port = text.strip().rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise UsageError(f"--listen {text!r}: no port between 0 and 65535 at its end; write host:port or :port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host:
            raise UsageError(f"--listen {text!r}: square brackets are for IPv6 addresses, as in [::1]:9400")
    elif ":" in host or "[" in host or "]" in host:
        raise UsageError(f"--listen {text!r}: an IPv6 address needs square brackets, as in [::1]:9400")
    elif not host and colon:
        return Address(port=int(port))
    return Address(host, int(port)) if host else Address(port=int(port))
