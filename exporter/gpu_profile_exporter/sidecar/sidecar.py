"""Builds receiving, joining and forwarding from the settings."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from gpu_profile.catalogue import receive as rows
from gpu_profile.clock import Clock
from gpu_profile.driver.node.table import directory_of
from gpu_profile.errors import UsageError
from gpu_profile.regions.telemetry.server_spans import parse_rule
from gpu_profile.units import MIB
from gpu_profile_exporter.config import Address, Config, Forward
from gpu_profile_exporter.push.disk_queue import DiskQueue
from gpu_profile_exporter.push.pusher import client
from gpu_profile_exporter.push.queue import BatchQueue
from gpu_profile_exporter.push.sender import Sender
from gpu_profile_exporter.readings.readings import MetricReading
from gpu_profile_exporter.server import Server
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.sidecar.grpc_receiver import GrpcReceiver
from gpu_profile_exporter.sidecar.joining import SpanJoin
from gpu_profile_exporter.sidecar.messages import halved
from gpu_profile_exporter.sidecar.pipeline import MOST_HELD, MOST_SENT, SpanPipeline
from gpu_profile_exporter.sidecar.receiver import REASONS, Receiver, passed_to, spans_to
from gpu_profile_exporter.sidecar.request_costs import RequestCosts

if TYPE_CHECKING:
    from gpu_profile_exporter.serving import ServingCosts

#: Most bytes and batches per signal that wait for the next receiver in memory.
_MOST_BYTES: Final = 256 * MIB
_MOST_BATCHES: Final = 4_096
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - only compared
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
#: Additional size on disk for files that are partly processed.
_FILES: Final = 32 * MIB


class Sidecar:
    """Receives spans, joins them with the node's timeline, and forwards them, from `start` to `stop`.

    Forwards other signals of `receive.also` unchanged. With `serving`, spans of an LLM server's requests get their
    costs. Raises UsageError if the settings lack the next receiver or the samples, or if packages are missing.
    """

    def __init__(
        self,
        config: Config,
        *,
        version: str,
        clock: Clock,
        environ: dict[str, str],
        serving: ServingCosts | None = None,
    ) -> None:
        settings = config.receive
        flag = "--receive-http" if settings.http is not None else "--receive-grpc"
        if not config.forward.endpoint:
            raise UsageError(f"{flag}: needs --forward, the next receiver of the spans")
        try:
            import opentelemetry.proto.collector.trace.v1.trace_service_pb2  # noqa: F401
        except ImportError as error:
            raise UsageError("receiving spans needs OTLP's messages: pip install 'gpu-profile[sidecar]'") from error
        try:
            rule = parse_rule(settings.spans)
        except UsageError as error:
            raise UsageError(f"--receive-spans: {error}") from error
        join = SpanJoin(
            _timeline(config, flag, environ),
            rule,
            late_s=settings.late_s,
            retention_s=config.timeline_retention_s,
            clock=clock,
        )
        self._gzip = config.forward.compression == "gzip"
        received = _on_disk(config.forward, "received", MOST_HELD + _FILES)
        self._senders = {
            signal: _sender(config.forward, signal, version, clock) for signal in ("traces", *settings.also)
        }
        costs = RequestCosts(serving) if serving is not None else None
        self.pipeline = SpanPipeline(join, self._senders["traces"], clock, gzip=self._gzip, disk=received, costs=costs)
        takes = {"traces": spans_to(self.pipeline.take)} | {
            signal: passed_to(self._senders[signal], signal, gzip=self._gzip) for signal in settings.also
        }
        web = config.web_config_file
        self.counts: list[Counts] = []
        self.server: Server | None = None
        if settings.http is not None:
            receiver = partial(Receiver, takes, prompt=self.pipeline.prompt)
            self.server = Server(settings.http, receiver, web_config=web, flag="--receive-http")
            self.counts.append(self.server.counts)
        self.grpc_server: GrpcReceiver | None = None
        if settings.grpc is not None:
            self.counts.append(Counts())
            self.grpc_server = GrpcReceiver(settings.grpc, takes, self.counts[-1], web_config_file=web)
        _refuse_own(config.forward.endpoint, [server.address for server in self._servers])

    @property
    def _unchanged(self) -> list[Sender]:
        """The senders of the signals that are forwarded unchanged."""
        return [sender for signal, sender in self._senders.items() if signal != "traces"]

    @property
    def _servers(self) -> list[Server | GrpcReceiver]:
        return [server for server in (self.server, self.grpc_server) if server is not None]

    def start(self) -> None:
        """Start receiving, joining and forwarding."""
        self.pipeline.start()
        for sender in self._unchanged:
            sender.start()
        for server in self._servers:
            server.start()

    def stop(self, timeout_s: float) -> None:
        """Receive no more, and forward as much queued data as the next receiver accepts within `timeout_s`."""
        for server in self._servers:
            server.stop()
        for sender in self._unchanged:
            sender.ask_to_stop(timeout_s)
        self.pipeline.stop(timeout_s)
        for sender in self._unchanged:
            sender.wait_until_stopped(0.1)

    def reload(self) -> None:
        """Read the files of the listener again."""
        if self.server is not None:
            self.server.reload()

    def readings(self, now_ns: int) -> Iterator[MetricReading]:
        """The sidecar's own metrics, and the metrics of the received regions."""
        answered: Counter[int] = Counter()
        refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        for counts in self.counts:
            for (_, status), n in dict(counts.requests).items():
                answered[status] += n
            refused.update(counts.rejected)
        for status, n in sorted(answered.items()):
            yield MetricReading(rows.REQUESTS, {"http.response.status_code": str(status)}, n)
        for reason, n in sorted(refused.items()):
            yield MetricReading(rows.REFUSED, {"reason": reason}, n)
        yield from self.pipeline.readings(now_ns)
        for sender in self._unchanged:
            yield from sender.readings(now_ns)
        yield from self.pipeline.join.readings(now_ns)


def _refuse_own(endpoint: str, addresses: Iterable[Address]) -> None:
    """Raise UsageError if `endpoint` is one of `addresses`: the data would circulate forever."""
    parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
    for address in addresses:
        names = {address.host} if address.host not in _EVERYWHERE else {*_HERE, socket.gethostname()}
        names |= _HERE if address.host in _HERE else set()
        if parts.port == address.port and parts.hostname in names:
            raise UsageError(f"--forward: {endpoint} is this receiver itself")


def _sender(settings: Forward, signal: str, version: str, clock: Clock) -> Sender:
    target = settings.target(signal)
    if target is None:
        raise UsageError("--forward: names no receiver")
    disk = _on_disk(settings, signal, settings.queue_mib * MIB)
    return Sender(
        signal,
        client(target, signal, version),
        where=target.url.partition("?")[0],
        timeout_s=target.timeout_s,
        clock=clock,
        queue=BatchQueue(_MOST_BYTES, _MOST_BATCHES, MOST_SENT, disk),
        rng=random.Random(),  # noqa: S311 - spreads load, keeps no secret
        halved=partial(halved, signal=signal),
    )


def _on_disk(settings: Forward, name: str, most_bytes: int) -> DiskQueue | None:
    if settings.queue is None:
        return None
    try:
        return DiskQueue(settings.queue / name, most_bytes)
    except UsageError as error:
        raise UsageError(f"--forward-queue: {error}") from error


def _timeline(config: Config, flag: str, environ: dict[str, str]) -> Path:
    """The directory of the timeline for the join: this exporter's own, or its driver's."""
    if config.timeline is not None:
        return config.timeline
    kind, _, argument = config.driver.strip().partition(":")
    if kind == "node":
        return directory_of(argument or None, environ)
    raise UsageError(f"{flag}: needs samples to join with: --timeline DIRECTORY, or --driver node:DIRECTORY")
