"""The driver's sample buffers. The driver measures at its own rate and stamps the samples."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Final

from gpu_profile.catalogue.samples import Sample, plain_sample
from gpu_profile.driver.nvml.fields import decoders
from gpu_profile.driver.nvml.library import NvmlLibrary
from gpu_profile.driver.nvml.readers import Reader
from gpu_profile.units import NS_PER_S

#: `nvmlSample_t`: time stamp (µs since the epoch), value.
_LAYOUT: Final = struct.Struct("@QQ")
#: The longest sample period that NVIDIA documents for utilisation (nvidia-smi(1): between 1 s and 1/6 s).
_LONGEST_NS: Final = NS_PER_S
#: A stamp further ahead of the clock than this is invalid.
_AHEAD_NS: Final = 5 * NS_PER_S
#: A fetch covers at most the time since the last fetch plus this, the time for which a driver may delay samples.
_HELD_BACK_NS: Final = 2 * NS_PER_S
#: A buffer without samples for this long, three of the longest periods, counts as one that the GPU does not fill.
_SILENCE_NS: Final = 3 * NS_PER_S


class DriverBuffer:
    """One signal's buffer on one device.

    Sample k covers the time since sample k-1, at most the longest documented period. The first one covers the signal's
    nominal window.
    """

    def __init__(self, library: NvmlLibrary, reader: Reader, uuid: str) -> None:
        self.reader = reader
        self._errors = library.errors
        self._failure = library.api.NVMLError
        self._absent = library.api.NVML_ERROR_NOT_SUPPORTED
        self._call = library.samples
        self._row = library.api.c_nvmlSample_t
        self._type = ctypes.c_uint(library.constant(reader.buffer) or 0)
        self._decoders = decoders(library.api)
        self._uuid = uuid
        self._kind, self._count = ctypes.c_uint(), ctypes.c_uint()
        self._kind_reference, self._count_reference = ctypes.byref(self._kind), ctypes.byref(self._count)
        self._rows: Any = (self._row * 0)()
        self._bytes = memoryview(b"")
        self._last_us = self._fetched_ns = 0
        #: Whether the buffer ever had a sample.
        self.delivered = False
        self._silent_since_ns: int | None = None

    def ask(self, handle: Any) -> list[tuple[int, int | float]]:
        """The driver's rows since the last fetch: time stamps in µs, and values. Raises the binding's error.

        Makes the same two calls as the binding's function, without building a new array between them.
        """
        kind, count = self._kind, self._count
        count.value = 0
        after = ctypes.c_ulonglong(self._last_us)
        self._check(self._call(handle, self._type, after, self._kind_reference, self._count_reference, None))
        if count.value > len(self._rows):
            self._rows = (self._row * count.value)()
            self._bytes = memoryview(self._rows).cast("B")
        self._check(self._call(handle, self._type, after, self._kind_reference, self._count_reference, self._rows))
        decode = self._decoders.get(kind.value)
        if decode is None:
            raise self._failure(self._absent)  # a type that this binding does not have
        rows = _LAYOUT.iter_unpack(self._bytes[: count.value * _LAYOUT.size])
        return [(stamp_us, decode(raw)) for stamp_us, raw in rows]

    def _check(self, code: int) -> None:
        if code:
            raise self._failure(code)

    def fetch(self, handle: Any, now_ns: int, elapsed_ns: int) -> list[Sample]:
        """Samples since the last fetch, oldest first. `elapsed_ns` is monotonic.

        Raises the binding's error; NOT_FOUND means that there is no sample. The first fetch returns only the newest: a
        driver keeps many seconds (an H200's 14) that no other signal covers. After the clock was set, old samples may
        have stamps that look new, so the result covers little more time than has passed.
        """
        passed_ns, self._fetched_ns = elapsed_ns - self._fetched_ns, elapsed_ns
        if self._last_us * 1000 > now_ns + _AHEAD_NS:
            self._last_us = 0  # the clock was set back: new samples have earlier stamps
        signal, last_us = self.reader.signal, self._last_us
        first, lowest, limit, latest_us = not last_us, signal.lowest, signal.limit, (now_ns + _AHEAD_NS) // 1000
        samples = []
        # Hundreds of samples per second and GPU: this loop must be fast.
        for stamp_us, value in sorted(self.ask(handle)):
            if not last_us < stamp_us <= latest_us:
                continue
            end, start = stamp_us * 1000, last_us * 1000
            if not last_us:
                start = end - signal.window_ns
            elif end - start > _LONGEST_NS:
                start = end - _LONGEST_NS
            last_us = stamp_us
            if lowest <= value <= limit:
                samples.append(plain_sample(Sample, (signal, start, end, round(value))))
            else:
                self._errors.implausible(self.reader.buffer, self._uuid, value)
        self._last_us = last_us
        self.delivered = self.delivered or bool(samples)
        return samples[-1:] if first else _newest(samples, passed_ns + _HELD_BACK_NS)

    def silent(self, now_ns: int) -> bool:
        """Whether the buffer never had a sample, and has been fetched for 3 s or more."""
        if self.delivered:
            return False
        if self._silent_since_ns is None:
            self._silent_since_ns = now_ns
        return now_ns - self._silent_since_ns >= _SILENCE_NS


def _newest(samples: list[Sample], most_ns: int) -> list[Sample]:
    """The newest samples that cover at most `most_ns`."""
    if not samples or samples[-1].t_end_ns - samples[0].t_start_ns <= most_ns:
        return samples
    covered_ns = 0
    for i, sample in enumerate(reversed(samples)):
        covered_ns += sample.t_end_ns - sample.t_start_ns
        if covered_ns > most_ns:
            return samples[len(samples) - i :]
    return samples
