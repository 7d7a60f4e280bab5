"""Which GPUs there are by the kernel. NVML lists none that came after it was started."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

#: The kernel driver has a directory for each GPU here, named by its PCI bus. It is there while the driver is loaded.
_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_FILES: Final = Path("/dev")
_FILE: Final = re.compile(r"nvidia[0-9]+")


def listed(gpus: Path = _GPUS, files: Path = _FILES) -> frozenset[str] | None:
    """What the kernel's driver has: GPUs by PCI bus, and their device files. None where that cannot be seen.

    A GPU can be opened once it has a file, which comes a moment after its directory.
    """
    try:
        found = os.listdir(gpus)  # noqa: PTH208 - names alone
    except OSError:
        return None
    with suppress(OSError):
        found += filter(_FILE.fullmatch, os.listdir(files))  # noqa: PTH208
    return frozenset(found)


class Presence:
    """Which GPUs have come, by the kernel's list or, where it cannot be seen, by how many an NVML lists."""

    def __init__(self) -> None:
        #: Whether the kernel's list can be seen.
        self.visible = True
        self._there: frozenset[str] | None = None

    def look(self) -> frozenset[str]:
        """What has come to the kernel's list since the last look."""
        there = listed()
        if self.visible != (there is not None):
            # The two ways have different names for the same GPU.
            self.visible, self._there = not self.visible, None
        return frozenset() if there is None else self._new(there)

    def counted(self, count: int, known: int) -> frozenset[str]:
        """What has come since the last count, before the first one beside the GPUs that are known."""
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
