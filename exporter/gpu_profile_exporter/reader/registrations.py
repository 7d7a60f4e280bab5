"""Selects the GPUs that the listener registers for events: registering one that hangs would block it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpu_profile.catalogue.samples import DeviceKind
from gpu_profile_exporter.reader.intake import DeviceReports

#: The pause before a GPU is registered for events again, after the registration hung or crashed.
REGISTER_PAUSE_S: Final = 60.0


class Registrations:
    """The GPUs that answer, except for `REGISTER_PAUSE_S` after a failed registration."""

    def __init__(self) -> None:
        #: The earliest time of the next registration, by NVML index.
        self._not_before: dict[int, float] = {}

    def put_off(self, index: int, now: float) -> None:
        """Delay this GPU, because its registration hangs or has ended the process."""
        self._not_before[index] = now + REGISTER_PAUSE_S

    def due(self, states: Iterable[DeviceReports], now: float) -> dict[int, str]:
        """The GPUs to register now: UUIDs by NVML index."""
        return {
            index: state.device.uuid
            for state in states
            if state.up and state.device.kind is DeviceKind.GPU and (index := state.device.index) is not None
            if now >= self._not_before.get(index, 0.0)
        }
