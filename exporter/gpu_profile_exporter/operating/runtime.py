"""Directories for sockets in which no other user can replace a socket."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

#: The systemd unit's runtime directory, for commands that do not run in its environment.
SERVICE_DIRECTORY: Final = Path("/run/gpu-profile-exporter")
#: Root's own. Only root can make a directory in /run.
ROOT_DIRECTORY: Final = Path("/run/gpu-profile")


def given() -> list[Path]:
    """The directories that systemd makes for a service (RUNTIME_DIRECTORY) or a session (XDG_RUNTIME_DIR)."""
    # A service may have several, which systemd sorts.
    services = os.environ.get("RUNTIME_DIRECTORY", "").split(":")
    service = str(SERVICE_DIRECTORY) if str(SERVICE_DIRECTORY) in services else services[0]
    return [Path(path) for path in (service, os.environ.get("XDG_RUNTIME_DIR", "").partition(":")[0]) if path]


def own() -> Iterator[Path]:
    """This user's own directories, made when needed: for root also in /run, for all in the temporary directory."""
    if os.geteuid() == 0:
        yield ROOT_DIRECTORY
    import tempfile  # takes 1 MiB, and root's is nearly always the first

    with suppress(OSError):  # a read-only root may have no temporary directory
        yield Path(tempfile.gettempdir()) / f"gpu-profile-{os.geteuid()}"


def usable() -> Path:
    """The first of `given` and `own` to which only this user can write. OSError with the reasons if there is none."""
    problems = []
    for path in chain(given(), own()):
        try:
            if path in own():
                with suppress(FileExistsError):
                    path.mkdir(mode=0o700)
            owner(path, (os.geteuid(),))
        except OSError as error:
            problems.append(reason(path, error))
        else:
            return path
    raise OSError("; ".join(problems) or "no directory for its socket")


def owner(path: Path, allowed: tuple[int, ...] | None) -> int:
    """The user that owns a directory. OSError if it is not one of `allowed`, or others may write to the directory."""
    # A link in the temporary directory could belong to anybody. systemd's own directories may be links.
    status = path.stat() if path in (*given(), SERVICE_DIRECTORY) else path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(0, "this is no directory")
    if allowed is not None and status.st_uid not in allowed:
        raise PermissionError(0, f"the directory belongs to user {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(0, "other users may write to the directory")
    return status.st_uid


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket, from the kernel (SO_PEERCRED, unix(7))."""
    _, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def sweep(directory: Path, pattern: str) -> None:
    """Remove this user's sockets without a listening process."""
    for path in directory.glob(pattern):
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid() and not _listens(path):
                path.unlink()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # its queue is full
            return True
    return True


def reason(path: Path, error: OSError) -> str:
    """A path and its error, for a message."""
    return f"{path}: {error.strerror or error}"
