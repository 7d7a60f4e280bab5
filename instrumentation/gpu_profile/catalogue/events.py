"""The log records of devices' events: their names and attributes."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.attributes import Attribute

#: The kinds of `samples.Event` and the names of their records.
EVENT_NAMES: Final = {
    kind: f"gpu_profile.device.{kind}" for kind in ("xid", "lost", "back", "reset", "spinning", "moving")
}

DEVICE: Final = Attribute("hw.id", "string", "UUID of the device")
TYPE: Final = Attribute("hw.type", "string", "`gpu`")
XID: Final = Attribute("nvidia.gpu.xid", "string", "Code of an XID error, as in the metric's series")
TRACE_IDS: Final = Attribute(
    "gpu_profile.trace.ids", "string[]", "Every trace with spans on the device, if there was more than one"
)

EVENT_ATTRIBUTES: Final[tuple[Attribute, ...]] = (DEVICE, TYPE, XID, TRACE_IDS)
