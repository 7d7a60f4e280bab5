"""The devices that the regions of this process run on: the ones they name, else the ones the process uses."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from gpu_profile.catalogue.samples import Device
from gpu_profile.driver.visible import Spec, Visible
from gpu_profile.errors import UsageError
from gpu_profile.recording.rank import rank

_log = logging.getLogger("gpu_profile")

#: Names of devices that are cached once resolved.
_MOST_KEPT: Final = 1_000


class Placement:
    """Resolves names of devices, and finds the default devices of regions that name none.

    `asked`: the user's devices for the whole process; None: not set. Every answer is empty before the first `update`.
    A framework's current device is not used here: it differs by thread, and comes with the thread's stream.
    """

    def __init__(self, asked: Spec | None = None, *, environ: Mapping[str, str] | None = None) -> None:
        self.asked = asked
        #: UUIDs of the named devices. Replaced as a whole, because the sampler's thread reads it.
        self._named: frozenset[str] = frozenset()
        #: The devices of regions that name none.
        self.defaults: tuple[Device, ...] = ()
        #: How the defaults were chosen, or why there are none.
        self.reason = "the driver has not listed its devices yet"
        #: Increases whenever an answer may have changed.
        self.version = 0
        self._environ = os.environ if environ is None else environ
        #: This process's rank by its launcher's environment; None without a launcher.
        self.rank = rank(self._environ)
        self._listed: tuple[Device, ...] = ()
        self._visible = Visible((), self._environ)
        self._resolved: dict[Hashable, tuple[Device, ...]] = {}
        #: By name: why it does not resolve.
        self._unresolved: dict[Hashable, str] = {}
        self._used: Sequence[str] = ()
        self._problem = ""
        #: The sampler's thread calls `update`; the joiner's and the user's threads read.
        self._lock = threading.RLock()

    def update(
        self, listed: Sequence[Device], used: Sequence[str] | None = None, *, simulated: bool = False, driver: str = ""
    ) -> None:
        """Set the devices that the driver lists. `used`: UUIDs of the ones that list this process; None: unknown.

        `simulated`: there is no CUDA. Unless the environment decides, the GPUs without MIG instances are visible.
        `driver`: its name, for the reason if it lists none.
        """
        with self._lock:
            if not listed:
                self.reason = f"the driver {driver} lists no devices"
            self._update(listed, used, simulated)

    def _update(self, listed: Sequence[Device], used: Sequence[str] | None, simulated: bool) -> None:
        if tuple(listed) != self._listed:
            self._listed = tuple(listed)
            self._visible = Visible(self._listed, self._environ, simulated=simulated)
            self._resolved.clear()
            self._unresolved.clear()
            self.version += 1
        if used is not None:
            self._used = used
        before, self.defaults = self.defaults, tuple(self._defaults())
        if self.defaults != before:
            self.version += 1
        if self.defaults != before and self.defaults:
            _log.info("gpu-profile: regions are on %s: %s", ", ".join(d.uuid for d in self.defaults), self.reason)

    def _defaults(self) -> Sequence[Device]:
        if not self._listed:
            return ()
        if self.asked is not None:
            try:
                devices = self._visible.resolve(self.asked)
            except UsageError as error:
                self._complain(str(error))
                self.reason = str(error)
                return ()
            self.reason = "named by the program"
            return devices
        local_rank = None if self.rank is None else self.rank.local_rank
        devices, self.reason = self._visible.defaults(self._used, local_rank=local_rank)
        if not devices:
            self._complain(self.reason)
        return devices

    def add(self, uuids: Iterable[str]) -> bool:
        """Have these devices read too. Returns whether any of them is new."""
        before = self._named
        self._named = before | set(uuids)
        return self._named != before

    @property
    def read(self) -> set[str]:
        """UUIDs of the devices to read: the defaults and the named ones."""
        return {device.uuid for device in self.defaults} | self._named

    def has(self, device: Device) -> bool:
        """Whether a device is read."""
        return device in self.defaults or device.uuid in self._named

    def of(self, device: Hashable) -> tuple[Device, ...]:
        """The devices of a region that names `device`, the defaults for None. Empty if the name does not resolve."""
        if device is None:
            return self.defaults
        with self._lock:
            return self._look_up(device) if self._listed else ()

    def _look_up(self, device: Hashable) -> tuple[Device, ...]:
        devices = self._resolved.get(device)
        if devices is None:
            try:
                devices = tuple(self._visible.resolve(cast("Any", device)))
            except (UsageError, TypeError, ValueError) as error:
                self._complain(str(error))
                devices = ()
                if len(self._unresolved) < _MOST_KEPT:
                    self._unresolved[device] = str(error)
            if len(self._resolved) < _MOST_KEPT:
                self._resolved[device] = devices
        return devices

    def why(self, device: Hashable) -> str:
        """Why a region that names `device` is on no device."""
        return self._unresolved.get(device, self.reason)

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            _log.warning("gpu-profile: regions are not joined: %s", problem)
        self._problem = problem
