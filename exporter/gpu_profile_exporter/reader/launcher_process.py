"""The launcher process: imports the modules of readers, and forks a reader at each request of the exporter.

It runs no thread and loads no driver, so that a fork is a complete copy and has no GPU open. The imported modules are
in RAM once. A reader is forked twice. When the intermediate process ends, Linux makes the exporter the reader's parent,
because the exporter is a subreaper while it waits for a reader (`prctl(2)`). So the exporter gets the reader's exit
code, the reader is killed when the exporter ends, and it survives the end of the launcher.
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
    """Run the launcher until the exporter ends. Arguments: the launcher's end of a socket as a file descriptor, and the
    level and style of the exporter's log."""
    level, style = sys.argv[2:4]
    logs.set_up(level, style)
    # Less verbose here: the supervisor logs devices and drivers that appear or disappear.
    logging.getLogger("gpu_profile").setLevel(max(logging.ERROR, logging.getLogger().level))
    logging.getLogger("gpu_profile.driver").setLevel(max(logging.WARNING, logging.getLogger().level))
    # A stop of the service may signal all its processes. Only the supervisor ends readers.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    # The exporter may have been started with SIGCHLD ignored: then no process can wait for its children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    exporter = os.getppid()
    if not _die_with(exporter):
        return
    _set_name(LAUNCHER_NAME)
    _preload()
    try:
        settings = _serve(socket.socket(fileno=int(sys.argv[1])), exporter)
    except ConnectionError:  # the exporter has ended
        return
    if settings is not None:
        _set_name(_NAMES.get(settings.key, "gpu-reader"))
        run(settings)


def _die_with(parent: int) -> bool:
    """Let the kernel kill this process when its parent ends. False if the parent has ended already."""
    _libc.prctl(_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def _set_name(name: str) -> None:
    _libc.prctl(_NAME, name.encode())


def _preload() -> None:
    """Import the usual driver, and freeze all objects: a garbage collection would write to each shared page."""
    with suppress(ImportError):  # a reader that needs the binding reports that it is missing
        import pynvml  # noqa: F401

        import gpu_profile.driver.nvml  # noqa: F401
    gc.collect()
    gc.freeze()


def _serve(connection: socket.socket, exporter: int) -> ReaderSettings | None:
    """Fork a reader at each request. In a reader, its settings. In the launcher None, after the exporter has ended."""
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
    """Start a reader, and answer with its pid or the error. True in the reader.

    The reader waits until the exporter is its parent and has received the pid. It ends if the launcher dies before
    that, so that the exporter has the pid of each reader that runs.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            intermediate = os.fork()
        except OSError as error:
            connection.send(str(error).encode())
            return False
        if not intermediate:
            try:
                reader = os.fork()
                answer = b"%d" % reader
            except OSError as error:
                reader, answer = -1, str(error).encode()
            if reader:
                theirs.send(answer)
                os._exit(0)
            ours.close()
            if not theirs.recv(1) or not _die_with(exporter):
                os._exit(0)
            return True
        answer = ours.recv(256)
        os.waitpid(intermediate, 0)
        connection.send(answer or b"it was killed before it could start")
        ours.send(b"x")
        return False
