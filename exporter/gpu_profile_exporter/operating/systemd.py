"""Notifies systemd, as a service of `Type=notify` does: see sd_notify(3)."""

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
    """Send systemd one or more `KEY=value` lines. False if NOTIFY_SOCKET is not set or cannot be reached."""
    path = environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    # A name that begins with @ is in the abstract namespace: a NUL byte replaces the @.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            connection.sendto(text.encode(), address)
    except OSError:
        return False
    return True


def reloading(*, now_ns: int | None = None) -> str:
    """The lines to send before the configuration is read again. Send `READY` after it. `now_ns` is CLOCK_MONOTONIC."""
    return f"RELOADING=1\nMONOTONIC_USEC={(time.monotonic_ns() if now_ns is None else now_ns) // 1000}"


def watchdog_s(*, environ: Mapping[str, str] = os.environ) -> float | None:
    """Seconds between two `WATCHDOG` messages: half of systemd's limit. None if systemd expects none from here."""
    limit_us = environ.get("WATCHDOG_USEC", "")
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(limit_us) / 2e6 if limit_us.isascii() and limit_us.isdigit() and int(limit_us) else None
