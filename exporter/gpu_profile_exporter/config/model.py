"""The table of settings: each is one field here, with its default, its bounds, its help and others' words for it.

From a field `interval_s` of `otlp` follow the flag `--otlp-interval`, the variable `GPU_PROFILE_EXPORTER_OTLP_INTERVAL`
and the key `interval` under `[otlp]` in TOML. A trailing `_s` says that a field is in seconds.
"""

# ruff: noqa: RUF009 - what `setting` makes is a field
from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpu_profile.catalogue import Group
from gpu_profile.errors import UsageError
from gpu_profile_exporter.config.address import Address
from gpu_profile_exporter.config.groups import chosen_groups, known_words
from gpu_profile_exporter.config.kinds import (
    Choice,
    File,
    FileMode,
    Headers,
    Listen,
    Number,
    Switch,
    Text,
    Words,
    shown,
)
from gpu_profile_exporter.config.receive import Receive
from gpu_profile_exporter.config.setting import Alias, Setting, check, milliseconds, places, setting, settings_of
from gpu_profile_exporter.exposition.budget import SERIES_BUDGET

if TYPE_CHECKING:
    from gpu_profile_exporter.push.settings import Endpoint, Endpoints

_KUBELET_SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
#: OpenTelemetry's variables for pushing; those for one signal alone go on with its name.
OTLP: Final = "OTEL_EXPORTER_OTLP_"
SIGNALS: Final = ("metrics", "logs")


def known_labels() -> Sequence[str]:
    """What `--attribution-labels` takes."""
    from gpu_profile_exporter.attribution import LABELS

    return tuple(LABELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmSettings:
    """dcgm-exporter compatibility."""

    csv: Path | None = setting(
        None,
        File(),
        "File of the metrics to publish under dcgm-exporter's names, as it reads it; without it, its default ones.",
        Alias(("-f", "--collectors"), ("DCGM_EXPORTER_COLLECTORS",)),
    )
    hostname_label: str = setting(
        "both",
        Choice("Hostname", "hostname", "both", "none"),
        "The label that names this host on dcgm's metrics: newer releases write it small.",
        Alias(("-n", "--no-hostname"), ("DCGM_EXPORTER_NO_HOSTNAME",), says="none"),
    )
    hostname: str = setting(
        "",
        Text("NAME"),
        "This host's name in that label; without it, the system's.",
        Alias(("--hostname",), ("NODE_NAME",)),
    )

    def __post_init__(self) -> None:
        check(self, "dcgm")

    def host(self, system: str) -> tuple[str, str]:
        """The name to give this host, which the system calls `system`, and its label; no name for no label."""
        if self.hostname_label == "none":
            return "", "both"
        return self.hostname or system, self.hostname_label


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionSettings:
    """Attribution of GPUs to workloads."""

    pods: str = setting(
        "auto",
        Choice("auto", "on", "off"),
        "Ask the kubelet which pods hold which devices; auto asks where its socket is.",
        Alias(("-k", "--kubernetes"), ("DCGM_EXPORTER_KUBERNETES",), says="on"),
    )
    kubelet_socket: Path | None = setting(
        _KUBELET_SOCKET,
        File(),
        "The kubelet's socket for pod resources.",
        Alias(("--pod-resources-kubelet-socket",), ("DCGM_POD_RESOURCES_KUBELET_SOCKET",)),
    )
    dra: bool = setting(
        True,
        Switch(),
        "Ask it for devices that pods hold by dynamic resource allocation too.",
        Alias(("--kubernetes-enable-dra",), ("KUBERNETES_ENABLE_DRA",), says="true"),
    )
    job_mapping_dir: Path | None = setting(
        None,
        File("DIRECTORY"),
        "Directory with a file for each GPU that names its batch jobs, as dcgm-exporter reads it.",
        Alias(("--hpc-job-mapping-dir",), ("DCGM_HPC_JOB_MAPPING_DIR",)),
    )
    containers: bool = setting(
        True, Switch(), "Find the container, batch job or service of each process that uses a GPU."
    )
    labels: tuple[str, ...] = setting(
        (),
        Words(known_labels, "LABEL,..."),
        "Labels that put a device's only holder on its own series, which then change with every holder.",
    )

    def __post_init__(self) -> None:
        check(self, "attribution")


def pushes(ctx: click.Context) -> bool:
    """Whether anything is pushed: in many a cluster OTEL_… are set for programs that can use what this one cannot."""
    variables = (f"{OTLP}{signal.upper()}_ENDPOINT" for signal in SIGNALS)
    return "otlp_endpoint" in places(ctx) or any(map(os.environ.get, variables))


def _otlp(name: str, read: Callable[[str], str] = str.strip) -> Alias:
    return Alias((), (f"{OTLP}{name}",), read, counts=pushes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Otlp:
    """OTLP push.

    The environment's OTEL_EXPORTER_OTLP_METRICS_… and …_LOGS_… say something of one signal alone, so what is pushed
    where is in `endpoints`.
    """

    endpoint: str = setting(
        "",
        Text("URL"),
        "Where to push metrics and events to, as in http://collector:4318; empty pushes nothing.",
        Alias((), (f"{OTLP}ENDPOINT",), str.strip),
    )
    protocol: str = setting("http/protobuf", Choice("http/protobuf", "grpc"), "How to push.", _otlp("PROTOCOL"))
    headers: tuple[tuple[str, str], ...] = setting(
        (),
        Headers(),
        "Headers to send, such as an authorization. They are never shown; others may see what is on a command line.",
        _otlp("HEADERS"),
        secret=True,
    )
    interval_s: float = setting(
        15.0,
        Number(1, 3600, "seconds"),
        "Seconds between two pushes.",
        Alias((), ("OTEL_METRIC_EXPORT_INTERVAL",), milliseconds, counts=pushes),
    )
    timeout_s: float = setting(
        10.0, Number(0.1, 300, "seconds"), "Seconds that one try may take.", _otlp("TIMEOUT", milliseconds)
    )
    compression: str = setting("gzip", Choice("gzip", "none"), "How to pack what is pushed.", _otlp("COMPRESSION"))
    insecure: bool = setting(
        False, Switch(), "With grpc, for an endpoint without a scheme: without TLS.", _otlp("INSECURE")
    )
    ca_file: Path | None = setting(
        None, File(), "Certificates to trust, in place of the system's.", _otlp("CERTIFICATE")
    )
    client_cert: Path | None = setting(
        None, File(), "This exporter's certificate, for a collector that asks for one.", _otlp("CLIENT_CERTIFICATE")
    )
    client_key: Path | None = setting(None, File(), "The key of that certificate.", _otlp("CLIENT_KEY"))
    #: Where each signal goes to, all told; None: where the settings above say.
    resolved: Endpoints | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self, "otlp")
        if self.resolved is None:
            _ = self.endpoints

    @property
    def endpoints(self) -> Endpoints | None:
        """Where metrics and events are pushed to, and how; None if nothing is pushed."""
        if self.resolved is not None or not self.endpoint:
            return self.resolved
        from gpu_profile_exporter.push.settings import Endpoints, endpoint

        values = {row.field: (getattr(self, row.field), row.flag) for row in SETTINGS if row.topic == "otlp"}
        return Endpoints(**{signal: endpoint(signal, values) for signal in SIGNALS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Forwarding of what was received."""

    endpoint: str = setting(
        "", Text("URL"), "The next receiver over OTLP, as in http://collector:4318.", Alias(("--forward",))
    )
    protocol: str = setting("http/protobuf", Choice("http/protobuf", "grpc"), "How to send them on.")
    headers: tuple[tuple[str, str], ...] = setting(
        (), Headers(), "Headers to send, such as an authorization; never shown.", secret=True
    )
    timeout_s: float = setting(10.0, Number(0.1, 300, "seconds"), "Seconds that one try may take.")
    compression: str = setting(
        "none", Choice("gzip", "none"), "How to pack what is sent on; gzip takes more time than all the rest."
    )
    insecure: bool = setting(False, Switch(), "With grpc, for an endpoint without a scheme: without TLS.")
    ca_file: Path | None = setting(None, File(), "Certificates to trust, in place of the system's.")
    client_cert: Path | None = setting(None, File(), "This exporter's certificate, for a receiver that asks for one.")
    client_key: Path | None = setting(None, File(), "The key of that certificate.")
    queue: Path | None = setting(
        None, File("DIRECTORY"), "Keep what waits here too, so that the next start finds it if this one is killed."
    )
    queue_mib: int = setting(1024, Number(64, 1 << 20, "MiB", whole=True), "The most that may wait there, in MiB.")

    def __post_init__(self) -> None:
        check(self, "forward")
        _ = self.target("traces")

    def target(self, signal: str) -> Endpoint | None:
        """The next receiver of a signal; None without one. UsageError if it cannot be one."""
        if not self.endpoint:
            return None
        from gpu_profile_exporter.push.settings import endpoint

        return endpoint(
            signal, {row.field: (getattr(self, row.field), row.flag) for row in SETTINGS if row.topic == "forward"}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Logging."""

    level: str = setting(
        "info",
        Choice("debug", "info", "warning", "error"),
        "What to log to standard error.",
        Alias(("--debug",), ("DCGM_EXPORTER_DEBUG",), says="debug"),
    )
    format: str = setting(
        "text", Choice("text", "json"), "How; a record is one line.", Alias((), ("DCGM_EXPORTER_LOG_FORMAT",))
    )

    def __post_init__(self) -> None:
        check(self, "log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """An exporter's settings; UsageError if one is out of bounds. Times are in seconds."""

    listen: Address = setting(
        Address(),
        Listen(),
        "Address to serve on: :9400, 127.0.0.1:9400, [::1]:9400; port 0 takes a free one.",
        Alias(("-a", "--address"), ("DCGM_EXPORTER_LISTEN",)),
    )
    web_config_file: Path | None = setting(
        None,
        File(),
        "TLS and passwords of the listener, as Prometheus' exporter-toolkit has them.",
        Alias(("--web.config.file",), ("DCGM_EXPORTER_WEB_CONFIG_FILE",)),
    )
    driver: str = setting(
        "auto",
        Text("auto|nvml|smi|none|node[:DIR]|simulated[:DIR]|replay:DIR"),
        "What to read the GPUs through.",
        Alias((), ("GPU_PROFILE_BACKEND",)),
    )
    interval_s: float = setting(
        0.1,
        Number(0.01, 60, "seconds"),
        "Seconds between two readings.",
        Alias(("-c", "--collect-interval"), ("DCGM_EXPORTER_INTERVAL",), milliseconds, word="MILLISECONDS"),
    )
    names: str = setting(
        "semconv",
        Choice("semconv", "dcgm", "both"),
        "Names of the metrics: OpenTelemetry's, dcgm-exporter's or both; with a dcgm.csv file, both is the default.",
    )
    collect: tuple[str, ...] = setting(
        (),
        Words(known_words, "GROUP,..."),
        "Groups of metrics to collect besides the default ones; all of them; or none, and the groups named beside it.",
    )
    processes: bool = setting(False, Switch(), "Publish what each process uses.")
    process_names: bool = setting(False, Switch(), "Publish the names of these processes too, never their arguments.")
    series_budget: int = setting(
        SERIES_BUDGET,
        Number(100, 1_000_000, "series", whole=True),
        "The most series to publish; those beyond it are dropped and counted.",
    )
    timeline: Path | None = setting(
        None,
        File("DIRECTORY"),
        "Keep samples here for other processes (driver node): a directory in memory such as /run/gpu-profile.",
    )
    timeline_retention_s: float = setting(
        600.0, Number(10, 86400, "seconds"), "Seconds for which the timeline keeps samples."
    )
    timeline_mode: str = setting("644", FileMode(), "Who may read the timeline.")
    timeline_group: str = setting(
        "", Text("GROUP"), "The timeline's group, by name or number; without it, this process's."
    )
    dcgm: DcgmSettings = field(default_factory=DcgmSettings)
    attribution: AttributionSettings = field(default_factory=AttributionSettings)
    otlp: Otlp = field(default_factory=Otlp)
    receive: Receive = field(default_factory=Receive)
    forward: Forward = field(default_factory=Forward)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        check(self, "")
        chosen_groups(self.collect)

    def remarks(self) -> Iterator[str]:
        """What may not be as it was meant, a line each."""
        if self.interval_s > 1:
            yield f"with {self.interval_s:g} s between two readings, what happens in between is not seen"
        if self.dcgm.csv is not None and self.names == "semconv":
            yield f"{self.dcgm.csv} is not used: names = semconv has none of dcgm-exporter's names"
        if self.forward.endpoint and not self.receive.any:
            yield "forward changes nothing without receive_http or receive_grpc"
        if self.process_names and not self.processes:
            yield "process_names changes nothing without processes"

    @property
    def timeline_group_id(self) -> int | None:
        """The group's number; None without one. UsageError if there is no such group."""
        name = self.timeline_group
        if not name or (name.isascii() and name.isdecimal()):
            return int(name) if name else None
        import grp

        try:
            return grp.getgrnam(name).gr_gid
        except KeyError:
            raise UsageError(f"--timeline-group: there is no group {shown(name)}") from None

    @property
    def groups(self) -> frozenset[Group]:
        """The groups of signals to read."""
        return chosen_groups(self.collect)


#: Every setting, in the order of the help page.
SETTINGS: Final[tuple[Setting, ...]] = tuple(settings_of(Config))
#: The tables of the file, and what holds them.
TOPICS: Final[Mapping[str, Any]] = {
    row.name: row.default_factory for row in fields(Config) if isinstance(row.default_factory, type)
}
#: What each part of the settings is about.
TITLES: Final[Mapping[str, str]] = {
    "": "Sampling and endpoint",
    **{topic: (owner.__doc__ or topic).partition(".")[0] for topic, owner in TOPICS.items()},
}
BY_NAME: Final = {row.dotted: row for row in SETTINGS}
