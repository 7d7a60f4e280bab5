"""The log record of a device's event: its severity, its text and its attributes."""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu_profile.catalogue import events as names
from gpu_profile.catalogue.samples import Event
from gpu_profile.catalogue.xids import XIDS, XidTier


class Severity(NamedTuple):
    """OpenTelemetry's number and name."""

    number: int
    text: str


INFO: Final = Severity(9, "INFO")
WARN: Final = Severity(13, "WARN")
ERROR: Final = Severity(17, "ERROR")
FATAL: Final = Severity(21, "FATAL")

_TIERS: Final = {XidTier.CRITICAL: FATAL, XidTier.WARNING: WARN, XidTier.APPLICATION: WARN}
_KINDS: Final = {"lost": ERROR, "back": INFO, "reset": WARN, "spinning": WARN, "moving": INFO}
_XIDS: Final = {row.code: row for row in XIDS}


def severity(event: Event) -> Severity:
    """The severity. XIDs: WARN for a program's fault or for wear, FATAL for a lost GPU, ERROR for unknown codes."""
    if event.kind != "xid":
        return _KINDS.get(event.kind, WARN)
    row = _XIDS.get(event.code or 0)
    return ERROR if row is None else _TIERS[row.tier]


def body(event: Event) -> str:
    """One line of text."""
    title, message = event.kind, event.message
    if event.kind == "xid" and event.code is not None:
        title, row = f"XID {event.code}", _XIDS.get(event.code)
        if row is not None and message in ("", title):
            message = row.meaning
    return f"{event.device}: {title}" + (f": {message}" if message not in ("", title) else "")


def name(event: Event) -> str:
    """The record's event name."""
    return names.EVENT_NAMES.get(event.kind, f"gpu_profile.device.{event.kind}")


def attributes(event: Event) -> dict[str, str]:
    """The record's attributes, with the names of the metrics' attributes."""
    values = {names.DEVICE.name: event.device, names.TYPE.name: "gpu"}
    if event.kind == "xid" and event.code is not None:
        values[names.XID.name] = str(event.code)
    return values
