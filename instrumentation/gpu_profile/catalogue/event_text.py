"""What a log record says of an event of a device: how bad it is, in which words, with which attributes."""

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
_KINDS: Final = {"lost": ERROR, "back": INFO, "reset": WARN}
_XIDS: Final = {row.code: row for row in XIDS}


def severity(event: Event) -> Severity:
    """How bad it is: what a program did wrong is a warning, what takes a GPU away is worse, what is unknown between."""
    if event.kind != "xid":
        return _KINDS.get(event.kind, WARN)
    known = _XIDS.get(event.code or 0)
    return ERROR if known is None else _TIERS[known.tier]


def body(event: Event) -> str:
    """One line for people."""
    what, said = event.kind, event.message
    if event.kind == "xid" and event.code is not None:
        what, known = f"XID {event.code}", _XIDS.get(event.code)
        if known is not None and said in ("", what):
            said = known.meaning
    return f"{event.device}: {what}" + (f": {said}" if said not in ("", what) else "")


def name(event: Event) -> str:
    """The record's event name."""
    return names.EVENT_NAMES.get(event.kind, f"gpu_profile.device.{event.kind}")


def attributes(event: Event) -> dict[str, str]:
    """The record's attributes, named as those of the metrics are."""
    found = {names.DEVICE.name: event.device, names.TYPE.name: "gpu"}
    if event.kind == "xid" and event.code is not None:
        found[names.XID.name] = str(event.code)
    return found
