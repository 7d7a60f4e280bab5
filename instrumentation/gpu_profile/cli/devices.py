"""The devices of a command: the named ones, else all that CUDA would show to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_profile.catalogue.samples import Device


def chooser(specs: Sequence[str], *, visible: bool, driver: str = "") -> Callable[[Sequence[Device]], Sequence[Device]]:
    """A function that picks devices from a driver's: the ones in `specs`, without any all of them.

    With `visible`, the default is the devices in CUDA_VISIBLE_DEVICES, if it is set. The function raises UsageError for
    missing devices. `driver`: the driver's name or specification; simulated devices have ordinals of their own.
    """

    def choose(devices: Sequence[Device]) -> Sequence[Device]:
        from gpu_profile.driver.visible import VARIABLE, Visible, shown
        from gpu_profile.errors import UsageError

        seen = Visible(devices, shown(devices, os.environ, simulated=driver.startswith("simulated")))
        if specs:
            return seen.resolve(specs)
        if visible and devices and VARIABLE in os.environ:
            if not seen.devices:
                raise UsageError(f"no GPU to watch: {seen.reason}; --device nvml:N names one all the same")
            return seen.devices
        return devices

    return choose


def label(device: Device) -> int | str:
    """The name of a device in output: a GPU's index, a MIG instance's UUID."""
    from gpu_profile.catalogue.samples import DeviceKind

    return device.uuid if device.index is None or device.kind is DeviceKind.MIG else device.index
