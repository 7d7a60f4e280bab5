"""Folders for simulated nodes that nobody asked to keep. They go with their process, also with one that was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Locked for as long as a process lives that has the folder. The kernel ends the lock with the last of them.
_OWNER: Final = "owner.lock"


class TemporaryFolder:
    """A new folder in the temporary directory, whose name begins with `prefix`.

    Making one removes those of the same prefix and user whose processes have ended without `remove`. `fd` is the lock:
    a process that inherits it has the folder too. OSError where no folder can be made.
    """

    def __init__(self, prefix: str = "gpu-profile-simulated-") -> None:
        _sweep(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        # It gets its name once it is locked: no sweep ever meets it unlocked.
        draft = self.path / f".{_OWNER}"
        self.fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        draft.rename(self.path / _OWNER)

    def remove(self) -> None:
        """Remove it with all that is in it. It may be called more than once."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _sweep(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # it is in use, or gone, or has no lock and is somebody's own
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            fd = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(fd)
