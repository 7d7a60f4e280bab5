"""The one order of the sources: flags, the exporter's variables, other programs' variables, the file, the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import toml
from gpu_profile_exporter.config.environment import FILE_VARIABLE, foreign_settings, own_settings
from gpu_profile_exporter.config.model import BY_NAME, SETTINGS, TOPICS, Config, plain
from gpu_profile_exporter.config.source import Found, Layer

if TYPE_CHECKING:
    from gpu_profile_exporter.push.settings import Endpoints

DEFAULT: Final = "default"
_ENDPOINTS: Final = tuple(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT" for signal in ("", "METRICS_", "LOGS_"))


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings in force, where each comes from (by its name), and the file that was read."""

    config: Config
    places: Mapping[str, str]
    file: Path | None = None


def load(flags: Layer, environ: Mapping[str, str], file: Path | None = None) -> Loaded:
    """The settings that flags, environment and file give together; UsageError for the first that is wrong.

    `file` is the one that a flag names; without it, the one that GPU_PROFILE_EXPORTER_CONFIG names, else
    /etc/gpu-profile/exporter.toml if it is there.
    """
    path = file or _file(environ)
    own = own_settings(environ)
    written = toml.read_file(path) if path is not None else {}
    explicit = {**own, **flags}
    foreign = foreign_settings(environ, explicit, pushes="otlp.endpoint" in {**written, **explicit})
    layer = {**written, **foreign, **explicit}
    if "names" not in layer and "dcgm.csv" in layer and layer["dcgm.csv"].value is not None:
        layer["names"] = Found("both", f"default with dcgm.csv, from {layer['dcgm.csv'].place}")
    endpoints = _endpoints(explicit, written, environ)
    places = {row.name: layer[row.name].place if row.name in layer else DEFAULT for row in SETTINGS}
    return Loaded(_config({key: found.value for key, found in layer.items()}, endpoints), places, path)


def _file(environ: Mapping[str, str]) -> Path | None:
    named = environ.get(FILE_VARIABLE, "")
    if named:
        return Path(named)
    try:
        return toml.DEFAULT_FILE if toml.DEFAULT_FILE.exists() else None
    except OSError:  # in a directory that may not be searched, as /etc may be hardened
        return None


def _config(values: Mapping[str, Any], endpoints: Endpoints | None) -> Config:
    """A configuration from values by the names of settings."""
    by_topic: dict[str, dict[str, Any]] = {"": {}, **{topic: {} for topic in TOPICS}}
    for name, value in values.items():
        row = BY_NAME[name]
        by_topic[row.topic][row.field] = value
    by_topic["otlp"]["resolved"] = endpoints
    topics = {topic: owner(**by_topic[topic]) for topic, owner in TOPICS.items()}
    return Config(**by_topic[""], **topics)


def _endpoints(explicit: Layer, written: Layer, environ: Mapping[str, str]) -> Endpoints | None:
    """Where each signal is pushed to: the file below the standard variables, of which some are for one signal."""
    options: dict[str, object] = {}
    variables, places = dict(environ), dict[str, str]()
    for row in SETTINGS:
        standard = next((name for alias in row.spec.aliases for name in alias.variables), "")
        if row.topic != "otlp" or not standard.startswith("OTEL_EXPORTER_OTLP_"):
            continue
        if row.name in explicit:
            options[row.field] = plain(explicit[row.name].value)
            places[row.flag] = explicit[row.name].place
        elif row.name in written and not environ.get(standard, "").strip():
            variables[standard] = _as_variable(written[row.name].value)
            places[standard] = f"{written[row.name].place}: {row.name}"
    endpoint = options.get("endpoint")
    if endpoint == "" or (endpoint is None and not any(variables.get(name) for name in _ENDPOINTS)):
        return None
    # Only who pushes has room for the packages that it takes.
    from gpu_profile_exporter.push.settings import endpoint_settings

    try:
        return endpoint_settings(variables, options)
    except UsageError as error:
        # It knows flags and standard variables; the user may have written the value elsewhere.
        name, space, rest = str(error).partition(" ")
        place = places.get(name.rstrip(":"))
        raise UsageError(f"{place}: {rest}" if place and space else str(error)) from error


def _as_variable(value: Any) -> str:
    """A setting as OpenTelemetry's variables have it: times in milliseconds, headers URL-encoded."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(round(value * 1000))
    if isinstance(value, tuple):
        return ",".join(f"{name}={quote(text, safe='')}" for name, text in value)
    return str(value or "")
