"""The answers of the live page at the exporter: samples as they arrive, and the present state of the node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Final, Protocol

from gpu_profile.catalogue.allocation import PROCESS_MEMORY, PROCESS_UTILIZATION
from gpu_profile.catalogue.samples import ProcessUse
from gpu_profile.clock import Clock
from gpu_profile.report.live import LiveFeed, LivePage, device_state
from gpu_profile.report.live.strands import KEEP_MS
from gpu_profile_exporter.readings.health import SampleSource, down_reason, silence, status
from gpu_profile_exporter.readings.readings import Identity, MetricReading
from gpu_profile_exporter.server.page.recent import RecentSamples

_LINKS: Final = (
    ("metrics", "metrics"),
    ("-/ready", "ready"),
    ("-/healthy", "healthy"),
    ("api/devices", "devices as JSON"),
)
NO_REGIONS: Final = (
    "No regions: the exporter shows them if it receives spans (--receive-http, --timeline, --forward). "
    "A program's own page has them: serve_metrics()."
)
NO_PROCESSES: Final = "No holder is known. --processes lists the processes."
_MS: Final = 1e6


class HolderReadings(Protocol):
    """The holders and the processes of devices, as the attribution has them."""

    def holders(self) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """The attributes of each device's holders, by UUID."""
        ...

    def readings(self, now_ns: int) -> Iterator[MetricReading]:
        """The metrics of processes, among others."""
        ...


class RegionRows(Protocol):
    """The regions of received spans."""

    def fill(self, feed: LiveFeed) -> None:
        """Add the executions and marks since the last call."""
        ...

    def state(self, feed: LiveFeed) -> Mapping[str, Any]:
        """The regions' present state, as keys of an answer."""
        ...


class CostRows(Protocol):
    """The costs of LLM engines."""

    def state(self) -> Mapping[str, Any]:
        """The engines' tenants and energies, as JSON."""
        ...


class NodeLive:
    """The live page of a node. `recent` takes the samples. Any thread may call `answer`."""

    def __init__(
        self, sampler: SampleSource, identity: Callable[[], tuple[Identity, bool]], *, clock: Clock, interval_s: float
    ) -> None:
        self._feed = LiveFeed(os.urandom(6).hex())
        self.recent: Final = RecentSamples(self._feed)
        #: The sources of holders and of regions, if the exporter has them.
        self.holders: HolderReadings | None = None
        self.regions: RegionRows | None = None
        #: The source of the costs of LLM engines. Without one, answers do not mention them.
        self.costs: CostRows | None = None
        #: The directory of the node's timeline, if there is one. It is read once, when the first viewer comes.
        self.timeline: Path | None = None
        #: Receives the samples that wait in readers.
        self.refresh: Callable[[], None] = lambda: None
        self._sampler = sampler
        self._identity = identity
        self._clock = clock
        self._interval_s = interval_s

    @property
    def page(self) -> LivePage:
        """The page itself."""
        from gpu_profile.report.live.page import live_page

        return live_page("gpu-profile exporter", _LINKS)

    def answer(self, after: str, *, packed: bool) -> bytes:
        """The rows after a cursor, as JSON. `packed`: compressed with gzip."""
        self.refresh()
        now_ns = self._clock.now_ns()
        directory, self.timeline = self.timeline, None
        if directory is not None:
            # In a thread of its own: the files of many devices take some tenths of a second.
            arguments = directory, now_ns - int(KEEP_MS * _MS)
            Thread(target=self._add_history, args=arguments, name="gpu-profile-history", daemon=True).start()
        with self.recent.lock:
            return self._feed.answer(after, now_ns / _MS, lambda: self._state(now_ns), packed=packed)

    def _add_history(self, directory: Path, since_ns: int) -> None:
        # Imported here because it takes 0.5 MiB of RAM.
        from gpu_profile_exporter.server.page.history import older_samples

        older = older_samples(directory, since_ns)
        with self.recent.lock:
            self.recent.fill()
            self._feed.prepend(older)

    def _state(self, now_ns: int) -> dict[str, Any]:
        self.recent.fill()
        identity, simulated = self._identity()
        sampler, holders, processes = self._sampler, self._holders(), self._processes(now_ns)
        regions: Mapping[str, Any] = {"regions": [], "regions_left_out": 0, "running": [], "region_note": NO_REGIONS}
        if self.regions is not None:
            regions = self.regions.state(self._feed)
            self.regions.fill(self._feed)
        return {
            **regions,
            **({} if self.costs is None else {"serving": self.costs.state()}),
            "version": identity.version,
            "source": f"{identity.version}, reading {identity.driver} {identity.driver_version}".strip(),
            "simulated": simulated,
            "interval_s": self._interval_s,
            "reason": silence(sampler, now_ns),
            "user_note": NO_PROCESSES,
            "devices": [
                device_state(
                    state.device,
                    state.timeline,
                    now_ns,
                    status=status(state, sampler, now_ns),
                    reason=down_reason(state, sampler, now_ns),
                    gone=not state.up,
                    throttled=self.recent.throttling.present(uuid, now_ns / _MS),
                    processes=processes.get(uuid, ()),
                    holders=holders.get(uuid, ()),
                )
                for uuid, state in list(sampler.states.items())
            ],
        }

    def _holders(self) -> Mapping[str, Sequence[Mapping[str, str]]]:
        return {} if self.holders is None else self.holders.holders()

    def _processes(self, now_ns: int) -> Mapping[str, list[tuple[ProcessUse, str]]]:
        """The processes that the metrics name too, with the names that these have."""
        uses: dict[tuple[str, int], tuple[str, dict[str, float]]] = {}
        for reading in () if self.holders is None else self.holders.readings(now_ns):
            about, metric = reading.attributes, reading.metric
            pid = about.get("process.pid", "")
            if metric in (PROCESS_MEMORY, PROCESS_UTILIZATION) and pid.isdigit():
                name = about.get("process.executable.name", "")
                uses.setdefault((about["hw.id"], int(pid)), (name, {}))[1][metric.otel] = reading.value
        processes: dict[str, list[tuple[ProcessUse, str]]] = {}
        for (uuid, number), (name, use) in uses.items():
            memory, busy = use.get(PROCESS_MEMORY.otel), use.get(PROCESS_UTILIZATION.otel)
            row = ProcessUse(number, None if memory is None else int(memory), busy)
            processes.setdefault(uuid, []).append((row, name))
        return processes
