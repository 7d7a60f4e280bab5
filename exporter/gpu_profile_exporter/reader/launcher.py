"""Requests reader processes from the launcher process. Requests are asynchronous."""

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
from gpu_profile_exporter.reader.observed_driver import START_S
from gpu_profile_exporter.reader.settings import ReaderSettings
from gpu_profile_exporter.reader.usage import stopped

#: A launcher that does not answer within this time is killed. Its first answer may take `START_S`.
ANSWER_S: Final = 10.0
#: The shortest time from one start of a launcher to the next, unless a reader is requested.
RENEW_S: Final = 5.0
_SUBREAPER: Final = 36


class LaunchedProcess:
    """A process requested from the launcher. It becomes a child of this one. Thread-safe.

    `pid` is None until the launcher has answered. The system cannot reuse a pid before `poll` has seen the end, so
    `kill` never reaches another process.
    """

    def __init__(self, receive: Callable[[], None]) -> None:
        self.asked = time.monotonic()
        self.pid: int | None = None
        self._receive = receive
        self._exit_code: int | None = None
        self._killed = False
        self._lock = threading.Lock()

    def start(self, pid: int) -> None:
        """Set the pid of the started process. Kills it if `kill` was called before."""
        with self._lock:
            self.pid = pid
        if self._killed:
            self.kill()

    def fail(self) -> None:
        """Mark it as never started. It counts as killed from outside."""
        self._exit_code = -signal.SIGKILL

    def poll(self) -> int | None:
        """The exit code. None while it runs or has not started yet."""
        if self.pid is None:
            self._receive()
        with self._lock:
            if self._exit_code is None and self.pid is not None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # the exit code is not available
                    self._exit_code = -signal.SIGKILL
                else:
                    self._exit_code = os.waitstatus_to_exitcode(status) if pid else None
            return self._exit_code

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end. False if it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.poll() is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
        return True

    def kill(self) -> None:
        """Kill it now, or as soon as it has started."""
        with self._lock:
            self._killed = True
            if self.pid is not None and self._exit_code is None:
                os.kill(self.pid, signal.SIGKILL)


class Launcher:
    """Requests processes, and starts the launcher process if none runs. Thread-safe."""

    def __init__(self) -> None:
        #: Why the launcher could not start the last requested process. Empty if it could.
        self.refusal = ""
        self._lock = threading.RLock()
        self._asked: deque[LaunchedProcess] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._limit_s = START_S
        self._started = 0.0
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The launcher's process id. None if it does not run."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def launch(self, settings: ReaderSettings, fds: Sequence[int]) -> LaunchedProcess:
        """Request a process with copies of these file descriptors: messages, orders, heartbeat.

        OSError if the request cannot be sent.
        """
        with self._lock:
            if self._closed:
                raise OSError("the readers have been stopped")
            connection = self._start() if self.pid is None or self._socket is None else self._socket
            _adopt(self, orphans=True)
            socket.send_fds(connection, [settings.text().encode()], fds)
            self._asked.append(LaunchedProcess(self.receive))
            return self._asked[-1]

    def renew(self) -> None:
        """Replace a launcher that has ended or that a signal has stopped: the next reader then waits for no start."""
        with self._lock:
            process = self._process
            if process is None or self._closed or (process.poll() is None and not stopped(process.pid)):
                return
            process.kill()
            process.wait(1.0)
            if time.monotonic() - self._started >= RENEW_S:
                self._start()

    def receive(self) -> None:
        """Process the launcher's answers. Kill it if an answer is overdue."""
        with self._lock:
            # Checked first, so that answers from before its end are still read.
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
        """End the launcher. Processes that it has started continue to run."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
            self.receive()
            if self._socket is not None:
                self._socket.close()

    def _answer(self) -> bytes:
        with suppress(OSError):
            if self._socket is not None:
                return self._socket.recv(256)
        return b""

    def _start(self) -> socket.socket:
        self.receive()  # the last answers of the previous launcher
        if self._socket is not None:
            self._socket.close()
        self._limit_s, self._started = START_S, time.monotonic()
        # Before the fork, so that the launcher's descendants are covered by this subreaper.
        _adopt(self, orphans=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._socket = ours
        with theirs:
            self._process = subprocess.Popen(
                # Without -P Python would search the working directory first, and any user may own that.
                [sys.executable, "-P", "-m", "gpu_profile_exporter.reader", str(theirs.fileno()), *logs.now()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # else Ctrl-C would also reach it while it loads
                env={**os.environ, "PYTHONPATH": os.pathsep.join(module_paths())},
            )
        return ours


#: The launchers with an open request.
_waiting: Final[set[Launcher]] = set()
_libc: Final = ctypes.CDLL(None)


def _adopt(launcher: Launcher, *, orphans: bool) -> None:
    """Set whether this process becomes the parent of orphaned descendants.

    It does only while a launcher has an open request. Other orphans, such as the nvidia-smi of a killed reader, go to
    init.
    """
    (_waiting.add if orphans else _waiting.discard)(launcher)
    _libc.prctl(_SUBREAPER, int(bool(_waiting)), 0, 0, 0)


def module_paths() -> list[str]:
    """This process's module search path, without the working directory that `python -m` puts first."""
    paths = [path for path in sys.path if path]
    here = os.getcwd()  # noqa: PTH109 - as Python itself writes it
    if paths[:1] == [here] and not sys.flags.safe_path and not Path(here, "gpu_profile_exporter").is_dir():
        del paths[0]
    return paths
