"""Receiving, joining and sending on, put together from the settings."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from gpu_profile.catalogue import receive as rows
from gpu_profile.clock import Clock
from gpu_profile.driver.node.table import directory_of
from gpu_profile.errors import UsageError
from gpu_profile.regions.telemetry.server_spans import parse_rule
from gpu_profile.units import MIB
from gpu_profile_exporter.config import Config
from gpu_profile_exporter.push.pusher import client
from gpu_profile_exporter.push.sender import Sender
from gpu_profile_exporter.readings.readings import Reading
from gpu_profile_exporter.server import Server
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.sidecar.grpc_receiver import GrpcReceiver
from gpu_profile_exporter.sidecar.joining import SpanJoin
from gpu_profile_exporter.sidecar.pipeline import MOST_SENT, SpanPipeline
from gpu_profile_exporter.sidecar.receiver import REASONS, Receiver

#: What may wait for the next receiver.
_MOST_BYTES: Final = 256 * MIB
_MOST_BATCHES: Final = 4_096


class Sidecar:
    """Receives spans, joins them with the node's timeline, and sends them on, from `start` to `stop`.

    UsageError if the settings do not say where from, with what, or where to; or without the packages.
    """

    def __init__(self, config: Config, *, version: str, clock: Clock, environ: dict[str, str]) -> None:
        settings, target = config.receive, config.forward.target
        asked = "--receive-http" if settings.http is not None else "--receive-grpc"
        if target is None:
            raise UsageError(f"{asked}: needs --forward, where the spans go on to")
        try:
            import opentelemetry.proto.collector.trace.v1.trace_service_pb2  # noqa: F401
        except ImportError as error:
            raise UsageError("receiving spans needs OTLP's messages: pip install 'gpu-profile[sidecar]'") from error
        try:
            rule = parse_rule(settings.spans)
        except UsageError as error:
            raise UsageError(f"--receive-spans: {error}") from error
        join = SpanJoin(
            _timeline(config, asked, environ),
            rule,
            late_s=settings.late_s,
            retention_s=config.timeline_retention_s,
            clock=clock,
        )
        sender = Sender(
            "traces",
            client(target, "traces", version),
            where=target.url.partition("?")[0],
            timeout_s=target.timeout_s,
            clock=clock,
            most_bytes=_MOST_BYTES,
            most_batches=_MOST_BATCHES,
            most_together=MOST_SENT,
            rng=random.Random(),  # noqa: S311 - spreads load, keeps no secret
        )
        self.pipeline = SpanPipeline(join, sender, clock, gzip=target.compression == "gzip")
        take, web = self.pipeline.take, config.web_config_file
        self.counts: list[Counts] = []
        self.server: Server | None = None
        if settings.http is not None:
            self.server = Server(settings.http, partial(Receiver, take), web_config=web, flag="--receive-http")
            self.counts.append(self.server.counts)
        self.grpc_server: GrpcReceiver | None = None
        if settings.grpc is not None:
            self.counts.append(Counts())
            self.grpc_server = GrpcReceiver(settings.grpc, take, self.counts[-1], web_config_file=web)

    @property
    def _servers(self) -> list[Server | GrpcReceiver]:
        return [server for server in (self.server, self.grpc_server) if server is not None]

    def start(self) -> None:
        """Receive, join and send on."""
        self.pipeline.start()
        for server in self._servers:
            server.start()

    def stop(self, timeout_s: float) -> None:
        """Take no more, and send on what is held as far as the next receiver takes it within the time."""
        for server in self._servers:
            server.stop()
        self.pipeline.stop(timeout_s)

    def reload(self) -> None:
        """Read the files of the listener again."""
        if self.server is not None:
            self.server.reload()

    def readings(self, now_ns: int) -> Iterator[Reading]:
        """What it says of itself, and of the regions of what it received."""
        answered: Counter[int] = Counter()
        refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        for counts in self.counts:
            for (_, status), n in dict(counts.requests).items():
                answered[status] += n
            refused.update(counts.rejected)
        for status, n in sorted(answered.items()):
            yield Reading(rows.REQUESTS, {"http.response.status_code": str(status)}, n)
        for reason, n in sorted(refused.items()):
            yield Reading(rows.REFUSED, {"reason": reason}, n)
        yield from self.pipeline.readings(now_ns)
        yield from self.pipeline.join.readings(now_ns)


def _timeline(config: Config, asked: str, environ: dict[str, str]) -> Path:
    """The directory of the timeline that spans are joined with: this exporter's own, or the one that it reads."""
    if config.timeline is not None:
        return config.timeline
    kind, _, argument = config.driver.strip().partition(":")
    if kind == "node":
        return directory_of(argument or None, environ)
    raise UsageError(f"{asked}: needs samples to join with: --timeline DIRECTORY, or --driver node:DIRECTORY")
