"""Counters that the hardware keeps in 32 bits, extended to counts without a limit.

NVML's counts of PCIe bytes restart at 0 after 2^32 bytes. A link of generation 5 carries that many within 70 ms, so
between two rounds such a counter may restart more than once, and no single difference shows it. A counter that moves
is therefore read again between the rounds, often enough for its link. A counter at rest costs nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Device, Sample, plain_sample
from gpu_profile.driver.nvml.fields import FieldBatch
from gpu_profile.driver.nvml.library import NvmlLibrary
from gpu_profile.driver.nvml.readers import READERS
from gpu_profile.units import NS_PER_S, nanoseconds

#: Bytes per second, one way, of a link that the driver does not report: 16 lanes of PCIe 5.0.
_UNKNOWN_LINK: Final = 63_000_000_000
#: Readings come late at times, so they are due after this share of the time in which the link can fill a counter.
_MARGIN: Final = 0.75
#: A counter moves if a reading adds more than 1/_STILL of its range. A rate that fills it almost exactly looks still.
_STILL: Final = 64
#: The time for which a counter that moved is still read between rounds, so that pauses of a program do not end it.
LINGER_NS: Final = NS_PER_S


@dataclass(slots=True)
class ExtendedCount:
    """One counter: its last raw value, and the sum of its growth since then, from the first raw value on."""

    raw: int
    total: int

    def extend(self, raw: int, wraps_at: int) -> int:
        """Take a raw value. Returns the growth since the last one; 0 for a counter that is wider than `wraps_at`."""
        last, self.raw = self.raw, raw
        if max(raw, last) >= wraps_at:  # this driver counts on; a fall is a reset, as of every other counter
            self.total = raw
            return 0
        growth = (raw - last) % wraps_at
        self.total += growth
        return growth


@dataclass(slots=True)
class WrappingCounters:
    """The wrapping counters of one device. `longest_ns`: the time within which a moving one must be read again."""

    longest_ns: int
    counts: dict[Signal, ExtendedCount] = field(default_factory=dict)
    moved_ns: int | None = None
    _batch: FieldBatch | None = None

    @classmethod
    def of(cls, device: Device) -> WrappingCounters:
        """The counters of a device, whose link decides how often they are read while they move."""
        fill_s = (1 << 32) / (device.pcie_bytes_per_s or _UNKNOWN_LINK)
        return cls(nanoseconds(_MARGIN * fill_s))

    def extend(self, samples: list[Sample], elapsed_ns: int) -> bool:
        """Put extended counts in place of raw ones in a round's samples, read at `elapsed_ns`. True if one moved."""
        for place, (signal, start_ns, end_ns, raw) in enumerate(samples):
            if signal.wraps_at:
                total = self._take(signal, raw, elapsed_ns)
                samples[place] = plain_sample(Sample, (signal, start_ns, end_ns, total))
        return self.moved_ns == elapsed_ns

    def catch_up(self, library: NvmlLibrary, handle: Any, elapsed_ns: int) -> bool:
        """Read the counters between two rounds. True if one moved. The next round reads them too, after a failure."""
        batch = self._batch
        if batch is None:
            batch = self._batch = FieldBatch(library, [READERS[signal] for signal in self.counts])
        if batch.call(handle):
            return False
        for reader, (_, kind, status, value) in batch.values():
            if not status and kind == batch.whole and value < reader.signal.wraps_at:
                self._take(reader.signal, value, elapsed_ns)
        return self.moved_ns == elapsed_ns

    def due_ns(self, elapsed_ns: int) -> int:
        """The time within which the counters must be read again; 0 if none has moved lately."""
        moved = self.moved_ns
        return self.longest_ns if moved is not None and elapsed_ns - moved < LINGER_NS else 0

    def _take(self, signal: Signal, raw: int, elapsed_ns: int) -> int:
        """Take a raw value. Returns the extended count."""
        count = self.counts.get(signal)
        if count is None:
            count = self.counts[signal] = ExtendedCount(raw, raw)
            self._batch = None
        elif raw != count.raw and count.extend(raw, signal.wraps_at) * _STILL > signal.wraps_at:
            self.moved_ns = elapsed_ns
        return count.total
