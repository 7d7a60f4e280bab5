"""GPM: activity counters of Hopper and newer, averaged exactly between two samples.

NVIDIA requires more than 100 ms between the two samples of a pair (`nvml.h`, nvmlGpmMetricsGet). Sharing sample buffers
between threads has crashed nodes, so only the thread that owns the driver uses this module.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Sample, plain_sample
from gpu_profile.clock import Clock
from gpu_profile.driver.nvml.errors import NEVER
from gpu_profile.driver.nvml.library import NvmlLibrary

#: nvmlGpmMetric_t in `nvml.h`: number, return code, value, and three pointers to texts, which are left out. Through
#: nvidia-ml-py's attributes, each access takes longer than to unpack all of them.
_METRIC: Final = struct.Struct(f"@IId{struct.calcsize('@3P')}x")
#: The lowest plausible value in quanta, and the highest as a multiple of the signal's limit. Rounding in the driver may
#: pass 0 or 100 % slightly; values beyond are no measurements.
_LOWEST, _HIGHEST = -1.0, 1.05
#: The clock was set if the two clocks differ by more than `_SET_NS` plus 1/`_SET_PART` of a window's length.
_SET_NS, _SET_PART = 20_000_000, 10
#: A sample that took more than `_LONG` times the usual time plus `_AT_ONCE_NS` is taken again, up to `_TRIES` in all.
_LONG, _AT_ONCE_NS, _TRIES = 4, 200_000, 3


class Gpm:
    """The current window of one device, and the two sample buffers that alternate as its start.

    `instance`: the GPU instance id if the device is a MIG instance; `handle` is then its parent's. `metrics`: signal,
    NVML's number, and quanta per unit of NVML. `absent(signal, reason, failure)` is called for each metric that the
    device turns out not to have. `failure` is the driver's error if the metric had worked before, else None.
    """

    def __init__(
        self,
        library: NvmlLibrary,
        clock: Clock,
        uuid: str,
        handle: Any,
        instance: int | None,
        metrics: list[tuple[Signal, int, float]],
        absent: Callable[[Signal, str, Exception | int | None], None],
    ) -> None:
        self._library = library
        self._clock = clock
        self._uuid = uuid
        self._handle = handle
        self._instance = instance
        self._metrics = metrics
        self._absent = absent
        api = library.api
        if ctypes.sizeof(api.c_nvmlGpmMetric_t) != _METRIC.size:
            raise AssertionError("nvidia-ml-py lays out nvmlGpmMetric_t otherwise than nvml.h")
        self._request = request = api.c_nvmlGpmMetricsGet_t()
        request.version = api.NVML_GPM_METRICS_GET_VERSION
        self._bytes = memoryview((ctypes.c_char * ctypes.sizeof(request)).from_buffer(request)).cast("B")
        self._choose(metrics)
        self._start: Any = None
        self._spare: Any = None
        #: The start of the current window by the wall clock, and by the monotonic clock.
        self._opened_ns: int | None = None
        self._opened_elapsed_ns = 0
        self._delivered: set[Signal] = set()
        #: The usual time of a sample: the lowest so far, which grows by at most 1/64 per sample.
        self._usual_ns: int | None = None

    def boundary(self) -> list[Sample]:
        """Close the current window and open the next. Nothing if it is younger than the driver's refresh period."""
        if not self._metrics:
            return []
        before = self._clock.elapsed_ns()
        if self._opened_ns is not None and before - self._opened_elapsed_ns < self._metrics[0][0].refresh_ns:
            return []
        errors = self._library.errors
        try:
            elapsed, after = self._take(before)
            moment = self._clock.now_ns() - (after - elapsed)
            opened, self._opened_ns = self._opened_ns, moment
            length, self._opened_elapsed_ns = elapsed - self._opened_elapsed_ns, elapsed
            self._start, self._spare = self._spare, self._start
            if opened is None or length <= 0:
                return []
            if abs(moment - opened - length) > _SET_NS + length // _SET_PART:
                opened = moment - length  # the clock was set meanwhile
            return self._samples(opened, moment)
        except errors.failures as failure:
            rule = errors.judge(failure, "GPM", self._uuid)
            if rule.action in NEVER:
                for signal, *_ in self._metrics:
                    self._absent(signal, rule.words, failure if signal in self._delivered else None)
                self._metrics = []
            return []

    def close(self) -> None:
        """Free the sample buffers."""
        self._opened_ns = None
        buffers, self._start, self._spare = (self._start, self._spare), None, None
        for buffer in buffers:
            if buffer is not None:
                self._library.errors.release(self._library.api.nvmlGpmSampleFree, buffer)

    def _take(self, before: int) -> tuple[int, int]:
        """Fill the spare buffer. Returns the sample's moment, which is the middle of the call, and the call's end.

        Both are elapsed time, like `before`, because that clock is never set. If this thread had to wait during the
        call, for the processor or for Python's lock, the moment is inaccurate and the call is repeated.
        """
        api = self._library.api
        if self._spare is None:
            self._spare = api.nvmlGpmSampleAlloc()
        for left in range(_TRIES - 1, -1, -1):
            if self._instance is None:
                api.nvmlGpmSampleGet(self._handle, self._spare)
            else:
                api.nvmlGpmMigSampleGet(self._handle, self._instance, self._spare)
            after = self._clock.elapsed_ns()
            took = after - before
            usual = self._usual_ns
            self._usual_ns = took if usual is None else min(took, usual + usual // 64)
            if not left or usual is None or took <= _LONG * usual + _AT_ONCE_NS:
                break
            before = after
        return (before + after) // 2, after

    def _choose(self, metrics: list[tuple[Signal, int, float]]) -> None:
        """Request these metrics from now on."""
        self._metrics = metrics
        self._request.numMetrics = len(metrics)
        # If a driver does not write a metric, its value must not count as a measured 0.
        no_data = self._library.api.NVML_ERROR_NO_DATA
        self._fresh = b"".join(_METRIC.pack(metric, no_data, 0.0) for _, metric, _ in metrics)
        first = type(self._request).metrics.offset
        self._cells = self._bytes[first : first + len(self._fresh)]

    def _samples(self, start: int, end: int) -> list[Sample]:
        errors, request = self._library.errors, self._request
        # The buffers were swapped: `_start` is already the start of the next window.
        request.sample1, request.sample2 = self._spare, self._start
        self._cells[:] = self._fresh
        self._library.api.nvmlGpmMetricsGet(request)
        samples, gone = [], []
        for row, (_, status, value) in zip(self._metrics, _METRIC.iter_unpack(self._cells), strict=True):
            signal, _, scale = row
            quanta = value * scale
            if status:
                rule = errors.judge(status, f"GPM {signal.key}", self._uuid)
                if rule.action in NEVER:
                    self._absent(signal, rule.words, status if signal in self._delivered else None)
                    gone.append(row)
            elif _LOWEST <= quanta <= _HIGHEST * (limit := signal.limit):  # not NaN
                whole = min(limit, 0 if quanta < 0 else round(quanta))
                samples.append(plain_sample(Sample, (signal, start, end, whole)))
            else:
                errors.implausible(f"GPM {signal.key}", self._uuid, value)
        self._delivered.update(map(itemgetter(0), samples))
        if gone:
            self._choose([row for row in self._metrics if row not in gone])
        return samples
