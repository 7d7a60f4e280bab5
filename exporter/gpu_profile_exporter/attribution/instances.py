"""Keeps the windows and the prices of all GPUs with MIG instances."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile_exporter.attribution.instance_windows import REFUSED, EnergyParts, GpuWindows

if TYPE_CHECKING:
    from gpu_profile_exporter.attribution.instance_prices import InstancePrices


class InstanceEnergy:
    """Shares a GPU's energy out among its MIG instances. One thread calls `take`, another one the other methods."""

    def __init__(self) -> None:
        self._windows: dict[str, GpuWindows] = {}
        self._prices: dict[str, InstancePrices] = {}

    def take(self, device: Device, values: Sequence[int]) -> None:
        """Take a device's samples: number of the signal, start in ns, end in ns and value, for each one in turn."""
        if device.kind is DeviceKind.MIG and device.parent is not None:
            windows = self._windows.get(device.parent)
            if windows is None:
                windows = self._windows[device.parent] = GpuWindows()
            windows.add_activity(device.uuid, values)
        elif (windows := self._windows.get(device.uuid)) is not None:
            windows.add_energy(values)

    def settle(self, devices: Iterable[Device]) -> None:
        """Add the windows that are complete now to the prices. `devices`: all devices."""
        instances: defaultdict[str, list[str]] = defaultdict(list)
        for device in devices:
            if device.kind is DeviceKind.MIG and device.parent is not None:
                instances[device.parent].append(device.uuid)
        for uuid, windows in list(self._windows.items()):
            # One instance needs no shares.
            settled = windows.settled(instances[uuid]) if len(instances[uuid]) > 1 else []
            if settled:
                prices = self._prices.get(uuid)
                if prices is None:
                    # Imported here because numpy takes 15 MB of RAM.
                    from gpu_profile_exporter.attribution.instance_prices import InstancePrices

                    prices = self._prices[uuid] = InstancePrices()
                prices.add(settled)
            elif not instances[uuid]:
                del self._windows[uuid]
                self._prices.pop(uuid, None)

    def parts(self, gpu: str, since_ns: int, until_ns: int, groups: Mapping[str, Hashable]) -> EnergyParts:
        """The parts of a GPU's energy of `(since, until]`, from the windows in it.

        `groups`: the group of each instance. Instances of one group are not separated.
        """
        prices = self._prices.get(gpu)
        return prices.parts(since_ns, until_ns, groups) if prices is not None else REFUSED
