"""The driver's own sample buffers: what it measured at its own pace, time-stamped by itself."""

from __future__ import annotations

from typing import Any, Final

from gpu_profile.driver.nvml.fields import decoders
from gpu_profile.driver.nvml.library import Library
from gpu_profile.driver.nvml.readers import Reader
from gpu_profile.samples import Sample
from gpu_profile.units import NS_PER_S

#: The longest sample period that NVIDIA documents for utilisation (nvidia-smi(1): between 1 s and 1/6 s).
_LONGEST_NS: Final = NS_PER_S
#: A stamp further ahead of the clock than this is not one.
_AHEAD_NS: Final = 5 * NS_PER_S
#: A buffer that gave nothing for this long, three of the longest periods, is taken for one that the GPU does not fill.
_SILENCE_NS: Final = 3 * NS_PER_S


class Buffer:
    """One signal's buffer on one device.

    Sample k covers the time since sample k-1, at most the longest period that is documented; the first one covers the
    signal's nominal window.
    """

    def __init__(self, library: Library, reader: Reader, uuid: str) -> None:
        self.reader = reader
        self._api = library.api
        self._errors = library.errors
        self._type = library.constant(reader.buffer)
        self._decoders = decoders(library.api)
        self._uuid = uuid
        self._last_us = 0
        self._silent_since_ns: int | None = None

    def ask(self, handle: Any) -> tuple[int, list[Any]]:
        """The driver's own rows since the last fetch, and the type of their values."""
        kind, rows = self._api.nvmlDeviceGetSamples(handle, self._type, self._last_us)
        return kind, rows

    def fetch(self, handle: Any, now_ns: int) -> list[Sample]:
        """Samples since the last fetch, oldest first. Raises the binding's error; NOT_FOUND means none."""
        if self._last_us * 1000 > now_ns + _AHEAD_NS:
            self._last_us = 0  # the clock was set back, and nothing new would be later than that
        kind, raw = self.ask(handle)
        decode = self._decoders[kind]
        signal = self.reader.signal
        samples = []
        for stamp_us, value in sorted((row.timeStamp, decode(row.sampleValue.ullVal)) for row in raw):
            if stamp_us <= self._last_us or stamp_us * 1000 > now_ns + _AHEAD_NS:
                continue
            end = stamp_us * 1000
            start = max(self._last_us * 1000, end - (_LONGEST_NS if self._last_us else signal.window_ns))
            self._last_us = stamp_us
            if 0 <= value <= signal.limit:
                samples.append(Sample(signal, start, end, round(value)))
            else:
                self._errors.implausible(self.reader.buffer, self._uuid, value)
        return samples

    def silent(self, now_ns: int) -> bool:
        """Whether the buffer has been asked in vain for so long that it must be taken for unused."""
        if self._last_us:
            return False
        if self._silent_since_ns is None:
            self._silent_since_ns = now_ns
        return now_ns - self._silent_since_ns >= _SILENCE_NS
