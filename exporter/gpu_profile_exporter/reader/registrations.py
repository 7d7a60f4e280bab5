"""Which GPUs the listener is to hear the events of: to register one that hangs would block it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpu_profile.catalogue.samples import DeviceKind
from gpu_profile_exporter.reader.intake import DeviceReports

#: A GPU whose registration for events hangs or crashes is registered again after this long.
REGISTER_PAUSE_S: Final = 60.0


class Registrations:
    """The GPUs that answer, but those whose registration failed a moment ago."""

    def __init__(self) -> None:
        #: Until when the events of these GPUs, by NVML index, are not registered for.
        self._until: dict[int, float] = {}

    def put_off(self, index: int, now: float) -> None:
        """The registration of this GPU hangs, or ended its process."""
        self._until[index] = now + REGISTER_PAUSE_S

    def due(self, states: Iterable[DeviceReports], now: float) -> dict[int, str]:
        """UUIDs by NVML index."""
        return {
            index: state.device.uuid
            for state in states
            if state.up and state.device.kind is DeviceKind.GPU and (index := state.device.index) is not None
            if now >= self._until.get(index, 0.0)
        }
