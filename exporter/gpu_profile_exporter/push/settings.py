"""Where to push to: from options and OpenTelemetry's standard environment variables.

Names, defaults and the rules for paths are those of the OpenTelemetry specification, "OTLP Exporter Configuration",
with two differences: without an endpoint nothing is pushed at all, and a value that is no good ends the program with a
line that says so, where the specification would have it passed over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from gpu_profile.errors import UsageError

Transport = Literal["http/protobuf", "grpc"]
Compression = Literal["gzip", "none"]
Headers = tuple[tuple[str, str], ...]

_VARIABLE: Final = "OTEL_EXPORTER_OTLP"
TIMEOUT_S: Final = 10.0
#: Settings by their name in `overrides`, and by their environment variable.
_SETTINGS: Final = {
    "endpoint": "ENDPOINT",
    "protocol": "PROTOCOL",
    "headers": "HEADERS",
    "timeout_s": "TIMEOUT",
    "compression": "COMPRESSION",
    "insecure": "INSECURE",
    "ca_file": "CERTIFICATE",
    "client_cert": "CLIENT_CERTIFICATE",
    "client_key": "CLIENT_KEY",
}
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")
_METADATA: Final = re.compile(r"[0-9a-z_.-]+")
#: What a request says of itself.
_OURS: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "host", "te", "transfer-encoding"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where one signal goes to, and how.

    `url` is complete: for `http/protobuf` with the signal's path, for `grpc` either `http://host:port`,
    `https://host:port` or `unix:/path`. `headers` are names in lower case and values. Files are paths of PEM files;
    without `ca_file` the system's authorities are trusted. `timeout_s` bounds one try.
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
        # Headers are where the keys are: they belong in no log and no --print-config.
        names = ", ".join(name for name, _ in self.headers)
        return f"Endpoint({self.url!r}, {self.protocol}, {self.compression}, {self.timeout_s:g} s, headers: [{names}])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where metrics and logs go to; None for one that is not pushed."""

    metrics: Endpoint | None = None
    logs: Endpoint | None = None


def endpoint_settings(environ: Mapping[str, str], overrides: Mapping[str, object] | None = None) -> Endpoints:
    """The endpoints that options and environment name.

    `overrides`: options by name, each in force over every variable; None, an empty string and an empty table mean that
    the option was not given. `endpoint` (a base: for HTTP, `/v1/metrics` or `/v1/logs` is appended), `protocol`
    (`http/protobuf` or `grpc`), `headers` (`key=value,key=value` or a mapping), `timeout_s` (seconds), `compression`
    (`gzip` or `none`), `insecure` (grpc without TLS where the endpoint has no scheme), `ca_file`, `client_cert` and
    `client_key` (PEM files).

    `environ`: OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL, _HEADERS, _TIMEOUT (milliseconds), _COMPRESSION, _INSECURE,
    _CERTIFICATE, _CLIENT_CERTIFICATE and _CLIENT_KEY; with METRICS_ or LOGS_ after OTLP_, for one signal, which wins.
    OTEL_METRICS_EXPORTER and OTEL_LOGS_EXPORTER may be `none`, which switches that signal off.

    Raises UsageError for a value that cannot be used; the values of headers are not in its message.
    """
    given = {key: value for key, value in (overrides or {}).items() if value not in (None, "", {}, ())}
    unknown = sorted(set(given) - set(_SETTINGS))
    if unknown:
        raise TypeError(f"no such setting: {', '.join(unknown)}")
    return Endpoints(metrics=_endpoint("metrics", environ, given), logs=_endpoint("logs", environ, given))


class _Source:
    """The value of each setting for one signal, and the name under which the user knows it."""

    def __init__(self, signal: str, environ: Mapping[str, str], given: Mapping[str, object]) -> None:
        self._signal, self._environ, self._given = signal.upper(), environ, given

    def get(self, setting: str) -> tuple[object, str, bool]:
        """Value (None without one), its name for people, and whether it is meant for this signal alone."""
        if setting in self._given:
            return self._given[setting], f"--otlp-{setting.removesuffix('_s').replace('_', '-')}", False
        suffix = _SETTINGS[setting]
        for name, own in ((f"{_VARIABLE}_{self._signal}_{suffix}", True), (f"{_VARIABLE}_{suffix}", False)):
            text = self._environ.get(name, "").strip()
            if text:
                return text, name, own
        return None, _VARIABLE, False

    def text(self, setting: str) -> str:
        value, _, _ = self.get(setting)
        return "" if value is None else str(value)

    def one_of(self, setting: str, choices: Mapping[str, str], default: str) -> str:
        value, name, _ = self.get(setting)
        if value is None:
            return default
        if str(value).strip().lower() not in choices:
            raise UsageError(f"{name}: {str(value)!r} is none of {', '.join(choices)}")
        return choices[str(value).strip().lower()]


def _endpoint(signal: str, environ: Mapping[str, str], given: Mapping[str, object]) -> Endpoint | None:
    if environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower() == "none":
        return None
    source = _Source(signal, environ, given)
    address, name, own = source.get("endpoint")
    if address is None:
        return None
    protocol = source.one_of("protocol", {"http/protobuf": "http/protobuf", "grpc": "grpc"}, "http/protobuf")
    insecure = _truth(source)
    compression = source.one_of("compression", {"gzip": "gzip", "none": "none"}, "gzip")
    transport: Transport = "grpc" if protocol == "grpc" else "http/protobuf"
    if transport == "grpc":
        url = grpc_url(str(address), name, insecure=insecure)
    else:
        url = http_url(str(address), name, path="" if own else f"v1/{signal}")
    cert, key = source.text("client_cert"), source.text("client_key")
    if bool(cert) != bool(key):
        what, other = ("client_cert", "client_key") if cert else ("client_key", "client_cert")
        raise UsageError(f"{source.get(what)[1]} needs its other half, the {other.replace('_', ' ')}")
    return Endpoint(
        url=url,
        protocol=transport,
        headers=_headers(source, transport),
        timeout_s=_timeout_s(source),
        compression="gzip" if compression == "gzip" else "none",
        ca_file=source.text("ca_file"),
        client_cert=cert,
        client_key=key,
    )


def http_url(address: str, name: str, *, path: str = "") -> str:
    """The URL for OTLP over HTTP: `path` is appended to a base; a signal's own endpoint is used as it is."""
    parts = _split(address, name)
    if parts.scheme not in ("http", "https"):
        raise UsageError(
            f"{name}: {address!r} is no URL for http/protobuf; write http://host:4318 or https://host:4318"
        )
    if path:
        return urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/{path}", parts.query, ""))
    return urlunsplit((parts.scheme, parts.netloc, parts.path or "/", parts.query, ""))


def grpc_url(address: str, name: str, *, insecure: bool) -> str:
    """The target for OTLP over gRPC; an address without a scheme is spoken to with TLS unless `insecure`."""
    if address.startswith("unix:"):
        path = "/" + address.removeprefix("unix:").lstrip("/")
        if not _PRINTABLE.fullmatch(path) or path == "/":
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


def _headers(source: _Source, transport: Transport) -> Headers:
    value, name, _ = source.get("headers")
    if value is None:
        return ()
    headers = check_headers(value.items(), name) if isinstance(value, Mapping) else parse_headers(str(value), name)
    if transport == "grpc":
        for key, _ in headers:
            if key.startswith("grpc-") or key.endswith("-bin") or not _METADATA.fullmatch(key):
                raise UsageError(f"{name}: gRPC cannot carry a header that is called {key!r}")
    return headers


def parse_headers(text: str, name: str) -> Headers:
    """`key=value,key=value` with values percent-encoded, as OTEL_EXPORTER_OTLP_HEADERS has it; UsageError otherwise."""
    found = []
    for i, part in enumerate(text.split(","), start=1):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"{name}: entry {i} has no '='; write key=value,key=value and a comma in a value as %2C")
        found.append((unquote(key.strip()), unquote(value.strip())))
    return check_headers(found, name)


def check_headers(pairs: Iterable[tuple[object, object]], name: str) -> Headers:
    """Names in lower case and values that both protocols can carry; of a name that comes twice, the last."""
    headers: dict[str, str] = {}
    for i, (key, value) in enumerate(pairs, start=1):
        if not (isinstance(key, str) and isinstance(value, str) and _TOKEN.fullmatch(key)):
            raise UsageError(f"{name}: entry {i} is no header; write key=value,key=value")
        if not _PRINTABLE.fullmatch(value):
            raise UsageError(f"{name}: the value of {key!r} has characters in it that a header cannot carry")
        if key.lower() in _OURS:
            raise UsageError(f"{name}: {key!r} is set by the exporter itself; leave it out")
        headers[key.lower()] = value.strip()
    return tuple(headers.items())


def _timeout_s(source: _Source) -> float:
    value, name, _ = source.get("timeout_s")
    if value is None:
        return TIMEOUT_S
    option = name.startswith("--")
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    seconds = number if option else number / 1000
    if not 0.001 <= seconds <= 600:
        unit = "seconds between 0.001 and 600" if option else "milliseconds between 1 and 600000"
        raise UsageError(f"{name}: {str(value)!r} is not a time in {unit}")
    return seconds


def _truth(source: _Source) -> bool:
    value, name, _ = source.get("insecure")
    if value is None or isinstance(value, bool):
        return bool(value)
    if str(value).lower() not in ("true", "false"):
        raise UsageError(f"{name}: {str(value)!r} is neither true nor false")
    return str(value).lower() == "true"


def resource_attributes(
    environ: Mapping[str, str], *, version: str, host: str, instance: str = ""
) -> tuple[tuple[str, str], ...]:
    """Who pushes, as OpenTelemetry resource attributes.

    `service.name`, `service.version`, `host.name` and `service.instance.id` (`instance`, else the host's name: there is
    one exporter on a node, and its series must be the same after a restart). OTEL_RESOURCE_ATTRIBUTES adds to them and
    changes them, OTEL_SERVICE_NAME changes the service's name. Raises UsageError if one of the two cannot be read.
    """
    found = {
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
        found[unquote(key.strip())] = unquote(value.strip())
    name = environ.get("OTEL_SERVICE_NAME", "").strip()
    if name:
        found["service.name"] = name
    return tuple((key, value) for key, value in found.items() if value)
