"""The sampler's process, as the program sees it. Any failure of it is a GpuBackendError, in bounded time."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import IO, Any, Final

from gpu_profile.errors import GpuBackendError

_MODULE: Final = "gpu_profile.kernels.counters.live.sampler"
#: Time limits: to start, because making a CUDA context and loading CUPTI take seconds; and to end.
_START_S: Final = 60.0
_END_S: Final = 10.0
#: Characters of its standard error in an error message.
_STDERR_LENGTH: Final = 300


class RunningSampler:
    """A sampler's process, started with the object. `device` is the UUID of its GPU, `chip` the chip's name."""

    def __init__(self, ordinal: int, interval_ns: int, metrics: Sequence[str]) -> None:
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        # -P: import no modules from the working directory.
        command = [sys.executable or "python3", "-P", "-m", _MODULE, str(ordinal), str(interval_ns), *metrics]
        try:
            # In a session of its own: an interrupt of the terminal is for the program alone.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            self._stderr.close()
            raise GpuBackendError(f"counters: the sampler cannot be started: {error}") from error
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()
        try:
            head = self._next(time.monotonic() + _START_S, "begun")
        except BaseException:
            self.close()
            raise
        self.device, self.chip = str(head.get("device")), str(head.get("chip") or "")

    def samples(self) -> list[list[float]]:
        """End the process and return all its samples. GpuBackendError if it failed, or does not end."""
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.write("end\n")
                self._process.stdin.flush()
        rows: list[list[float]] = []
        latest = time.monotonic() + _END_S
        while True:
            message = self._next(latest, "ended")
            if isinstance(message, list):
                rows += message
            elif message.get("end"):
                return rows

    def close(self) -> None:
        """Kill it in any state. A process that hangs in the driver is left to the system."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        self._stderr.close()

    def _next(self, latest: float, what: str) -> Any:
        try:
            line = self._lines.get(timeout=max(0.0, latest - time.monotonic()))
        except Empty:
            raise GpuBackendError(f"counters: the sampler has not {what} in time") from None
        if not line:
            raise GpuBackendError(f"counters: {self._death()}")
        try:
            message = json.loads(line)
        except ValueError:
            raise GpuBackendError(f"counters: {self._death()}") from None
        if isinstance(message, dict) and "error" in message:
            raise GpuBackendError(f"counters: {message['error']}")
        return message

    def _death(self) -> str:
        try:
            code = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            return "the sampler's process broke off in the middle of a line"
        if code < 0:
            return f"the sampler's process was ended by signal {-code}, as CUPTI's own crashes do; the program goes on"
        self._stderr.seek(0)
        said = self._stderr.read()[-_STDERR_LENGTH:].decode(errors="replace").strip()
        return f"the sampler's process ended with {code}: {said or 'it said nothing'}"


def _read(pipe: IO[str], lines: SimpleQueue[str]) -> None:
    with contextlib.suppress(ValueError, OSError):  # it was closed
        for line in pipe:
            lines.put(line)
    lines.put("")
