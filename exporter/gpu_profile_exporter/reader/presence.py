"""Detects added and lost GPUs, and schedules the reloads of a library whose version is not the driver's.

NVML lists only the GPUs that were present when it was started. It does not list one again that was removed meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

#: While the kernel driver is loaded, it has a directory for each GPU here, named by its PCI bus.
_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_FILES: Final = Path("/dev")
_FILE: Final = re.compile(r"nvidia[0-9]+")

#: A device that no reader has listed for this time is lost. A restarted reader needs less, or all devices are down.
UNREAD_S: Final = 5.0
#: NVML is restarted for a lost GPU after this pause. The pause doubles each time, up to the longest.
REVIVE_S: Final = 5.0
LONGEST_REVIVE_S: Final = 300.0
#: A library of another version than the driver is reloaded after this time, and more rarely after `_STALE_FOR_S`.
STALE_S: Final = 3.0
STALE_LATER_S: Final = 30.0
_STALE_FOR_S: Final = 600.0


def listed(gpus: Path = _GPUS, files: Path = _FILES) -> frozenset[str] | None:
    """The PCI buses of the kernel driver's GPUs, and their device files. None where they are not visible.

    A GPU can be opened once its device file exists, which is created shortly after its directory.
    """
    try:
        names = os.listdir(gpus)  # noqa: PTH208 - names alone
    except OSError:
        return None
    with suppress(OSError):
        names += filter(_FILE.fullmatch, os.listdir(files))  # noqa: PTH208
    return frozenset(names)


class Presence:
    """Detects added GPUs by the kernel's list. Where that is not visible, by counts from newly started NVMLs."""

    def __init__(self) -> None:
        #: Whether the kernel's list is visible.
        self.visible = True
        self._last: frozenset[str] | None = None

    def look(self) -> frozenset[str]:
        """The names added to the kernel's list since the last call."""
        present = listed()
        if self.visible != (present is not None):
            # The two methods have different names for the same GPU.
            self.visible, self._last = not self.visible, None
        return frozenset() if present is None else self._added(present)

    def counted(self, count: int, expected: int) -> frozenset[str]:
        """The numbers of the GPUs added since the last count. The first count is compared with `expected`."""
        if self.visible:
            return frozenset()
        if self._last is None:
            self._last = _numbers(expected)
        return self._added(_numbers(count))

    def _added(self, present: frozenset[str]) -> frozenset[str]:
        added = frozenset() if self._last is None else present - self._last
        self._last = present
        return added


def _numbers(count: int) -> frozenset[str]:
    return frozenset(map(str, range(count)))


class Losses:
    """Times devices without a reader, and the restarts of NVML that look for lost GPUs."""

    def __init__(self) -> None:
        self._unread_since: dict[str, float] = {}
        #: The time of NVML's next restart for a GPU, and the pause after that.
        self._revive: dict[str, tuple[float, float]] = {}

    def unread(self, unread: Collection[str], now: float) -> list[str]:
        """The devices of `unread` that have had no reader for longer than `UNREAD_S`."""
        self._unread_since = {uuid: self._unread_since.get(uuid, now) for uuid in unread}
        return [uuid for uuid, since in self._unread_since.items() if now - since > UNREAD_S]

    def revive(self, lost: Iterable[str], now: float) -> bool:
        """True if NVML should be restarted now for one of the lost GPUs."""
        self._revive = {uuid: self._revive.get(uuid, (now + REVIVE_S, 2 * REVIVE_S)) for uuid in lost}
        due = [uuid for uuid, (at, _) in self._revive.items() if now >= at]
        for uuid in due:
            pause = self._revive[uuid][1]
            self._revive[uuid] = now + pause, min(2 * pause, LONGEST_REVIVE_S)
        return bool(due)


class StaleLibrary:
    """Schedules the reloads of the driver's library after a version mismatch."""

    def __init__(self) -> None:
        self._since: float | None = None

    def due(self, stale_since: float | None, now: float, *, well: bool) -> bool:
        """True if a process should reload the library now. `stale_since`: when it reported the mismatch, None if it
        did not. `well`: a driver answers nevertheless, which restarts the phase of frequent reloads."""
        if stale_since is None:
            return False
        if self._since is None or well:
            self._since = now
        return now - stale_since > (STALE_S if now - self._since < _STALE_FOR_S else STALE_LATER_S)
