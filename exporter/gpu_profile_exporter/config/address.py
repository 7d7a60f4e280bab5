"""An address to listen on, with its text forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_EVERYWHERE: Final = "::"  #: all interfaces, over IPv6 and IPv4: Prometheus scrapes an exporter from other hosts


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. With port 0 the system chooses."""

    host: str = _EVERYWHERE
    port: int = 9400

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def short(self) -> str:
        """The shortest text: `:9400` for all interfaces."""
        return f":{self.port}" if self.host == _EVERYWHERE else str(self)


def address(text: str) -> Address:
    """`:9400`, `9400`, `127.0.0.1:9400`, `localhost:9400` or `[::1]:9400` as an address. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError(f"{text!r} has no port between 0 and 65535 at its end; write host:port or :port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host:
            raise ValueError(f"{text!r}: square brackets are for IPv6 addresses, as in [::1]:9400")
    elif ":" in host or "[" in host or "]" in host:
        raise ValueError(f"{text!r}: an IPv6 address needs square brackets, as in [::1]:9400")
    elif not host and colon:
        return Address(port=int(port))
    return Address(host, int(port)) if host else Address(port=int(port))
