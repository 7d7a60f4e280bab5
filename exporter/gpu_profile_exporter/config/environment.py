"""Settings from environment variables: the exporter's own, and those of other programs that mean the same."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Final

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config.kinds import nearest
from gpu_profile_exporter.config.model import SETTINGS
from gpu_profile_exporter.config.setting import ENVIRONMENT, Setting
from gpu_profile_exporter.config.source import Found, Layer, from_text

#: Names the file to read.
FILE_VARIABLE: Final = f"{ENVIRONMENT}_CONFIG"
#: What Kubernetes sets in every pod beside a Service that is called gpu-profile-exporter, or begins with that.
_SERVICE: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://")


def own_settings(environ: Mapping[str, str]) -> Layer:
    """What the variables `GPU_PROFILE_EXPORTER_…` say; UsageError for one that is none. An empty one says nothing."""
    rows = {row.variable: row for row in SETTINGS}
    layer: dict[str, Found] = {}
    for name, text in sorted(environ.items()):
        if not name.startswith(f"{ENVIRONMENT}_") or name == FILE_VARIABLE or _of_service(name, text):
            continue
        row = rows.get(name)
        if row is None:
            meant = nearest(name, [*rows, FILE_VARIABLE])
            raise UsageError(f"{ascii(name)[1:-1][:99]}: there is no such setting{meant}")
        if text:
            said = from_text(row, name, text)
            if said is not None:
                layer[row.name] = said
    return layer


def _of_service(name: str, text: str) -> bool:
    rest = name.removeprefix(ENVIRONMENT)
    if rest.endswith("_PORT") and _SERVICE_URL.match(text):
        return True
    return any(rest.endswith(match[0]) for match in _SERVICE.finditer(rest))


def foreign_settings(environ: Mapping[str, str], known: Container[str], *, pushes: bool = False) -> Layer:
    """What other programs' variables say of the settings that are not `known` already.

    Those for pushing count only if the exporter `pushes`, or a variable tells it to: in many a cluster they are set for
    programs that can use what this one cannot.
    """
    pushes = pushes or bool(environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"))
    layer: dict[str, Found] = {}
    for row in SETTINGS:
        if row.name not in known and (row.topic != "otlp" or pushes):
            said = next(_said(row, environ), None)
            if said is not None:
                layer[row.name] = said
    return layer


def _said(row: Setting, environ: Mapping[str, str]) -> Iterator[Found]:
    for alias in row.spec.aliases:
        for name in alias.variables:
            text = environ.get(name, "")
            said = from_text(row, name, text, alias) if text else None
            if said is not None:
                yield said
