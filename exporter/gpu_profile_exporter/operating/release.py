"""Releases the GPUs of a running exporter, over a socket that only its user and root may use."""

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

#: The longest release at a time: after a forgotten one, the GPUs are read again.
LONGEST_S: Final = 3600.0
_ANSWER_S: Final = 10.0
_LINE: Final = 64
_ANSWER: Final = 256
_NAME: Final = "gpu-profile-exporter-{}.sock"


class ReleaseSocket:
    """Listens for `release SECONDS`, and answers once the GPUs are released."""

    def __init__(self, listening: socket.socket, path: Path, release: Callable[[float], bool]) -> None:
        self._listening = listening
        self._path = path
        self._release = release
        self._thread = threading.Thread(target=self._run, name="gpu-profile-release", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, port: int, release: Callable[[float], bool]) -> ReleaseSocket | None:
        """Listen. None, with a line in the log, if no socket can be made.

        Removes the sockets of this user's killed exporters in the same directory.
        """
        listening = socket.socket(socket.AF_UNIX)
        path = Path()
        try:
            path = runtime.usable() / _NAME.format(port)
            runtime.sweep(path.parent, _NAME.format("*"))
            if os.path.lexists(path):
                raise FileExistsError(0, "a file exists there already")
            # Under another name until it listens: else another exporter's sweep could remove it as dead.
            draft = path.with_name(f".{path.name}.{os.getpid()}")
            # On Linux the socket's file gets this mode, even if another thread changes the umask.
            os.fchmod(listening.fileno(), 0o600)
            listening.bind(os.fspath(draft))
            listening.listen(4)
            draft.rename(path)
        except OSError as error:
            listening.close()
            problem = runtime.reason(path, error) if path.name else error
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
                        _log.warning("refused a release to user %d, who is neither this exporter's user nor root", uid)
                        continue
                    connection.settimeout(_ANSWER_S)
                    connection.sendall(self._answer(connection.recv(_LINE)))
                except OSError as error:
                    _log.debug("the connection of a release request failed: %s", error)

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
        except Exception as error:  # noqa: BLE001 - the socket must still answer later requests
            _log.exception("releasing the GPUs failed")
            return f"failed: {error}\n".encode()[:_ANSWER]

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


def ask(port: int, seconds: float) -> str:
    """Ask the exporter on `port` to release the GPUs for this time. Its answer; UsageError if none can be reached."""
    problems = []
    me = os.geteuid()
    for directory in (*runtime.given(), *runtime.own(), runtime.SERVICE_DIRECTORY):
        path = directory / _NAME.format(port)
        try:
            # Root also trusts a service that runs as any user, because only root can make a directory in /run.
            service = me == 0 and directory == runtime.SERVICE_DIRECTORY
            owner = runtime.owner(directory, None if service else (me, 0))
            return _ask(path, seconds, (me, 0, owner))
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(runtime.reason(path, error))
    problem = "; ".join(problems) or "there is no socket for it"
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
    """Release the GPUs of the running exporter, to reset one, change its MIG instances or unload the driver.

    Returns once no process of the exporter has a GPU open. The exporter opens them again when the time is over.
    """
    answer = ask(port, seconds)
    if answer != "released":
        click.echo(answer, err=True)
        return 1
    click.echo(f"released for {seconds:g} s")
    return 0
