"""The table of settings. Each field is one setting with its default, its bounds, its help and other programs' names.

The field `interval_s` of `otlp` gives the flag `--otlp-interval`, the variable `GPU_PROFILE_EXPORTER_OTLP_INTERVAL`
and the key `interval` under `[otlp]` in TOML. A trailing `_s` marks a field in seconds.
"""

# ruff: noqa: RUF009 - `setting` returns a dataclass field
from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpu_profile.catalogue import Group
from gpu_profile.catalogue.allocation import HOLDER_LABELS
from gpu_profile.errors import UsageError
from gpu_profile_exporter.config.address import Address
from gpu_profile_exporter.config.groups import chosen_groups, group_names
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
from gpu_profile_exporter.config.serving import ServingSettings
from gpu_profile_exporter.config.setting import Alias, Setting, check, milliseconds, places, setting, settings_of
from gpu_profile_exporter.exposition.budget import SERIES_BUDGET

if TYPE_CHECKING:
    from gpu_profile_exporter.push.settings import Endpoint, Endpoints

KUBELET_SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
#: Prefix of OpenTelemetry's variables for pushing. In variables of one signal, the signal's name follows.
OTLP: Final = "OTEL_EXPORTER_OTLP_"
SIGNALS: Final = ("metrics", "logs")


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmSettings:
    """dcgm-exporter compatibility."""

    csv: Path | None = setting(
        None,
        File(),
        "CSV file of the metrics to publish, in dcgm-exporter's format; without one, dcgm-exporter's default metrics.",
        Alias(("-f", "--collectors"), ("DCGM_EXPORTER_COLLECTORS",)),
    )
    names: str = setting(
        "4.5",
        Choice("4.5", "4.6", "both"),
        "Names of dcgm-exporter's default metrics: as in DCGM 4.5, as in 4.6, or both; a CSV file has its own names.",
    )
    hostname_label: str = setting(
        "both",
        Choice("Hostname", "hostname", "both", "none"),
        "Label of the host's name on dcgm-exporter's metrics; its newer releases write the label in lower case.",
        Alias(("-n", "--no-hostname"), ("DCGM_EXPORTER_NO_HOSTNAME",), says="none"),
    )
    hostname: str = setting(
        "",
        Text("NAME"),
        "This host's name in that label; empty uses the system's.",
        Alias(("--hostname",), ("NODE_NAME",)),
    )

    def __post_init__(self) -> None:
        check(self, "dcgm")

    def host(self, system: str) -> tuple[str, str]:
        """The host's name and the spelling of its label. `system` is the system's name. "" for no label."""
        if self.hostname_label == "none":
            return "", "both"
        return self.hostname or system, self.hostname_label


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionSettings:
    """Attribution of GPUs to workloads."""

    pods: str = setting(
        "auto",
        Choice("auto", "on", "off"),
        "Query the kubelet for the pods that hold devices; auto accepts that there is no kubelet.",
        Alias(("-k", "--kubernetes"), ("DCGM_EXPORTER_KUBERNETES",), says="on"),
    )
    kubelet_socket: Path | None = setting(
        KUBELET_SOCKET,
        File(),
        "The kubelet's socket for pod resources.",
        Alias(("--pod-resources-kubelet-socket",), ("DCGM_POD_RESOURCES_KUBELET_SOCKET",)),
    )
    dra: bool = setting(
        True,
        Switch(),
        "Query the kubelet for devices of dynamic resource allocation (DRA) too.",
        Alias(("--kubernetes-enable-dra",), ("KUBERNETES_ENABLE_DRA",), says="true"),
    )
    job_mapping_dir: Path | None = setting(
        None,
        File("DIRECTORY"),
        "Directory with one file per GPU that lists its batch jobs, in dcgm-exporter's format.",
        Alias(("--hpc-job-mapping-dir",), ("DCGM_HPC_JOB_MAPPING_DIR",)),
    )
    containers: bool = setting(
        True, Switch(), "Find the container, batch job or service of each process that uses a GPU."
    )
    labels: tuple[str, ...] = setting(
        (),
        Words(lambda: tuple(HOLDER_LABELS), "LABEL,..."),
        "Labels of a device's only holder to add to the device's series; each new holder then starts new series.",
    )

    def __post_init__(self) -> None:
        check(self, "attribution")


def pushes(ctx: click.Context) -> bool:
    """Whether an endpoint is set. Otherwise OTEL_… may be meant for other programs and are not checked."""
    variables = (f"{OTLP}{signal.upper()}_ENDPOINT" for signal in SIGNALS)
    return "otlp_endpoint" in places(ctx) or any(map(os.environ.get, variables))


def _otlp(name: str, read: Callable[[str], str] = str.strip) -> Alias:
    return Alias((), (f"{OTLP}{name}",), read, counts=pushes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Otlp:
    """OTLP push.

    The environment's OTEL_EXPORTER_OTLP_METRICS_… and …_LOGS_… apply to one signal each. `endpoints` takes them into
    account.
    """

    endpoint: str = setting(
        "",
        Text("URL"),
        "Where to push metrics and events to, as in http://collector:4318; empty pushes nothing.",
        Alias((), (f"{OTLP}ENDPOINT",), str.strip),
    )
    protocol: str = setting("http/protobuf", Choice("http/protobuf", "grpc"), "Push protocol.", _otlp("PROTOCOL"))
    headers: tuple[tuple[str, str], ...] = setting(
        (),
        Headers(),
        "Headers to send, such as an authorization. Never shown, but other users may see a command line.",
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
        10.0, Number(0.1, 300, "seconds"), "Seconds that one attempt may take.", _otlp("TIMEOUT", milliseconds)
    )
    compression: str = setting("gzip", Choice("gzip", "none"), "Compression of pushed data.", _otlp("COMPRESSION"))
    insecure: bool = setting(
        False, Switch(), "With grpc and an endpoint without a scheme: connect without TLS.", _otlp("INSECURE")
    )
    ca_file: Path | None = setting(
        None, File(), "Certificates to trust, in place of the system's.", _otlp("CERTIFICATE")
    )
    client_cert: Path | None = setting(
        None, File(), "This exporter's certificate, for a collector that requires one.", _otlp("CLIENT_CERTIFICATE")
    )
    client_key: Path | None = setting(None, File(), "The key of that certificate.", _otlp("CLIENT_KEY"))
    #: The endpoint of each signal, variables of single signals included. None: the settings above apply.
    resolved: Endpoints | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self, "otlp")
        if self.resolved is None:
            _ = self.endpoints

    @property
    def endpoints(self) -> Endpoints | None:
        """The endpoints of metrics and events with their settings. None if nothing is pushed."""
        if self.resolved is not None or not self.endpoint:
            return self.resolved
        from gpu_profile_exporter.push.settings import Endpoints, endpoint

        values = {row.field: (getattr(self, row.field), row.flag) for row in SETTINGS if row.topic == "otlp"}
        return Endpoints(**{signal: endpoint(signal, values) for signal in SIGNALS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Forwarding of received telemetry."""

    endpoint: str = setting(
        "", Text("URL"), "The next receiver over OTLP, as in http://collector:4318.", Alias(("--forward",))
    )
    protocol: str = setting("http/protobuf", Choice("http/protobuf", "grpc"), "Protocol of forwarding.")
    headers: tuple[tuple[str, str], ...] = setting(
        (), Headers(), "Headers to send, such as an authorization; never shown.", secret=True
    )
    timeout_s: float = setting(10.0, Number(0.1, 300, "seconds"), "Seconds that one attempt may take.")
    compression: str = setting(
        "none", Choice("gzip", "none"), "Compression of forwarded data; gzip takes more time than all other steps."
    )
    insecure: bool = setting(False, Switch(), "With grpc and an endpoint without a scheme: connect without TLS.")
    ca_file: Path | None = setting(None, File(), "Certificates to trust, in place of the system's.")
    client_cert: Path | None = setting(None, File(), "This exporter's certificate, for a receiver that requires one.")
    client_key: Path | None = setting(None, File(), "The key of that certificate.")
    queue: Path | None = setting(
        None, File("DIRECTORY"), "Keep queued data here too, so that the next start finds it if this one is killed."
    )
    queue_mib: int = setting(1024, Number(64, 1 << 20, "MiB", whole=True), "Largest size of that queue, in MiB.")

    def __post_init__(self) -> None:
        check(self, "forward")
        _ = self.target("traces")

    def target(self, signal: str) -> Endpoint | None:
        """The next receiver of a signal, None without one. Raises UsageError for an invalid endpoint."""
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
        "Lowest level to log to standard error.",
        Alias(("--debug",), ("DCGM_EXPORTER_DEBUG",), says="debug"),
    )
    format: str = setting(
        "text", Choice("text", "json"), "Log format; each record is one line.", Alias((), ("DCGM_EXPORTER_LOG_FORMAT",))
    )

    def __post_init__(self) -> None:
        check(self, "log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """An exporter's settings. Raises UsageError if one is out of bounds. Times are in seconds."""

    listen: Address = setting(
        Address(),
        Listen(),
        "Address to serve on: :9400 for all interfaces, 127.0.0.1:9400, [::1]:9400; port 0 takes a free one.",
        Alias(("-a", "--address"), ("DCGM_EXPORTER_LISTEN",)),
    )
    web_config_file: Path | None = setting(
        None,
        File(),
        "TLS and passwords of the listener: a web configuration file of Prometheus' exporter-toolkit.",
        Alias(("--web.config.file",), ("DCGM_EXPORTER_WEB_CONFIG_FILE",)),
    )
    driver: str = setting(
        "auto",
        Text("auto|nvml|smi|none|node[:DIR]|simulated[:DIR]|replay:DIR"),
        "Driver that reads the GPUs.",
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
        Words(group_names, "GROUP,..."),
        "Groups of metrics to collect besides the default ones; all; or none, to collect only the other named groups.",
    )
    processes: bool = setting(False, Switch(), "Publish the memory and utilisation of each process.")
    process_names: bool = setting(False, Switch(), "Publish the names of these processes too, never their arguments.")
    series_budget: int = setting(
        SERIES_BUDGET,
        Number(100, 1_000_000, "series", whole=True),
        "Most series to publish; further series are dropped and counted.",
    )
    timeline: Path | None = setting(
        None,
        File("DIRECTORY"),
        "Keep samples here for other processes (driver node): a directory in memory such as /run/gpu-profile.",
    )
    timeline_retention_s: float = setting(
        600.0, Number(10, 86400, "seconds"), "Seconds for which the timeline keeps samples."
    )
    timeline_mode: str = setting("644", FileMode(), "Permissions of the timeline's files, in octal.")
    timeline_group: str = setting(
        "", Text("GROUP"), "The timeline's group, by name or number; without it, this process's."
    )
    dcgm: DcgmSettings = field(default_factory=DcgmSettings)
    attribution: AttributionSettings = field(default_factory=AttributionSettings)
    otlp: Otlp = field(default_factory=Otlp)
    receive: Receive = field(default_factory=Receive)
    forward: Forward = field(default_factory=Forward)
    serving: ServingSettings = field(default_factory=ServingSettings)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        check(self, "")
        chosen_groups(self.collect)

    def remarks(self) -> Iterator[str]:
        """Warnings about settings without effect or with side effects, one line each."""
        if self.interval_s > 1:
            yield f"with {self.interval_s:g} s between two readings, shorter events are not seen"
        if self.dcgm.csv is not None and self.names == "semconv":
            yield f"{self.dcgm.csv} is not used: names = semconv has none of dcgm-exporter's names"
        elif self.dcgm.csv is not None and self.dcgm.names != "4.5":
            yield f"dcgm_names changes nothing: {self.dcgm.csv} names the metrics"
        elif self.names == "semconv" and self.dcgm.names != "4.5":
            yield "dcgm_names changes nothing without names = dcgm or both"
        if self.forward.endpoint and not self.receive.any:
            yield "forward changes nothing without receive_http or receive_grpc"
        if self.serving.tenant and not self.receive.any:
            yield "serving_tenant changes nothing without receive_http or receive_grpc, which bring the requests"
        if self.process_names and not self.processes:
            yield "process_names changes nothing without processes"

    @property
    def timeline_group_id(self) -> int | None:
        """The group's number, None without a group. Raises UsageError if the group does not exist."""
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
#: The tables of the TOML file, with their dataclasses.
TOPICS: Final[Mapping[str, Any]] = {
    row.name: row.default_factory for row in fields(Config) if isinstance(row.default_factory, type)
}
#: The titles of the topics.
TITLES: Final[Mapping[str, str]] = {
    "": "Sampling and endpoint",
    **{topic: (owner.__doc__ or topic).partition(".")[0] for topic, owner in TOPICS.items()},
}
BY_NAME: Final = {row.dotted: row for row in SETTINGS}
