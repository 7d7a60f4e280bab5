"""Units at the edges of the system: UCUM codes, their Prometheus suffixes, and their readable forms."""

from __future__ import annotations

import math
from typing import Final

NS_PER_S: Final = 1_000_000_000
MIB: Final = 1 << 20

#: UCUM code -> Prometheus suffix, by the OpenTelemetry Collector's translation rule ("1" is special, see
#: `catalogue.metrics`). A metric cannot be constructed with a unit outside this table.
PROMETHEUS_SUFFIX: Final = {
    "1": "",
    "By": "bytes",
    "By/s": "bytes_per_second",
    "J": "joules",
    "W": "watts",
    "Hz": "hertz",
    "s": "seconds",
    "Cel": "celsius",
}


def seconds(ns: int) -> float:
    """Nanoseconds as seconds."""
    return ns / NS_PER_S


def nanoseconds(s: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(s * NS_PER_S)


_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def si(value: float, unit: str, digits: int = 3) -> str:
    """`value` with an SI prefix and `digits` significant digits: `si(0.0123, "s") == "12.3 ms"`."""
    # Rounded first: 999.96 is 1.00 k, not 1000.
    value = float(f"{value:.{digits}g}")
    if not value or not math.isfinite(value):
        return f"{value:g} {unit}"
    scale, prefix = next(((s, p) for s, p in _PREFIXES if abs(value) >= s), _PREFIXES[-1])
    scaled = value / scale
    whole = len(str(int(abs(scaled))))
    return f"{scaled:.{max(0, digits - whole)}f} {prefix}{unit}"


def percent(ratio: float, digits: int = 1) -> str:
    """A ratio of 0-1 as a percentage."""
    return f"{ratio * 100:.{digits}f} %"


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun, and its verb if there is one: `counted(1, "call ends", "calls end") == "1 call ends"`.

    `many`: the plural, if it is another than with an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
