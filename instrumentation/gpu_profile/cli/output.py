"""Destinations of results besides the terminal: a file, or an open descriptor."""

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

    The constructor checks that it is writable, else UsageError. The data are written at the end. Until `write`, an
    existing file keeps its content. `close` removes a file that was created but never written. Child processes do not
    inherit a descriptor, so its reader sees the end.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self._made: Path | None = None
        self._path: Path | None = None
        match = re.fullmatch(r"fd:(\d+)", "fd:1" if target == "-" else target)
        try:
            self._fd = self._descriptor(int(match[1])) if match else self._open(Path(target))
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
                return None  # opening a pipe blocks until it has a reader: `write` opens it
        except FileNotFoundError:
            self._made = path
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def write(self, data: bytes) -> str:
        """Replace the content. Returns the reason of a failure, or an empty text."""
        try:
            if self._fd is None and self._path is not None:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            if self._path is not None and self._fd is not None:
                with suppress(OSError):  # pipes and devices cannot be truncated
                    os.ftruncate(self._fd, 0)
            rest = memoryview(data)
            while rest and self._fd is not None:
                rest = rest[os.write(self._fd, rest) :]
        except BrokenPipeError:
            return ""  # the reader has closed it
        except OSError as error:
            return f"{self.target}: cannot be written: {_reason(error)}"
        self._made = None
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file or descriptor. A second call has no effect."""
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
