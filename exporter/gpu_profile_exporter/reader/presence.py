"""Which GPUs were added, which are lost, and whether the library is the driver's.

NVML lists only the GPUs that were present when it was started. It does not find one again that was removed meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

#: The kernel driver has a directory for each GPU here, named by its PCI bus. It is there while the driver is loaded.
_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_FILES: Final = Path("/dev")
_FILE: Final = re.compile(r"nvidia[0-9]+")

#: A device that no reader has listed for so long is lost. Restarted readers take less, or all devices are down.
UNREAD_S: Final = 5.0
#: For a GPU that stays lost NVML is started anew after so long, then after twice as long each time, up to the longest.
REVIVE_S: Final = 5.0
LONGEST_REVIVE_S: Final = 300.0
#: A library that is not the driver's version is looked up anew this often, and after a while more rarely.
STALE_S: Final = 3.0
STALE_LATER_S: Final = 30.0
_STALE_FOR_S: Final = 600.0


def listed(gpus: Path = _GPUS, files: Path = _FILES) -> frozenset[str] | None:
    """The GPUs of the kernel's driver, by PCI bus, and their device files. None where they are not visible.

    A GPU can be opened once its device file exists, which is created shortly after its directory.
    """
    try:
        found = os.listdir(gpus)  # noqa: PTH208 - names alone
    except OSError:
        return None
    with suppress(OSError):
        found += filter(_FILE.fullmatch, os.listdir(files))  # noqa: PTH208
    return frozenset(found)


class Presence:
    """Detects added GPUs, by the kernel's list or, where it is not visible, by counts from newly started NVMLs."""

    def __init__(self) -> None:
        #: Whether the kernel's list is visible.
        self.visible = True
        self._there: frozenset[str] | None = None

    def look(self) -> frozenset[str]:
        """What was added to the kernel's list since the last call."""
        there = listed()
        if self.visible != (there is not None):
            # The two ways have different names for the same GPU.
            self.visible, self._there = not self.visible, None
        return frozenset() if there is None else self._new(there)

    def counted(self, count: int, known: int) -> frozenset[str]:
        """What was added since the last count; at the first one, compared with the number of known GPUs."""
        if self.visible:
            return frozenset()
        if self._there is None:
            self._there = _numbers(known)
        return self._new(_numbers(count))

    def _new(self, there: frozenset[str]) -> frozenset[str]:
        new = frozenset() if self._there is None else there - self._there
        self._there = there
        return new


def _numbers(count: int) -> frozenset[str]:
    return frozenset(map(str, range(count)))


class Losses:
    """Times devices without a reader, and the restarts of NVML that look for lost GPUs."""

    def __init__(self) -> None:
        self._unread_since: dict[str, float] = {}
        #: When NVML is started anew for a GPU, and the pause after that.
        self._revive: dict[str, tuple[float, float]] = {}

    def unread(self, unread: Collection[str], now: float) -> list[str]:
        """Those of the devices without a reader that have had none for `UNREAD_S`."""
        self._unread_since = {uuid: self._unread_since.get(uuid, now) for uuid in unread}
        return [uuid for uuid, since in self._unread_since.items() if now - since > UNREAD_S]

    def revive(self, lost: Iterable[str], now: float) -> bool:
        """Whether NVML is to be started anew now for one of the lost GPUs."""
        self._revive = {uuid: self._revive.get(uuid, (now + REVIVE_S, 2 * REVIVE_S)) for uuid in lost}
        due = [uuid for uuid, (at, _) in self._revive.items() if now >= at]
        for uuid in due:
            pause = self._revive[uuid][1]
            self._revive[uuid] = now + pause, min(2 * pause, LONGEST_REVIVE_S)
        return bool(due)


class StaleLibrary:
    """When to look up the driver's library anew that was of another version than the driver."""

    def __init__(self) -> None:
        self._since: float | None = None

    def due(self, told_at: float | None, now: float, *, well: bool) -> bool:
        """Whether now is the time, for a process that may have told so; `well`: there is a driver all the same."""
        if told_at is None:
            return False
        if self._since is None or well:
            self._since = now
        return now - told_at > (STALE_S if now - self._since < _STALE_FOR_S else STALE_LATER_S)
