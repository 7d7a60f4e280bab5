"""The launcher as the exporter sees it, and the processes that it was asked for. Nothing here waits for it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpu_profile_exporter import logs
from gpu_profile_exporter.reader.marked import START_S
from gpu_profile_exporter.reader.settings import ReaderSettings

#: A launcher that does not answer for so long is killed; its first answer may take `START_S`.
ANSWER_S: Final = 10.0
_SUBREAPER: Final = 36


class LaunchedProcess:
    """A process that the launcher was asked for; it is a child of this one. Any thread may call any method.

    `pid` is None until the launcher has told it. The system gives it to no other process before `poll` has seen the
    end, so `kill` meets no stranger.
    """

    def __init__(self, hear: Callable[[], None]) -> None:
        self.asked = time.monotonic()
        self.pid: int | None = None
        self._hear = hear
        self._exit_code: int | None = None
        self._killed = False
        self._lock = threading.Lock()

    def start(self, pid: int) -> None:
        """It runs, unless it has been killed meanwhile."""
        with self._lock:
            self.pid = pid
        if self._killed:
            self.kill()

    def fail(self) -> None:
        """It will never run. To its keeper that is an end from outside."""
        self._exit_code = -signal.SIGKILL

    def poll(self) -> int | None:
        """How it ended; None while it runs, or is to."""
        if self.pid is None:
            self._hear()
        with self._lock:
            if self._exit_code is None and self.pid is not None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # the system does not tell
                    self._exit_code = -signal.SIGKILL
                else:
                    self._exit_code = os.waitstatus_to_exitcode(status) if pid else None
            return self._exit_code

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.poll() is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
        return True

    def kill(self) -> None:
        """End it at once, or as soon as it is there."""
        with self._lock:
            self._killed = True
            if self.pid is not None and self._exit_code is None:
                os.kill(self.pid, signal.SIGKILL)


class Launcher:
    """Starts processes by a launcher, and a launcher where there is none. Any thread may call any method."""

    def __init__(self) -> None:
        #: Why the launcher could not start the last process that it was asked for.
        self.refusal = ""
        self._lock = threading.RLock()
        self._asked: deque[LaunchedProcess] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._limit_s = START_S
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The launcher's process id; None if there is none."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def launch(self, settings: ReaderSettings, fds: Sequence[int]) -> LaunchedProcess:
        """Ask for a process with copies of these descriptors: for what it says, for orders, and its whereabouts.

        OSError if it cannot be asked for.
        """
        with self._lock:
            if self._closed:
                raise OSError("the readers have been stopped")
            connection = self._start() if self.pid is None or self._socket is None else self._socket
            _adopt(self, orphans=True)
            socket.send_fds(connection, [settings.text().encode()], fds)
            self._asked.append(LaunchedProcess(self.hear))
            return self._asked[-1]

    def hear(self) -> None:
        """Take in what the launcher has answered, and kill it if it does not."""
        with self._lock:
            # Looked at first: what it answered before its end can be read then.
            process = self._process
            ended = process is None or process.poll() is not None
            while self._asked and (answer := self._answer()):
                child = self._asked.popleft()
                self._limit_s = ANSWER_S
                if answer.isdigit():
                    self.refusal = ""
                    child.start(int(answer))
                else:
                    self.refusal = answer.decode(errors="replace")
                    child.fail()
            if process is None or ended:
                while self._asked:
                    self._asked.popleft().fail()
            elif self._asked and time.monotonic() - self._asked[0].asked > self._limit_s:
                process.kill()
            if not self._asked:
                _adopt(self, orphans=False)

    def close(self) -> None:
        """End the launcher. Processes that it has started run on, unless they were killed."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
            self.hear()
            if self._socket is not None:
                self._socket.close()

    def _answer(self) -> bytes:
        with suppress(OSError):
            if self._socket is not None:
                return self._socket.recv(256)
        return b""

    def _start(self) -> socket.socket:
        self.hear()  # the last words of the one before
        if self._socket is not None:
            self._socket.close()
        self._limit_s = START_S
        # Before it is forked: it takes that over.
        _adopt(self, orphans=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._socket = ours
        with theirs:
            self._process = subprocess.Popen(
                # Without -P Python would look for modules in the working directory first, which may be anybody's.
                [sys.executable, "-P", "-m", "gpu_profile_exporter.reader", str(theirs.fileno()), *logs.now()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(module_paths())},
            )
        return ours


#: Those that wait for an answer.
_waiting: Final[set[Launcher]] = set()
_libc: Final = ctypes.CDLL(None)


def _adopt(launcher: Launcher, *, orphans: bool) -> None:
    """Whether this process becomes the parent of its descendants whose parents end.

    Only while a launcher is asked for one: others, such as the nvidia-smi of a reader that was killed, are init's.
    """
    (_waiting.add if orphans else _waiting.discard)(launcher)
    _libc.prctl(_SUBREAPER, int(bool(_waiting)), 0, 0, 0)


def module_paths() -> list[str]:
    """Where this process finds modules, without the working directory that `python -m` puts first."""
    paths = [path for path in sys.path if path]
    here = os.getcwd()  # noqa: PTH109 - as Python itself writes it
    if paths[:1] == [here] and not sys.flags.safe_path and not Path(here, "gpu_profile_exporter").is_dir():
        del paths[0]
    return paths
