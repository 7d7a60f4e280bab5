"""The devices of a command: the named ones, else all that CUDA would show to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_profile.catalogue.samples import Device
    from gpu_profile.driver import Driver


def chooser(specs: Sequence[str], *, visible: bool) -> Callable[[Driver, Sequence[Device]], Sequence[Device]]:
    """A function that picks devices from the ones that a driver lists: those in `specs`, without any all of them.

    With `visible`, the default is the devices in CUDA_VISIBLE_DEVICES, if it is set. The function raises UsageError for
    missing devices.
    """

    def choose(driver: Driver, devices: Sequence[Device]) -> Sequence[Device]:
        from gpu_profile.driver import is_simulated
        from gpu_profile.driver.visible import VARIABLE, Visible
        from gpu_profile.errors import UsageError

        seen = Visible(devices, os.environ, simulated=is_simulated(driver))
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
