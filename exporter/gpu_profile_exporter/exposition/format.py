"""The syntax of Prometheus' text format 0.0.4 and of OpenMetrics 1.0.0, and the choice by the `Accept` header.

https://prometheus.io/docs/instrumenting/exposition_formats/ and
https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from gpu_profile_exporter.naming.series import Series, TextFamily

#: The most characters of a label's value. Longer values end in an ellipsis.
LONGEST_VALUE: Final = 1024

# Not allowed in a line of text: control characters, and surrogates, which cannot be encoded as UTF-8.
_NOT_TEXT: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_NOT_A_METRIC: Final = re.compile("[^a-zA-Z0-9_:]")
_NOT_A_LABEL: Final = re.compile("[^a-zA-Z0-9_]")


class Format(Enum):
    """A format of the exposition. The value is its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


_OFFERS: Final = {
    ("application/openmetrics-text", ""): Format.OPENMETRICS,
    ("application/openmetrics-text", "1.0.0"): Format.OPENMETRICS,
    ("text/plain", ""): Format.TEXT,
    ("text/plain", "0.0.4"): Format.TEXT,
    ("text/*", ""): Format.TEXT,
    ("*/*", ""): Format.TEXT,
}


def negotiate(accept: str) -> Format:
    """The format that an `Accept` header prefers: highest q first, then the header's order.

    Text 0.0.4, which every scraper reads, if the header is empty or names no supported format.
    """
    best, best_q = Format.TEXT, 0.0
    for entry in accept.lower().split(","):
        media, *parameters = (part.strip() for part in entry.split(";"))
        given = {name.strip(): value.strip().strip('"') for name, _, value in (p.partition("=") for p in parameters)}
        offer = _OFFERS.get((media, given.get("version", "")))
        q = _quality(given.get("q", "1"))
        if offer is not None and q > best_q:
            best, best_q = offer, q
    return best


def _quality(text: str) -> float:
    try:
        q = float(text)
    except ValueError:
        return 0.0
    return q if 0 <= q <= 1 else 0.0


def family_lines(family: TextFamily, style: Format) -> str:
    """The HELP, TYPE and UNIT lines of a family.

    OpenMetrics requires counters to end in `_total`. Other counters keep their name there, with the type unknown.
    """
    name, kind = _metric_name(family.name), family.kind
    if style is Format.TEXT:
        kind = "gauge" if kind == "info" else "untyped" if kind == "unknown" else kind
        return f"# HELP {name} {_escaped(family.help)}\n# TYPE {name} {kind}\n"
    if kind == "counter":
        name, kind = (name.removesuffix("_total"), kind) if name.endswith("_total") else (name, "unknown")
    elif kind == "info":
        name, kind = (name.removesuffix("_info"), kind) if name.endswith("_info") else (name, "gauge")
    elif kind == "untyped":
        kind = "unknown"
    unit = f"# UNIT {name} {family.unit}\n" if family.unit and name.endswith(f"_{family.unit}") else ""
    return f"# HELP {name} {_quoted(family.help)}\n# TYPE {name} {kind}\n{unit if kind != 'info' else ''}"


def series_text(series: Series) -> str:
    """A series up to its value. Always one line of valid UTF-8, for any label value."""
    name = _metric_name(series.family.name) + series.suffix
    pairs: dict[str, str] = {}
    for label, value in series.labels:
        pairs.setdefault(_label_name(label), _label_value(value))
    inside = ",".join(f'{label}="{value}"' for label, value in pairs.items())
    return f"{name}{{{inside}}} " if inside else f"{name} "


def number(value: float) -> str:
    """A float in Prometheus' syntax."""
    text = repr(float(value))
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)


def _metric_name(name: str) -> str:
    name = _NOT_A_METRIC.sub("_", name)
    return f"_{name}" if not name or name[0].isdigit() else name


def _label_name(name: str) -> str:
    name = _NOT_A_LABEL.sub("_", name)
    if name.startswith("__"):  # Prometheus' own
        return f"_{name.lstrip('_')}"
    return f"_{name}" if not name or name[0].isdigit() else name


def _label_value(value: str) -> str:
    if len(value) > LONGEST_VALUE:
        value = f"{value[: LONGEST_VALUE - 1]}…"
    return _quoted(value)


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


def _escaped(text: str) -> str:
    return _NOT_TEXT.sub("\ufffd", text).replace("\\", r"\\").replace("\n", r"\n")
