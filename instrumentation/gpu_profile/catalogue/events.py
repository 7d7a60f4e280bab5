"""The log records of devices' events and of regions' changes: their names and attributes."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.attributes import Attribute

#: The kinds of `samples.Event` and the names of their records.
EVENT_NAMES: Final = {
    kind: f"gpu_profile.device.{kind}" for kind in ("xid", "lost", "back", "reset", "spinning", "moving")
}

#: The name of the record of a change of a region's regime.
REGIME_CHANGED: Final = "gpu_profile.region.regime_changed"

DEVICE: Final = Attribute("hw.id", "string", "UUID of the device")
TYPE: Final = Attribute("hw.type", "string", "`gpu`")
XID: Final = Attribute("nvidia.gpu.xid", "string", "Code of an XID error, as in the metric's series")
TRACE_IDS: Final = Attribute(
    "gpu_profile.trace.ids", "string[]", "Every trace with spans on the device, if there was more than one"
)

BEFORE: Final = Attribute("gpu_profile.regime.before", "string", "Regime that had held before")
PARTS: Final = Attribute("gpu_profile.regime.parts", "string[]", "The regimes that take turns, if the new one is MIXED")

EVENT_ATTRIBUTES: Final[tuple[Attribute, ...]] = (DEVICE, TYPE, XID, TRACE_IDS, BEFORE, PARTS)
