"""The endpoint of one signal, from the exporter's settings.

Defaults and the rules for paths follow the OpenTelemetry specification, "OTLP Exporter Configuration", with two
differences. Without an endpoint nothing is pushed. An invalid value ends the program with an error, whereas the
specification ignores it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from gpu_profile.errors import UsageError

Transport = Literal["http/protobuf", "grpc"]
Compression = Literal["gzip", "none"]
Headers = tuple[tuple[str, str], ...]

TIMEOUT_S: Final = 10.0
_METADATA: Final = re.compile(r"[0-9a-z_.-]+")
#: Headers that the exporter sets itself.
_RESERVED: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "host", "te", "transfer-encoding"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The destination of one signal, and its transport.

    `url` is complete: for `http/protobuf` with the signal's path, for `grpc` either `http://host:port`,
    `https://host:port` or `unix:/path`. `headers`: names in lower case, and values. Files are paths of PEM files.
    Without `ca_file` the system's certificate authorities are trusted. `timeout_s` limits one try.
    """

    url: str
    protocol: Transport = "http/protobuf"
    headers: Headers = ()
    timeout_s: float = TIMEOUT_S
    compression: Compression = "gzip"
    ca_file: str = ""
    client_cert: str = ""
    client_key: str = ""

    def __repr__(self) -> str:
        # Without the values of headers: these may be keys, which belong in no log and no --print-config.
        names = ", ".join(name for name, _ in self.headers)
        return f"Endpoint({self.url!r}, {self.protocol}, {self.compression}, {self.timeout_s:g} s, headers: [{names}])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The endpoints of metrics and logs. None for a signal that is not pushed."""

    metrics: Endpoint | None = None
    logs: Endpoint | None = None


def endpoint(signal: str, settings: Mapping[str, tuple[Any, str]]) -> Endpoint:
    """The endpoint of `signal` (`metrics` or `logs`).

    `settings`: this signal's settings under `[otlp]`, each a value and its name for messages. The `endpoint` is a base:
    for HTTP, `/v1/metrics` or `/v1/logs` is appended, unless its name is that of the signal's own variable.

    Raises UsageError for an invalid value. The message never contains the values of headers.
    """
    values = {key: value for key, (value, _) in settings.items()}
    address, name = settings["endpoint"]
    if values["protocol"] == "grpc":
        url = grpc_url(address, name, insecure=values["insecure"])
    else:
        whole = name == f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
        url = http_url(address, name, path="" if whole else f"v1/{signal}")
    for half, other in (("client_cert", "client_key"), ("client_key", "client_cert")):
        if values[half] and not values[other]:
            raise UsageError(f"{settings[half][1]}: needs its other half, the {other.replace('_', ' ')}")
    headers, name = settings["headers"]
    for key, _ in headers:
        if key in _RESERVED:
            raise UsageError(f"{name}: {key!r} is set by the exporter itself; leave it out")
        unfit = key.startswith("grpc-") or key.endswith("-bin") or not _METADATA.fullmatch(key)
        if unfit and values["protocol"] == "grpc":
            raise UsageError(f"{name}: gRPC cannot carry a header that is called {key!r}")
    return Endpoint(
        url=url,
        protocol=values["protocol"],
        headers=tuple((key, value.strip()) for key, value in headers),
        timeout_s=values["timeout_s"],
        compression=values["compression"],
        ca_file=str(values["ca_file"] or ""),
        client_cert=str(values["client_cert"] or ""),
        client_key=str(values["client_key"] or ""),
    )


def http_url(address: str, name: str, *, path: str = "") -> str:
    """The URL for OTLP over HTTP. `path` is appended; empty for a signal's own endpoint, which is already complete."""
    parts = _split(address, name)
    if parts.scheme not in ("http", "https"):
        raise UsageError(
            f"{name}: {address!r} is no URL for http/protobuf; write http://host:4318 or https://host:4318"
        )
    if path:
        return urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/{path}", parts.query, ""))
    return urlunsplit((parts.scheme, parts.netloc, parts.path or "/", parts.query, ""))


def grpc_url(address: str, name: str, *, insecure: bool) -> str:
    """The target for OTLP over gRPC. An address without a scheme means TLS, unless `insecure`."""
    if address.startswith("unix:"):
        path = "/" + address.removeprefix("unix:").lstrip("/")
        if path == "/" or not (path.isascii() and path.isprintable()):
            raise UsageError(f"{name}: {address!r} names no socket; write unix:/path/to/socket")
        return f"unix:{path}"
    whole = address if "://" in address else f"{'http' if insecure else 'https'}://{address}"
    parts = _split(whole, name)
    if parts.scheme not in ("http", "https") or parts.path not in ("", "/") or parts.query:
        raise UsageError(f"{name}: {address!r} is no gRPC endpoint; write http://host:4317 or https://host:4317")
    if parts.port is None:
        raise UsageError(f"{name}: {address!r} has no port; gRPC collectors mostly listen on 4317")
    return f"{parts.scheme}://{parts.netloc}"


def _split(address: str, name: str) -> SplitResult:
    problem = ""
    try:
        parts = urlsplit(address)
        if not parts.hostname or parts.port == 0:
            problem = "has no host" if not parts.hostname else "has no port between 1 and 65535"
    except ValueError as error:
        raise UsageError(f"{name}: {address!r} is no URL: {error}") from error
    if not re.fullmatch(r"[\x21-\x7e]+", address):
        problem = "has blanks, control characters or letters that are not ASCII in it"
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"{name}: a URL with a name or password is not used; put an authorization into the headers")
    if problem:
        raise UsageError(f"{name}: {address!r} {problem}")
    return parts


def resource_attributes(
    environ: Mapping[str, str], *, version: str, host: str, instance: str = ""
) -> tuple[tuple[str, str], ...]:
    """The OpenTelemetry resource attributes of this exporter.

    They are `service.name`, `service.version`, `host.name` and `service.instance.id`. The last one is `instance`, else
    the host's name: a node has one exporter, and its series must be the same after a restart.
    OTEL_RESOURCE_ATTRIBUTES adds and replaces attributes, OTEL_SERVICE_NAME replaces the service's name. UsageError if
    OTEL_RESOURCE_ATTRIBUTES is not a list of key=value.
    """
    attributes = {
        "service.name": "gpu-profile-exporter",
        "service.version": version,
        "host.name": host,
        "service.instance.id": instance or host,
    }
    variable = "OTEL_RESOURCE_ATTRIBUTES"
    for i, part in enumerate(environ.get(variable, "").split(","), start=1):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not (equals and key.strip()):
            raise UsageError(f"{variable}: entry {i} is not key=value: {part.strip()!r}")
        attributes[unquote(key.strip())] = unquote(value.strip())
    name = environ.get("OTEL_SERVICE_NAME", "").strip()
    if name:
        attributes["service.name"] = name
    return tuple((key, value) for key, value in attributes.items() if value)
