"""Writes a device's samples to the node's timeline, in the process that reads the device."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Sample
from gpu_profile.driver.node.writer import RingOptions, RingWriter
from gpu_profile.units import NS_PER_S

#: The pause after a file could not be made.
RETRY_NS: Final = 10 * NS_PER_S
#: The interval at which the file is checked: the exporter removes it after a long pause, and any program may delete it.
_CHECK_NS: Final = 5 * NS_PER_S
_log = logging.getLogger("gpu_profile_exporter")


class DeviceRing:
    """The files of one device. A new one is made when the device has new signals. Never raises OSError."""

    def __init__(self, options: RingOptions, uuid: str, signals: Iterable[Signal]) -> None:
        self._options = options
        self._uuid = uuid
        self._signals = dict.fromkeys(signals)
        self._writer: RingWriter | None = None
        self._checked_ns = self._retry_ns = 0
        self._problem = ""

    @property
    def name(self) -> str:
        """The name of the current file. Empty if there is none."""
        return "" if self._writer is None else self._writer.name

    def add(self, signals: Iterable[Signal]) -> None:
        """Add signals. If one is new, the next samples go to a new file."""
        before = len(self._signals)
        self._signals.update(dict.fromkeys(signals))
        if len(self._signals) > before:
            self.close()

    def append(self, samples: Sequence[Sample], now_ns: int) -> None:
        """Write samples. If that fails, they are dropped, and each new problem is logged once."""
        writer = self._writer
        if writer is not None and abs(now_ns - self._checked_ns) > _CHECK_NS:
            self._checked_ns = now_ns
            if writer.removed:
                self.close()
                writer = None
        if writer is None:
            if abs(self._retry_ns - now_ns) < RETRY_NS and self._problem:
                return
            try:
                writer = self._writer = RingWriter(self._options, self._uuid, self._signals, now_ns)
            except OSError as error:
                self._retry_ns = now_ns
                self._failed(error)
                return
        try:
            writer.append(samples)
        except OSError as error:
            self._failed(error)
        else:
            self._problem = ""

    def flush(self) -> None:
        """Write the samples that wait for others. More may come late, or never: the device is lost or not read."""
        try:
            if self._writer is not None:
                self._writer.flush()
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        problem = error.strerror or str(error)
        if problem != self._problem:
            _log.warning("the timeline in %s has no samples of %s: %s", self._options.directory, self._uuid, problem)
        self._problem = problem

    def close(self) -> None:
        """Close the current file. The next samples go to a new one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
