"""How a running exporter is told to let go of the GPUs: a socket that only its own user and root may use."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from gpu_profile.errors import UsageError
from gpu_profile_exporter.logs import one_line
from gpu_profile_exporter.operating import runtime

_log = logging.getLogger("gpu_profile_exporter")

#: The longest that GPUs are let go of at a time: who forgets gets them read again.
LONGEST_S: Final = 3600.0
_ANSWER_S: Final = 10.0
_LINE: Final = 64
_ANSWER: Final = 256
_NAME: Final = "gpu-profile-exporter-{}.sock"


class ReleaseSocket:
    """Listens for `release SECONDS`, and answers once that has been done. Without a place for it, there is none."""

    def __init__(self, listening: socket.socket, path: Path, release: Callable[[float], bool]) -> None:
        self._listening = listening
        self._path = path
        self._release = release
        self._thread = threading.Thread(target=self._run, name="gpu-profile-release", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, port: int, release: Callable[[float], bool]) -> ReleaseSocket | None:
        """Listen; None, with a line in the log, where no socket can be made.

        Sockets in the same directory that exporters of this user left, which were killed, are removed.
        """
        listening = socket.socket(socket.AF_UNIX)
        path = Path()
        try:
            path = runtime.usable() / _NAME.format(port)
            runtime.sweep(path.parent, _NAME.format("*"))
            if os.path.lexists(path):
                raise FileExistsError(0, "there is something already")
            # Under another name until it listens: else another exporter's sweep could take it for a dead one.
            draft = path.with_name(f".{path.name}.{os.getpid()}")
            # On Linux the socket's file gets this mode, whatever other threads do to the umask.
            os.fchmod(listening.fileno(), 0o600)
            listening.bind(os.fspath(draft))
            listening.listen(4)
            draft.rename(path)
        except OSError as error:
            listening.close()
            problem = runtime.told(path, error) if path.name else error
            _log.info("the command release cannot reach this exporter (%s); SIGUSR1 can", problem)
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
                    uid = runtime.peer_uid(connection)
                    if uid not in (0, os.geteuid()):
                        _log.warning("user %d asked for a release, and is neither this exporter's nor root", uid)
                        continue
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
        except Exception as error:  # noqa: BLE001 - one defect must not end the others' turn
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
    problems = []
    me = os.geteuid()
    for directory in (*runtime.given(), *runtime.own(), runtime.SERVICE_DIRECTORY):
        path = directory / _NAME.format(port)
        try:
            # Root also asks a service, which may run as any user: only root can make a directory in /run.
            service = me == 0 and directory == runtime.SERVICE_DIRECTORY
            owner = runtime.owner(directory, None if service else (me, 0))
            return _ask(path, seconds, (me, 0, owner))
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(runtime.told(path, error))
    problem = "; ".join(problems) or "there is no socket of one"
    raise UsageError(
        f"no exporter of this user answers on port {port} ({problem}): name its port with --port, or send it SIGUSR1"
    )


def _ask(path: Path, seconds: float, trusted: tuple[int, ...]) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_S)
        connection.connect(os.fspath(path))
        uid = runtime.peer_uid(connection)
        if uid not in trusted:
            raise PermissionError(0, f"user {uid} listens there")
        connection.sendall(f"release {seconds:g}\n".encode())
        return one_line(connection.recv(_ANSWER).decode("utf-8", "replace").strip())


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
