"""Assembles an exporter: the readers of the devices, attribution, the server, the push, the sidecar, and LLM costs."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from gpu_profile.catalogue import Group
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver.grammar import check_spec
from gpu_profile.errors import GpuBackendError, UsageError
from gpu_profile_exporter import version
from gpu_profile_exporter.attribution.labelling import labelled
from gpu_profile_exporter.config import Config
from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.naming.schemes import choose
from gpu_profile_exporter.naming.series import Naming
from gpu_profile_exporter.naming.sums import totals
from gpu_profile_exporter.operating.release import ReleaseSocket
from gpu_profile_exporter.reader.readers import Readers
from gpu_profile_exporter.readings.health import Health, health
from gpu_profile_exporter.readings.node_readings import NodeReadings, without_devices
from gpu_profile_exporter.server import Rendering, Server
from gpu_profile_exporter.server.page import NodeLive, PageData, describe
from gpu_profile_exporter.server.routes import Routes

if TYPE_CHECKING:
    from gpu_profile.driver.simulated.temporary import TemporaryFolder
    from gpu_profile_exporter.attribution import Attribution
    from gpu_profile_exporter.push import Pusher
    from gpu_profile_exporter.reader.timeline import NodeTimeline
    from gpu_profile_exporter.readings.readings import MetricReading
    from gpu_profile_exporter.serving import ServingCosts
    from gpu_profile_exporter.sidecar import Sidecar

_log = logging.getLogger("gpu_profile_exporter")

#: These drivers are retried for ever, because hardware may appear later. A failure of any other is the user's error.
_HARDWARE: Final = ("auto", "nvml", "smi")
_FIRST_ANSWER_S: Final = 2.0
#: The time limit for the first answer of a driver without hardware.
_OPENED_S: Final = 10.0
#: The time for which SIGUSR1 releases the GPUs.
RELEASE_S: Final = 60.0


class ExporterNode:
    """An exporter. It reads and serves between `start()` and `stop()`. This process never calls the driver."""

    def __init__(self, config: Config, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config
        self.clock = clock
        self._temporary: TemporaryFolder | None = None
        try:
            check_spec(config.driver)
        except GpuBackendError as error:
            raise UsageError(f"--driver: {error}") from error
        naming, groups = _naming(config)
        self.readers = Readers(
            self._driver(),
            interval_s=config.interval_s,
            groups=sorted(config.groups | groups),
            # An engine's costs need the list too: it shows whether other programs use the engine's GPUs.
            processes=config.processes or config.attribution.containers or bool(config.serving.engines),
            clock=clock,
            timeline=(timeline := self._timeline()),
        )
        attribution = self._attribution = self._attribute()
        if attribution is not None:
            self.readers.sample_sinks.append(attribution.take_samples)
        if timeline is not None and attribution is not None:
            timeline.holders = attribution.holders
        label: Callable[[Iterator[MetricReading]], Iterator[MetricReading]] | None = None
        if attribution is not None and config.attribution.labels:
            label = partial(labelled, labels_for=attribution.labels_for)
        if config.receive.any and self._reads_timeline:
            label = without_devices
        read = self.readings = NodeReadings(self.readers, config.driver, version(), clock=clock, label=label)
        self._live = NodeLive(
            self.readers, lambda: (read.identity, read.simulated), clock=clock, interval_s=config.interval_s
        )
        self._live.holders, self._live.timeline = attribution, self._timeline_directory()
        self._live.refresh = self.readers.refresh
        self.readers.sample_sinks.append(self._live.recent.take)
        self.readers.event_sinks.append(self._live.recent.event)
        self._pusher = self._push()
        read.reporters += [part for part in (attribution, self._pusher) if part is not None]
        self._exposition = Exposition(
            read if config.names == "semconv" else lambda: totals(read()), naming, budget=config.series_budget
        )
        self._serving = self._live.costs = self._serve_costs()
        self._sidecar = self._receive()
        if self._sidecar is not None:
            self._live.regions = self._sidecar.pipeline.join.live
        self._server: Server | None = None
        self._release_socket: ReleaseSocket | None = None

    @property
    def _reads_timeline(self) -> bool:
        """Whether the samples come from the timeline of another exporter."""
        return self.config.driver.strip().partition(":")[0] == "node"

    def _timeline(self) -> NodeTimeline | None:
        config = self.config
        if config.timeline is None:
            return None
        # Imported here, with the directory's name below, because it takes 0.5 MiB of RAM.
        from gpu_profile_exporter.reader.timeline import NodeTimeline, TimelineOptions

        mode, group = int(config.timeline_mode, 8), config.timeline_group_id
        place = TimelineOptions(config.timeline, config.timeline_retention_s, mode, group)
        return NodeTimeline(place, interval_s=config.interval_s, clock=self.clock)

    def _timeline_directory(self) -> Path | None:
        """The directory of the timeline that this exporter keeps or reads."""
        argument = self.config.driver.strip().partition(":")[2]
        if self.config.timeline is not None or not self._reads_timeline:
            return self.config.timeline
        from gpu_profile.driver.node.table import directory_of

        return directory_of(argument or None, os.environ)

    def _driver(self) -> str:
        """The driver's name for readers. `simulated` becomes one directory, so that all readers share a node."""
        if self.config.driver.strip() != "simulated":
            return self.config.driver
        from gpu_profile.driver import simulated
        from gpu_profile.driver.simulated.temporary import TemporaryFolder

        self._temporary = TemporaryFolder()
        return f"simulated:{simulated.create(self._temporary.path, clock=self.clock)}"

    def _attribute(self) -> Attribution | None:
        config = self.config.attribution
        if config.pods == "off" and config.job_mapping_dir is None and not (config.containers or self.config.processes):
            return None
        from gpu_profile_exporter.attribution import Attribution

        return Attribution(
            lambda: self.readers.states,
            config,
            processes=self.config.processes,
            process_names=self.config.process_names,
            clock=self.clock,
        )

    def _push(self) -> Pusher | None:
        endpoints = self.config.otlp.endpoints
        if endpoints is None:
            return None
        from gpu_profile_exporter.push import Pusher, resource_attributes

        host, port = socket.gethostname(), self.config.listen.port
        pusher = Pusher(
            self.readings,
            metrics=endpoints.metrics,
            logs=endpoints.logs,
            interval_s=self.config.otlp.interval_s,
            resource=resource_attributes(os.environ, version=version(), host=host, instance=f"{host}:{port}"),
            version=version(),
            clock=self.clock,
        )
        self.readers.event_sinks.append(pusher.event)
        return pusher

    def _serve_costs(self) -> ServingCosts | None:
        if not self.config.serving.engines:
            return None
        # Imported here because it takes 40 MiB of RAM, most of it numpy's.
        from gpu_profile_exporter.serving import ServingCosts

        serving = ServingCosts(self.config.serving, self.readers, self.clock, from_timeline=self._reads_timeline)
        self.readers.sample_sinks.append(serving.take_samples)
        self.readings.reporters.append(serving)
        return serving

    def _receive(self) -> Sidecar | None:
        if not self.config.receive.any:
            return None
        from gpu_profile_exporter.sidecar import Sidecar

        sidecar = Sidecar(
            self.config, version=version(), clock=self.clock, environ=dict(os.environ), serving=self._serving
        )
        self.readings.reporters.append(sidecar)
        return sidecar

    # ------------------------------------------------------------------ running

    def start(self) -> None:
        """Serve, then read. UsageError for an address, a driver or a file that cannot be used."""
        routes = Routes(self._exposition.render, self.health, self.devices, self._live)
        self._server = Server(
            self.config.listen, partial(Rendering, routes.respond), web_config=self.config.web_config_file
        )
        self.readings.reporters.append(self._server)
        self._server.start()
        self.readers.start()
        if not _waits_for_hardware(self.config.driver):
            self._wait(_OPENED_S)
            if self.readers.driver is None and self.readers.stats.turned_ns:
                self.stop()
                raise UsageError(f"--driver: {self.readers.problem}")
        if self._attribution is not None:
            self._attribution.start()
        if self._pusher is not None:
            self._pusher.start()
        if self._serving is not None:
            self._serving.start()
        if self._sidecar is not None:
            self._sidecar.start()
        self._release_socket = ReleaseSocket.open(self._server.address.port, self.release)

    def stop(self) -> None:
        """Stop all parts. Takes less than 2 s even if the driver hangs."""
        if self._release_socket is not None:
            self._release_socket.close()
        if self._sidecar is not None:
            self._sidecar.stop(1.0)
        if self._serving is not None:
            self._serving.stop()
        if self._pusher is not None:
            self._pusher.stop(1.0)
        if self._server is not None:
            self._server.stop()
        self.readers.stop(timeout_s=0.5)
        if self._attribution is not None:
            self._attribution.stop(0.2)
        if self._temporary is not None:
            self._temporary.remove()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait(self, timeout_s: float) -> None:
        """Wait until the driver has answered or failed for the first time."""
        deadline = time.monotonic() + timeout_s
        while self.readers.driver is None and not self.readers.stats.turned_ns and time.monotonic() < deadline:
            time.sleep(0.01)

    def release(self, seconds: float = RELEASE_S) -> bool:
        """Release every GPU for this time. True once no process of this exporter has one open."""
        return self.readers.release(seconds)

    def reload(self) -> None:
        """Read the files of the listener and of the sidecar again."""
        if self._server is not None:
            self._server.reload()
        if self._sidecar is not None:
            self._sidecar.reload()

    # ------------------------------------------------------------------ reporting

    @property
    def url(self) -> str:
        """The address of the server, with the actual port."""
        return self._server.url if self._server is not None else f"http://{self.config.listen}"

    def headline(self) -> str:
        """One line with version, devices and address. Waits up to 2 s for the driver's first answer."""
        self._wait(_FIRST_ANSWER_S)
        if self.readers.driver is None:
            status = f"not ready ({self.health().reason})"
        else:
            n = len(self.readers.states)
            status = f"{n} {'device' if n == 1 else 'devices'} through {self.readings.identity.driver}"
        mark = " (SIMULATED)" if self.readings.simulated else ""
        return f"gpu-profile-exporter {self.readings.identity.version}: {status}{mark} on {self.url}/metrics"

    def health(self) -> Health:
        """The exporter's state."""
        return health(self.readers, self.readers.now_ns())

    def devices(self) -> PageData:
        """The data of /api/devices."""
        readings = self.readings
        self.readers.refresh()
        return describe(self.readers, readings.identity, self.readers.now_ns(), simulated=readings.simulated)


def _naming(config: Config) -> tuple[Naming, frozenset[Group]]:
    """The scheme of names, and the groups of signals that it requires."""
    if config.names == "semconv":
        return choose("semconv"), frozenset()
    from gpu_profile_exporter.naming.dcgm_csv import read_counters
    from gpu_profile_exporter.naming.dcgm_fields import default_counters, groups

    counters = default_counters(config.dcgm.names) if config.dcgm.csv is None else read_counters(config.dcgm.csv)
    for warning in counters.warnings:
        _log.warning("%s", warning)
    hostname, label = config.dcgm.host(socket.gethostname())
    naming = choose(config.names, counters=counters, hostname=hostname, hostname_label=label)
    return naming, groups(counters)


def _waits_for_hardware(spec: str) -> bool:
    word = spec.strip().partition(":")[0]
    # A node's timeline appears with the exporter that writes it.
    if word in (*_HARDWARE, "node"):
        return True
    # Imported here because it takes 2 MiB of RAM.
    from importlib.metadata import entry_points

    from gpu_profile.driver.grammar import ENTRY_POINTS

    return bool(entry_points(group=ENTRY_POINTS, name=word))
