"""Temporary directories of simulated nodes. They are removed after their process has ended, even if it was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Locked while any process with the directory lives. The kernel releases the lock with the last of them.
_OWNER: Final = "owner.lock"


class TemporaryFolder:
    """A new directory below the system's temporary directory, with a name that begins with `prefix`.

    Before, removes directories of the same prefix and user, if their processes have ended without `remove`. `fd` is the
    lock: a process that inherits it keeps the directory too. OSError if no directory can be created.
    """

    def __init__(self, prefix: str = "gpu-profile-simulated-") -> None:
        _sweep(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        # The file gets its name once it is locked, so that no sweep can lock it first.
        draft = self.path / f".{_OWNER}"
        self.fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        draft.rename(self.path / _OWNER)

    def remove(self) -> None:
        """Remove the directory with its content. Removing twice is fine."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _sweep(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # in use, already removed, or without a lock and thus of another program
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            fd = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(fd)
