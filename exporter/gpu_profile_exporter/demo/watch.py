"""The processes of the demonstration: their start, the messages of one of them, and their end."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from gpu_profile.cli.ending import end_signals
from gpu_profile.driver.simulated.temporary import TemporaryFolder
from gpu_profile_exporter.demo import companion
from gpu_profile_exporter.reader.launcher import module_paths

#: Longest wait in s for the first message and for each later one.
START_S, SILENCE_S = 30, 60

Message = dict[str, Any]


def free_port(preferred: int = 0) -> int:
    """`preferred` if no process listens on it, on any address, else a free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", preferred))
        except OSError:
            probe.bind(("", 0))
        bound: int = probe.getsockname()[1]
        return bound


@contextmanager
def watched(folder: TemporaryFolder, modules: Mapping[str, Sequence[str]], begun_s: float) -> Iterator[Watch]:
    """Run modules of Python with their arguments, by name, until the block ends.

    The last one prints messages, a line of JSON each. They end with this process, even if it is killed. Each has its
    own process session, so that Ctrl-C reaches only this process. `begun_s` is the monotonic time in s at which the
    demonstration began.
    """
    # The files of a killed exporter are removed with the demonstration's own.
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(module_paths()),
        "RUNTIME_DIRECTORY": str(folder.path),
    }
    started: dict[str, subprocess.Popen[str]] = {}
    with end_signals() as ended:
        try:
            for name, words in modules.items():
                speaks = name == list(modules)[-1]
                started[name] = subprocess.Popen(
                    [sys.executable, "-P", "-m", companion.__name__, str(os.getpid()), *words],
                    stdout=subprocess.PIPE if speaks else subprocess.DEVNULL,
                    text=True,
                    start_new_session=True,
                    env=environment,
                    pass_fds=(folder.fd,),
                )
            yield Watch(started, ended, begun_s)
        finally:
            _end(started.values())


def _end(processes: Collection[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Watch:
    """Processes by name, and the messages of the last one. `ended` contains the received signals to end."""

    def __init__(self, processes: Mapping[str, subprocess.Popen[str]], ended: list[int], begun_s: float) -> None:
        self.processes, self.ended = processes, ended
        #: The newest message.
        self.last: Message = {}
        self._silent = False
        self._begun_s = begun_s
        self._messages: queue.Queue[Message | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def speaker(self) -> subprocess.Popen[str]:
        """The process that prints messages."""
        return list(self.processes.values())[-1]

    @property
    def passed_s(self) -> float:
        """Seconds since the demonstration began."""
        return time.monotonic() - self._begun_s

    def _read(self) -> None:
        for line in self.speaker.stdout or ():
            with suppress(ValueError):
                self._messages.put(json.loads(line))
        self._messages.put(None)

    def messages(self, *, until: Callable[[], bool], patience_s: float) -> Iterator[Message]:
        """Messages until the speaker closes its output, `until()` is true or `patience_s` pass without a message."""
        received = time.monotonic()
        while not self._silent and not until() and time.monotonic() - received < patience_s:
            try:
                message = self._messages.get(timeout=0.25)
            except queue.Empty:
                continue
            if message is None:
                self._silent = True
                return
            received = time.monotonic()
            self.last = message
            yield message

    def is_over(self, seconds: float | None) -> bool:
        """Whether the demonstration ends: after so many seconds, by a signal, or because a process has ended."""
        return bool((seconds is not None and self.passed_s >= seconds) or self.ended or self.broken())

    def broken(self) -> str:
        """A message about the process that has ended unexpectedly; "" while all run."""
        if self._silent:
            with suppress(subprocess.TimeoutExpired):
                self.speaker.wait(2)
        for name, process in self.processes.items():
            code = process.poll()
            if code is not None:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
                return f"the demonstration's {name} {how}"
        return ""

    def early_end(self, seconds: float | None) -> str:
        """A message if the messages ended before the demonstration should; "" if they did not."""
        if self.is_over(seconds):
            return self.broken()
        return f"the demonstration's {list(self.processes)[-1]} said nothing for {SILENCE_S} s"
