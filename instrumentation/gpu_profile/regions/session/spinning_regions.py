"""Finds regions whose GPU is busy without movement while none of its regions ends. Part of the join's thread."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from gpu_profile.catalogue.samples import Event
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.spinning import Spin, SpinningDetector
from gpu_profile.regimes import Thresholds
from gpu_profile.units import NS_PER_S

_log = logging.getLogger("gpu_profile")


class SpinningRegions:
    """The detectors of a session's devices, and the open regions on devices that spin.

    `changed` is called with region and device UUID when a region begins or ceases to spin.
    """

    def __init__(self, thresholds: Thresholds, changed: Callable[[str, str], None]) -> None:
        #: The regions that spin now, by name and device UUID.
        self.spins: dict[tuple[str, str], Spin] = {}
        #: Time of spinning, in ns, by region and device UUID.
        self.total_ns: Counter[tuple[str, str]] = Counter()
        #: Called with an event at the onset and the end of spinning on a device.
        self.event_sinks: list[Callable[[Event], None]] = []
        self._thresholds = thresholds
        self._changed = changed
        self._detectors: dict[str, tuple[Timeline, SpinningDetector]] = {}
        #: By device: the last end of a region.
        self._ended_ns: dict[str, int] = {}

    def take_ends(self, ends: Iterable[tuple[str, int]]) -> None:
        """Note when regions ended: device UUIDs and times in ns."""
        for uuid, end_ns in ends:
            self._ended_ns[uuid] = max(end_ns, self._ended_ns.get(uuid, 0))

    def look(self, timelines: Mapping[str, Timeline], running: Mapping[str, str], now_ns: int) -> None:
        """Advance the detectors. `running`: the innermost open region, by device UUID."""
        for uuid, timeline in timelines.items():
            kept, detector = self._detectors.get(uuid, (None, None))
            if detector is None or kept is not timeline:
                detector = SpinningDetector(timeline.device, timeline, self._thresholds)
                self._detectors[uuid] = timeline, detector
            self._advance(uuid, detector, running.get(uuid), now_ns)

    def _advance(self, uuid: str, detector: SpinningDetector, region: str | None, now_ns: int) -> None:
        before, counted_ns = detector.spin, detector.total_ns or 0
        ended_ns = self._ended_ns.get(uuid, 0) if region is not None else None
        spin = detector.advance(now_ns, region_ended_ns=ended_ns)
        here = {} if spin is None or region is None else {(region, uuid): spin}
        if region is not None and (grown_ns := (detector.total_ns or 0) - counted_ns):
            self.total_ns[region, uuid] += grown_ns
        gone = [key for key in self.spins if key[1] == uuid and key not in here]
        new = [key for key in here if key not in self.spins]
        for key in gone:
            del self.spins[key]
        self.spins |= here
        for key in (*gone, *new):
            self._changed(*key)
        if spin is not None and before is None:
            # Without an open region, the kernel may be another process's.
            where = "no region is open" if region is None else f"region {region} of process {os.getpid()}"
            self._report(Event(uuid, spin.onset_ns, "spinning", message=f"{where}: {spin.text(now_ns)}"))
        elif before is not None and spin is None:
            seconds = (now_ns - before.onset_ns) / NS_PER_S
            self._report(Event(uuid, now_ns, "moving", message=f"it does not spin any more, after {seconds:.0f} s"))

    def _report(self, event: Event) -> None:
        _log.warning("gpu-profile: %s: %s", event.device, event.message)
        for sink in list(self.event_sinks):
            sink(event)
