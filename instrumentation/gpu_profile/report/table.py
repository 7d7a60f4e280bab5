"""Regions as rows of text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from gpu_profile.join.summary import RegionSummary
from gpu_profile.regimes import Regime, Verdict
from gpu_profile.units import percent, si

#: An unknown value.
UNKNOWN: Final = "–"
#: The mark before an uncertain value, and the line below a table that explains it.
ABOUT: Final = "~"
ABOUT_MEANS: Final = f"{ABOUT} uncertain: shared out by time, as the region's own rate is not known"
#: The accuracy of joules and watts, shown on every page (Yang et al., "Part-time Power Measurements", SC24).
WHOSE_JOULES: Final = "Joules and watts are those of the board's own sensor: boards of one kind differ by up to 5 %"
REGION_COLUMNS: Final = (
    "region",
    "calls",
    "mean",
    "p95",
    "GPU busy",
    "busy time",
    "energy",
    "per call",
    "regime",
    "sure",
)


def region_row(summary: RegionSummary, verdict: Verdict) -> tuple[str, ...]:
    """One region on one device, in the order of `REGION_COLUMNS`."""
    durations = summary.durations
    mean = durations.total_s / durations.calls if durations.calls else None
    busy = UNKNOWN
    if summary.busy is not None:
        width = summary.busy_half_width
        busy = percent(min(1.0, summary.busy)) + (f" ±{width * 100:.1f}" if width else "")
    each = summary.call_energy_j
    return (
        summary.region,
        f"{durations.calls:,}",
        UNKNOWN if mean is None else si(mean, "s"),
        UNKNOWN if durations.p95_s is None else si(durations.p95_s, "s"),
        busy,
        share(summary.busy_s, summary.busy_s_half_width, "s"),
        share(summary.energy_j, summary.energy_half_width, "J"),
        UNKNOWN if each is None else si(each, "J"),
        str(verdict.regime),
        UNKNOWN if verdict.regime is Regime.UNKNOWN else percent(verdict.confidence, 0),
    )


def share(value: float | None, half_width: float | None, unit: str) -> str:
    """A part of a measured total: marked as uncertain if it has no half-width."""
    if value is None:
        return UNKNOWN
    return f"{'' if half_width is not None else ABOUT}{si(value, unit)}"


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Plain aligned columns; the first `left` are flushed left, the others right."""
    table = [tuple(columns), *(tuple(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    lines = []
    for row in table:
        cells = [
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(lines)


def fitted_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], spare: Iterable[Collection[int]], *, width: int | None
) -> str:
    """`text_table` without the columns that keep it from fitting into `width` characters.

    `spare` are groups of column indices that are omitted together, the first group first. The others always stay.
    """
    whole = list(rows)
    kept = list(range(len(columns)))
    for places in ((), *spare):
        kept = [place for place in kept if place not in places]
        table = text_table([columns[place] for place in kept], ([row[place] for place in kept] for row in whole))
        if width is None or max(map(len, table.splitlines())) <= width:
            break
    return table


def printable(text: str) -> str:
    """`text` with escapes for characters that control a terminal or that a page cannot contain."""
    return text if text.isprintable() else text.encode("unicode_escape", "backslashreplace").decode("ascii")
