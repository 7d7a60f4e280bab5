"""The log records that tell what happens to devices: their names and attributes."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.attributes import Attribute

#: Kinds of `samples.Event` that are known, by the name of their record.
EVENT_NAMES: Final = {kind: f"gpu_profile.device.{kind}" for kind in ("xid", "lost", "back", "reset")}

DEVICE: Final = Attribute("hw.id", "string", "UUID of the device")
TYPE: Final = Attribute("hw.type", "string", "`gpu`")
XID: Final = Attribute("nvidia.gpu.xid", "string", "Code of an XID error, as the metric's series have it")
TRACE_IDS: Final = Attribute(
    "gpu_profile.trace.ids", "string[]", "Every trace that ran on the device, where there was more than one"
)

EVENT_ATTRIBUTES: Final[tuple[Attribute, ...]] = (DEVICE, TYPE, XID, TRACE_IDS)
