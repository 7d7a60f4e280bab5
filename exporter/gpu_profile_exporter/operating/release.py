"""How a running exporter is told to let go of the GPUs: a socket of its own, which only its user may open."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from gpu_profile.errors import UsageError

_log = logging.getLogger("gpu_profile_exporter")

#: The longest that GPUs are let go of at a time: who forgets gets them read again.
LONGEST_S: Final = 3600.0
_ANSWER_S: Final = 10.0
_LINE: Final = 64
_ANSWER: Final = 256
#: The systemd unit's runtime directory.
SERVICE_DIRECTORY: Final = "/run/gpu-profile-exporter"


def socket_paths(port: int) -> list[Path]:
    """Where the exporter that serves on `port` may listen: in a runtime directory, or the temporary one. Best first."""
    name = f"gpu-profile-exporter-{port}.sock"
    given = [os.environ.get(variable, "").partition(":")[0] for variable in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR")]
    paths = [Path(found) / name for found in (*given, SERVICE_DIRECTORY) if found and Path(found).is_dir()]
    with contextlib.suppress(OSError):  # a read-only root may have none
        paths.append(Path(tempfile.gettempdir()) / f"gpu-profile-exporter-{os.getuid()}-{port}.sock")
    return paths


class Door:
    """Listens for `release SECONDS`, and answers once that has been done. Without a place for it, there is none."""

    def __init__(self, listening: socket.socket, path: Path, release: Callable[[float], bool]) -> None:
        self._listening = listening
        self._path = path
        self._release = release
        self._thread = threading.Thread(target=self._run, name="gpu-profile-release", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, port: int, release: Callable[[float], bool]) -> Door | None:
        """Listen; None, with a line in the log, where no socket can be made."""
        paths = socket_paths(port)
        if not paths:
            _log.info("the command release cannot reach this exporter: no directory for its socket; SIGUSR1 can")
            return None
        path = paths[0]
        listening = socket.socket(socket.AF_UNIX)
        try:
            # What an exporter that was killed left behind; nobody else's is ever taken away.
            with contextlib.suppress(FileNotFoundError):
                found = path.lstat()
                if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.getuid():
                    path.unlink()
            before = os.umask(0o177)
            try:
                listening.bind(os.fspath(path))
            finally:
                os.umask(before)
            listening.listen(4)
        except OSError as error:
            listening.close()
            _log.info("the command release cannot reach this exporter (%s: %s); SIGUSR1 can", path, error)
            return None
        return cls(listening, path, release)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.settimeout(_ANSWER_S)
                    connection.sendall(self._answer(connection.recv(_LINE)))
                except OSError as error:
                    _log.debug("who asked for a release went away: %s", error)

    def _answer(self, line: bytes) -> bytes:
        word, _, number = line.decode("ascii", "replace").strip().partition(" ")
        try:
            seconds = float(number)
        except ValueError:
            seconds = -1.0
        if word != "release" or not 0 <= seconds <= LONGEST_S:
            return f"write release SECONDS, at most {LONGEST_S:.0f}\n".encode()
        try:
            return b"released\n" if self._release(seconds) else b"held: a call still hangs in the driver\n"
        except Exception as error:  # noqa: BLE001 - one defect must not shut the door
            _log.exception("letting go of the GPUs failed")
            return f"failed: {error}\n".encode()[:_ANSWER]

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


def ask(port: int, seconds: float) -> str:
    """Have the exporter on `port` let go of the GPUs for so long; its answer. UsageError if none can be reached."""
    problem = "no directory for its socket"
    for path in socket_paths(port):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            try:
                connection.connect(os.fspath(path))
                connection.sendall(f"release {seconds:g}\n".encode())
                return connection.recv(_ANSWER).decode("utf-8", "replace").strip()
            except OSError as error:
                problem = f"{path}: {error.strerror or error}"
    raise UsageError(
        f"no exporter of this user answers on port {port} ({problem}): name its port with --port, or send it SIGUSR1"
    )


def _seconds(_: click.Context, __: click.Parameter, value: str) -> float:
    number, unit = value.strip(), 1.0
    if number and number[-1] in "smh":
        number, unit = number[:-1], {"s": 1.0, "m": 60.0, "h": 3600.0}[number[-1]]
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_S:
        raise click.BadParameter(f"{value!r}: write a time such as 60s or 5m, at most 1h")
    return seconds


@click.command()
@click.option("--for", "seconds", default="60s", callback=_seconds, show_default=True, help="For how long; 0s ends it.")
@click.option("--port", default=9400, show_default=True, help="The port on which the exporter serves.")
def release(*, seconds: float, port: int) -> int:
    """Have the running exporter let go of the GPUs, so that one can be reset, cut anew, or the driver unloaded.

    Comes back once nothing of the exporter holds a GPU any more; it takes them up again by itself.
    """
    answer = ask(port, seconds)
    if answer != "released":
        click.echo(answer, err=True)
        return 1
    click.echo(f"released for {seconds:g} s")
    return 0
