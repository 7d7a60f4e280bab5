"""Where results go beside the terminal: a file, or a descriptor that is open already."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

from gpu_profile.errors import UsageError


class Output:
    """A file, an open descriptor (`fd:N`) or standard output (`-`).

    Found to be writable when this is made, else UsageError; written at the end. A file that exists keeps what it holds
    until `write`; one that was made for this and never written to is removed by `close`. A descriptor is kept from
    child processes, so that whoever reads it sees its end.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self._made: Path | None = None
        self._path: Path | None = None
        found = re.fullmatch(r"fd:(\d+)", "fd:1" if target == "-" else target)
        try:
            self._fd = self._descriptor(int(found[1])) if found else self._open(Path(target))
        except (OSError, OverflowError, ValueError) as error:
            raise UsageError(f"{target}: cannot be written: {_reason(error)}") from error

    @staticmethod
    def _descriptor(number: int) -> int:
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "open for reading only")
        if number > 2:
            os.set_inheritable(number, False)
        return os.dup(number)

    def _open(self, path: Path) -> int | None:
        self._path = path
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                if path.is_dir():
                    raise IsADirectoryError(None, "Is a directory")
                return None  # a pipe blocks until somebody reads: opened when there is something to read
        except FileNotFoundError:
            self._made = path
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def write(self, data: bytes) -> str:
        """Write all of it, in place of what was there. Returns why it could not be, or an empty text."""
        try:
            if self._fd is None and self._path is not None:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            if self._path is not None and self._fd is not None:
                with suppress(OSError):  # what is no file cannot be cut
                    os.ftruncate(self._fd, 0)
            rest = memoryview(data)
            while rest and self._fd is not None:
                rest = rest[os.write(self._fd, rest) :]
        except BrokenPipeError:
            return ""  # nobody wants to know
        except OSError as error:
            return f"{self.target}: cannot be written: {_reason(error)}"
        self._made = None
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it. Closing twice is fine."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)
        made, self._made = self._made, None
        if made is not None:
            with suppress(OSError):
                made.unlink()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
