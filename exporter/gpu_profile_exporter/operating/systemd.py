"""What systemd is told by a service of `Type=notify`: see sd_notify(3)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
WATCHDOG: Final = "WATCHDOG=1"


def notify(text: str, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell systemd one or more `KEY=value` lines. False if nobody asked to be told, or nobody listens any more."""
    path = environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    # A name that begins with @ lies in the abstract namespace, where a NUL byte stands in its place.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            connection.sendto(text.encode(), address)
    except OSError:
        return False
    return True


def reloading(*, now_ns: int | None = None) -> str:
    """What to say before the configuration is read again; `READY` follows when it is. `now_ns` is CLOCK_MONOTONIC."""
    return f"RELOADING=1\nMONOTONIC_USEC={(time.monotonic_ns() if now_ns is None else now_ns) // 1000}"


def watchdog_s(*, environ: Mapping[str, str] = os.environ) -> float | None:
    """Seconds between two `WATCHDOG`s that this process owes: half of what systemd waits. None if it waits for none."""
    limit_us = environ.get("WATCHDOG_USEC", "")
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(limit_us) / 2e6 if limit_us.isascii() and limit_us.isdigit() and int(limit_us) else None
