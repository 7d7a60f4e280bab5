"""cupti-python 13.4's `pm_sampling` as its source has it: order of calls, arguments and errors are checked."""

import os
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

from support.pm_sampling import MEAN, SUM

FAULT = os.environ.get("PM_SAMPLING_FAULT", "")


class CuptiError(Exception):
    """As `cupti.cupti.cuptiError`."""

    def __init__(self, status: int) -> None:
        super().__init__(f"ERROR ({status})")
        self.status = status


class Sample(NamedTuple):
    """As cupti-python's."""

    start_timestamp: int
    end_timestamp: int
    metric_values: list[float]


class Collector:
    """Samples by the clock: every `.sum` counts `SUM` in each sample, everything else is `MEAN`."""

    def __init__(self, device_index: int = 0) -> None:
        assert isinstance(device_index, int)
        self._chip_name = ""
        self._state = "new"
        self._decoded = 0

    def enable(self) -> None:
        assert self._state == "new"
        if FAULT == "permission":
            raise PermissionError("Insufficient privileges for PM sampling")
        if FAULT == "busy":
            raise CuptiError(26)
        self._state, self._chip_name = "enabled", "GH100"

    def configure(self, *, metrics: list[str], sampling_interval: int) -> None:
        assert self._state == "enabled"
        assert isinstance(metrics, list)
        assert isinstance(sampling_interval, int)
        assert sampling_interval > 0
        if FAULT in {"passes", "host"} or "sm__inst_executed_pipe_tensor.sum" in metrics:
            raise ValueError("Requested PM sampling configuration is not supported.")
        if any("__" not in name for name in metrics):  # as on an H100
            raise CuptiError(1)
        self._metrics, self._interval_ns, self._state = metrics, sampling_interval, "configured"

    def start(self) -> None:
        assert self._state == "configured"
        self._state, self._next_ns = "started", time.time_ns()

    def decode(self, max_samples: int = 10000) -> Iterator[Sample]:
        assert self._state == "started"
        if len(self._metrics) == 1:  # as CUPTI 13.0 and 13.5 did on an H100
            os.kill(os.getpid(), signal.SIGSEGV)
        self._decoded += 1
        if self._decoded > 1:
            if FAULT == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            if FAULT == "overflow":
                raise MemoryError("Record overflow in the hardware buffer.")
            if FAULT == "hang":
                time.sleep(600)
        first, taken = self._decoded == 1, 0
        while self._next_ns + self._interval_ns <= time.time_ns() and taken < max_samples:
            start = 0 if first and not taken else self._next_ns
            self._next_ns += self._interval_ns
            taken += 1
            yield Sample(start, self._next_ns, [SUM if name.endswith(".sum") else MEAN for name in self._metrics])

    def stop(self) -> None:
        assert self._state == "started"
        self._state = "stopped"

    def disable(self) -> None:
        assert self._state == "stopped"
        self._state = "disabled"
