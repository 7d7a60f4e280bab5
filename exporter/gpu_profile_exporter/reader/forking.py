"""The launcher process: it has imported what readers need, and forks one at each request of the exporter.

It runs no thread and loads no driver, so that a fork is a whole copy and holds no GPU; what was imported lies in RAM
once. A reader is forked twice: when the process in between ends, Linux hands the reader over to the exporter, which
waits for one and is a subreaper meanwhile (`prctl(2)`). The exporter is then the parent, as of any process that it
started itself: it learns how the reader ends, takes it along when it ends, and the launcher's end does not matter.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Final

from gpu_profile_exporter import logs
from gpu_profile_exporter.reader.child import run
from gpu_profile_exporter.reader.settings import COUNTER, LISTENER, ReaderSettings

#: The longest request.
_LONGEST: Final = 1 << 16
_PDEATHSIG: Final = 1
_NAME: Final = 15
#: The names under which `ps -o comm` and `top` list these processes, at most 15 characters.
LAUNCHER_NAME: Final = "gpu-launcher"
_NAMES: Final = {LISTENER: "gpu-listener", COUNTER: "gpu-counter"}
_libc: Final = ctypes.CDLL(None)


def main() -> None:
    """The process; its arguments are the descriptor of its socket, and the level and style of the exporter's log. It
    ends when the exporter does."""
    level, style = sys.argv[2:4]
    logs.set_up(level, style)
    # The keeper tells of devices and drivers that come and go.
    logging.getLogger("gpu_profile").setLevel(max(logging.ERROR, logging.getLogger().level))
    logging.getLogger("gpu_profile.driver").setLevel(max(logging.WARNING, logging.getLogger().level))
    # Ctrl-C, and a stop of the service, reach the whole group; the keeper says when it is over.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    # Who started the exporter may have ignored it: then the end of a child cannot be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    exporter = os.getppid()
    if not _bound_to(exporter):
        return
    _call_itself(LAUNCHER_NAME)
    _preload()
    try:
        settings = _serve(socket.socket(fileno=int(sys.argv[1])), exporter)
    except ConnectionError:  # who is at the other end has died
        return
    if settings is not None:
        _call_itself(_NAMES.get(settings.key, "gpu-reader"))
        run(settings)


def _bound_to(parent: int) -> bool:
    """Have this process killed when its parent ends. False if that has ended already."""
    _libc.prctl(_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def _call_itself(name: str) -> None:
    _libc.prctl(_NAME, name.encode())


def _preload() -> None:
    """Import the usual driver, and move all that is there out of the collector's sight: it would write to each page."""
    with suppress(ImportError):  # a reader that needs the binding says that it is missing
        import pynvml  # noqa: F401

        import gpu_profile.driver.nvml  # noqa: F401
    gc.collect()
    gc.freeze()


def _serve(connection: socket.socket, exporter: int) -> ReaderSettings | None:
    """Fork at each request. None in the launcher, once the exporter has gone; in a reader, what was asked for."""
    while True:
        text, fds, _, _ = socket.recv_fds(connection, _LONGEST, 3, socket.MSG_CMSG_CLOEXEC)
        if not text:
            return None
        if _fork(connection, exporter):
            connection.close()
            out_fd, orders_fd, where_fd = fds
            return replace(ReaderSettings.of(text.decode()), out_fd=out_fd, orders_fd=orders_fd, where_fd=where_fd)
        for fd in fds:
            os.close(fd)


def _fork(connection: socket.socket, exporter: int) -> bool:
    """Start a reader and answer with its pid, or why it cannot be started. True in the reader.

    The reader waits until the exporter is its parent and has been answered, and ends if the launcher dies before: no
    reader runs that the exporter has not been told of.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            between = os.fork()
        except OSError as error:
            connection.send(str(error).encode())
            return False
        if not between:
            try:
                reader = os.fork()
                answer = b"%d" % reader
            except OSError as error:
                reader, answer = -1, str(error).encode()
            if reader:
                theirs.send(answer)
                os._exit(0)
            ours.close()
            if not theirs.recv(1) or not _bound_to(exporter):
                os._exit(0)
            return True
        answer = ours.recv(256)
        os.waitpid(between, 0)
        connection.send(answer or b"it was killed before it could start")
        ours.send(b"x")
        return False
