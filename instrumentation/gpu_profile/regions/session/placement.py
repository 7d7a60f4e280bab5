"""On which devices the regions of this process run: what they name, or else what the process uses."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.driver.visible import VARIABLE, Spec, Visible
from gpu_profile.errors import UsageError
from gpu_profile.recording.rank import rank

_log = logging.getLogger("gpu_profile")

#: Names of devices whose meaning is kept.
_MOST_KEPT: Final = 1_000


class Placement:
    """Turns names of devices into devices, and knows those that a region is on that names none.

    `asked` is what the user said for the whole process, None for nothing. Nothing is known before the first `update`.
    A framework's current device is not asked for: it is the calling thread's, and its stream tells it.
    """

    def __init__(self, asked: Spec | None = None, *, environ: Mapping[str, str] | None = None) -> None:
        self.asked = asked
        #: UUIDs of the devices that were named; replaced as a whole, as the sampler's thread reads it.
        self._named: frozenset[str] = frozenset()
        #: The devices of regions that name none.
        self.defaults: tuple[Device, ...] = ()
        #: How they are known, or why there are none, in words.
        self.reason = "the driver has not said yet which devices there are"
        #: Grows whenever an answer may have changed.
        self.version = 0
        self._environ = os.environ if environ is None else environ
        #: What the launcher says of this process; None where there is none.
        self.rank = rank(self._environ)
        self._known: tuple[Device, ...] = ()
        self._visible = Visible((), self._environ)
        self._found: dict[Hashable, tuple[Device, ...]] = {}
        self._used: Sequence[str] = ()
        self._problem = ""
        #: The sampler's thread updates, the join's and the user's ask.
        self._lock = threading.RLock()

    def update(self, known: Sequence[Device], used: Sequence[str] | None = None, *, simulated: bool = False) -> None:
        """`known` is all that the driver lists; `used`, if it can be told, on which of them it lists this process.

        On `simulated` devices no CUDA decides what comes first: GPUs that are not cut do, unless the environment says
        otherwise.
        """
        with self._lock:
            self._update(known, used, simulated)

    def _update(self, known: Sequence[Device], used: Sequence[str] | None, simulated: bool) -> None:
        if tuple(known) != self._known:
            self._known = tuple(known)
            cut = {device.parent for device in known}
            gpus = (device.uuid for device in known if device.kind is DeviceKind.GPU)
            whole = ",".join(uuid for uuid in gpus if uuid not in cut)
            shown = {VARIABLE: whole} if simulated and whole else {}
            self._visible = Visible(self._known, {**shown, **self._environ})
            self._found.clear()
            self.version += 1
        if used is not None:
            self._used = used
        before, self.defaults = self.defaults, tuple(self._defaults())
        if self.defaults != before:
            self.version += 1
        if self.defaults != before and self.defaults:
            _log.info("gpu-profile: regions are on %s: %s", ", ".join(d.uuid for d in self.defaults), self.reason)

    def _defaults(self) -> Sequence[Device]:
        if not self._known:
            return ()
        if self.asked is not None:
            try:
                found = self._visible.resolve(self.asked)
            except UsageError as error:
                self._complain(str(error))
                self.reason = str(error)
                return ()
            self.reason = "named by the program"
            return found
        local_rank = None if self.rank is None else self.rank.local_rank
        found, self.reason = self._visible.defaults(self._used, local_rank=local_rank)
        if not found:
            self._complain(self.reason)
        return found

    def add(self, uuids: Iterable[str]) -> bool:
        """Have these devices read too; whether there is a new one among them."""
        before = self._named
        self._named = before | set(uuids)
        return self._named != before

    @property
    def read(self) -> set[str]:
        """UUIDs of the devices that are read: those of regions that name none, and those that were named."""
        return {device.uuid for device in self.defaults} | self._named

    def has(self, device: Device) -> bool:
        """Whether a device is read."""
        return device in self.defaults or device.uuid in self._named

    def of(self, device: Hashable) -> tuple[Device, ...]:
        """The devices of a region that names `device`; none if there is no such one."""
        if device is None:
            return self.defaults
        with self._lock:
            return self._look_up(device) if self._known else ()

    def _look_up(self, device: Hashable) -> tuple[Device, ...]:
        found = self._found.get(device)
        if found is None:
            try:
                found = tuple(self._visible.resolve(cast("Any", device)))
            except (UsageError, TypeError, ValueError) as error:
                self._complain(str(error))
                found = ()
            if len(self._found) < _MOST_KEPT:
                self._found[device] = found
        return found

    def why(self, device: Hashable) -> str:
        """Why a region that names `device` is on none."""
        return self.reason if device is None else self._problem or self.reason

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            _log.warning("gpu-profile: regions are not joined: %s", problem)
        self._problem = problem
