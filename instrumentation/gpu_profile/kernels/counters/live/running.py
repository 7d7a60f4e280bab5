"""The sampler's process, as the program sees it. Whatever becomes of it is a GpuBackendError, in bounded time."""

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
#: It makes a CUDA context and loads CUPTI, which takes seconds, and is given this long for it; and then to end.
_START_S: Final = 60.0
_END_S: Final = 10.0
#: So much of what it complained of is told.
_TOLD: Final = 300


class RunningSampler:
    """Started with the object. `device` and `chip` are what it samples, by UUID and name."""

    def __init__(self, ordinal: int, interval_ns: int, metrics: Sequence[str]) -> None:
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        # -P: what lies in the working directory is none of Python's modules.
        command = [sys.executable or "python3", "-P", "-m", _MODULE, str(ordinal), str(interval_ns), *metrics]
        try:
            # In a session of its own: an interrupt of the terminal is the program's.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            self._complaints.close()
            raise GpuBackendError(f"counters: the sampler cannot be started: {error}") from error
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()
        try:
            head = self._next(time.monotonic() + _START_S, "begun")
        except BaseException:
            self.close()
            raise
        self.device, self.chip = str(head.get("device")), str(head.get("chip") or "")

    def samples(self) -> list[list[float]]:
        """All that it sampled; it ends. GpuBackendError if it failed, or does not end."""
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.write("end\n")
                self._process.stdin.flush()
        rows: list[list[float]] = []
        latest = time.monotonic() + _END_S
        while True:
            found = self._next(latest, "ended")
            if isinstance(found, list):
                rows += found
            elif found.get("end"):
                return rows

    def close(self) -> None:
        """End it, whatever it does. A process that the driver holds is left to the system."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        self._complaints.close()

    def _next(self, latest: float, what: str) -> Any:
        try:
            line = self._lines.get(timeout=max(0.0, latest - time.monotonic()))
        except Empty:
            raise GpuBackendError(f"counters: the sampler has not {what} in time") from None
        if not line:
            raise GpuBackendError(f"counters: {self._death()}")
        try:
            found = json.loads(line)
        except ValueError:
            raise GpuBackendError(f"counters: {self._death()}") from None
        if isinstance(found, dict) and "error" in found:
            raise GpuBackendError(f"counters: {found['error']}")
        return found

    def _death(self) -> str:
        try:
            code = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            return "the sampler's process broke off in the middle of a line"
        if code < 0:
            return f"the sampler's process was ended by signal {-code}, as CUPTI's own crashes do; the program goes on"
        self._complaints.seek(0)
        said = self._complaints.read()[-_TOLD:].decode(errors="replace").strip()
        return f"the sampler's process ended with {code}: {said or 'it said nothing'}"


def _read(pipe: IO[str], lines: SimpleQueue[str]) -> None:
    with contextlib.suppress(ValueError, OSError):  # it was closed
        for line in pipe:
            lines.put(line)
    lines.put("")
