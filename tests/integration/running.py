"""`gpu-profile` as a process of its own, with and without a terminal."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.programs import environment

LIMIT_S = 60


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "gpu_profile.cli", *words]


def profile(*words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        command(*words),
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(**env),
        timeout=LIMIT_S,
        check=False,
    )


def start(*words: str, **env: str) -> subprocess.Popen[str]:
    """Start it; what it and its command print is read from pipes."""
    return subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**env)
    )


def last_line(text: str) -> dict[str, Any]:
    """The last line as JSON, which must be valid: no NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found: dict[str, Any] = json.loads(text.splitlines()[-1], parse_constant=refuse)
    return found


@dataclass
class Terminal:
    """A command in a terminal of its own, of which it is the foreground job."""

    words: Sequence[str]
    env: dict[str, str]
    rows: int = 20
    columns: int = 100
    seen: str = ""
    status: int | None = None
    pid: int = field(init=False)
    fd: int = field(init=False)

    def __post_init__(self) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # The child waits until the terminal has its size.
            os.read(0, 1)
            os.execvpe(self.words[0], list(self.words), self.env)  # noqa: S606 - a test's own words
        self.resize(self.rows, self.columns)
        os.write(self.fd, b"\n")

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal a size; its foreground job gets SIGWINCH if it differs from the one before."""
        self.rows, self.columns = rows, columns
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, key: str) -> None:
        os.write(self.fd, key.encode())

    def until(self, there: Callable[[str], bool], what: str) -> None:
        """Read until what was seen is as it should be."""
        end = time.monotonic() + LIMIT_S
        while not there(self.seen):
            assert time.monotonic() < end, f"{what} was not seen in {self.seen!r}"
            if not self._read(0.1) and self.status is not None:
                raise AssertionError(f"{what} was not seen in {self.seen!r}")

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self.fd], [], [], timeout_s)[0]:
            self._poll()
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the last process on the terminal has gone
            data = b""
        self.seen += data.decode(errors="replace")
        if not data:
            self._poll()
        return bool(data)

    def _poll(self) -> None:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None

    def stopped(self) -> None:
        """Wait until it has stopped, as a shell would see it."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            self._read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid:
                assert os.WIFSTOPPED(status), status
                return
        raise AssertionError(f"it did not stop: {self.seen!r}")

    def wait(self) -> int:
        """The exit code, after all was read."""
        end = time.monotonic() + LIMIT_S
        while self.status is None:
            assert time.monotonic() < end, f"it did not end: {self.seen!r}"
            self._read(0.05)
        while self._read(0.05):
            pass
        return os.waitstatus_to_exitcode(self.status)

    def close(self) -> None:
        if self.status is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        os.close(self.fd)
