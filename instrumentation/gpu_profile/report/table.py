"""Regions as rows of text."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from gpu_profile.regimes import Regime
from gpu_profile.units import percent, si

if TYPE_CHECKING:
    from gpu_profile.join.summary import RegionSummary
    from gpu_profile.regimes import Verdict

#: An unknown value.
UNKNOWN: Final = "–"
#: The mark before an uncertain value, and the line below a table that explains it.
ABOUT: Final = "~"
ABOUT_MEANS: Final = f"{ABOUT} uncertain: shared out by time, as the region's own rate is not known"
#: The line below a table whose durations are much shorter than its busy time.
HOST_TIME: Final = "mean, p95: time on the host; the GPU does a call's work behind it"
#: The accuracy of joules and watts, shown on every page (Yang et al., "Part-time Power Measurements", SC24).
WHOSE_JOULES: Final = "Joules and watts are those of the board's own sensor: boards of one kind differ by up to 5 %"
#: The two columns of joules, where they differ.
TWO_JOULES: Final = (
    "energy: a region's own part of the device's joules; per call: mean power times time, with the regions inside it"
)
#: Characters that a name keeps in a line: before columns are omitted for it, and if none is left to omit.
_GOOD_NAME, _LEAST_NAME = 20, 12
#: The column of verdicts: one cell takes fewer characters than two under the heading "confidence".
REGIME: Final = "regime, confidence"
#: The column of half-widths beside `per call`, which a narrow terminal omits first.
CALL_WIDTH: Final = "per call ±"
REGION_COLUMNS: Final = (
    "region",
    "calls",
    "mean",
    "p95",
    "GPU busy",
    "busy time",
    "energy",
    "per call",
    CALL_WIDTH,
    REGIME,
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
        call_width(summary) or UNKNOWN,
        regime_cell(verdict),
    )


def call_width(summary: RegionSummary) -> str:
    """The half-width of an execution's joules as a share of them, from the mean power's; empty if it is unknown."""
    watts, width = summary.power_w, summary.power_half_width
    if summary.call_energy_j is None or not watts or width is None:
        return ""
    return f"±{percent(width / watts, 1 if width < watts / 10 else 0)}"


def uncertain(rows: Iterable[Sequence[str]]) -> list[str]:
    """The line below a table that explains its mark of uncertain values, if it has one."""
    return [ABOUT_MEANS] if any(cell.startswith(ABOUT) for row in rows for cell in row) else []


def regime_cell(verdict: Verdict) -> str:
    """A cell of the column `REGIME`, such as `HOST_BOUND 86 %`. UNKNOWN has no confidence."""
    if verdict.regime is Regime.UNKNOWN:
        return str(Regime.UNKNOWN)
    return f"{verdict.regime} {percent(verdict.confidence, 0)}"


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
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    spare: Iterable[Collection[int]],
    *,
    width: int | None,
    left: int = 1,
    more: str = "",
) -> str:
    """`text_table` without the columns that keep it from fitting into `width` characters.

    `spare` are groups of column indices that are omitted together, the first group first. The others always stay, and
    no value is cut: if the table is still too wide, names in the first `left` columns continue on the next line. `more`
    says where the omitted columns are; a line below the table then lists them.
    """
    whole = list(rows)
    kept = list(range(len(columns)))
    steps = [(), *spare]
    for step, places in enumerate(steps):
        kept = [place for place in kept if place not in places]
        first = sum(place < left for place in kept)
        head, shown = [columns[place] for place in kept], [[row[place] for place in kept] for row in whole]
        table = text_table(head, shown, left=first)
        if width is None or _width(table) <= width:
            break
        least = _LEAST_NAME if step == len(steps) - 1 else _GOOD_NAME
        continued = text_table(head, _continued(shown, first, _width(table) - width, least), left=first)
        if _width(continued) <= width or step == len(steps) - 1:
            table = continued
            break
    omitted = ", ".join(name for place, name in enumerate(columns) if place not in kept)
    return (
        f"{table}\n{folded(f'not shown in {width} columns: {omitted} ({more})', width)}" if omitted and more else table
    )


def _width(text: str) -> int:
    return max(map(len, text.splitlines()))


def _continued(rows: Sequence[Sequence[str]], left: int, over: int, least: int) -> list[list[str]]:
    """The rows with the widest of the first `left` columns narrower by `over`: its cells continue in further rows.

    It keeps at least `least` characters.
    """
    if not rows or not left:
        return [list(row) for row in rows]
    widest = max(range(left), key=lambda place: max(len(row[place]) for row in rows))
    room = max(least, max(len(row[widest]) for row in rows) - over)
    result = []
    for row in rows:
        parts = _parts(row[widest], room)
        result.append([*row[:widest], parts[0], *row[widest + 1 :]])
        result += [[part if place == widest else "" for place in range(len(row))] for part in parts[1:]]
    return result


def _parts(name: str, room: int) -> list[str]:
    """A name in lines of at most `room` characters, broken behind a separator if one is near the end of a line."""
    parts = []
    while len(name) > room:
        cut = max(name.rfind(separator, 0, room) + 1 for separator in " ._/:-")
        cut = cut if cut > room // 2 else room
        parts.append(name[:cut].rstrip())
        name = f"  {name[cut:].lstrip()}"
    return [*parts, name]


def folded(text: str, width: int | None, indent: str = "  ") -> str:
    """`text` with the lines that are longer than `width` folded, at spaces if possible, continued after `indent`."""
    if width is None:
        return text
    return "\n".join(
        line if len(line) <= width else textwrap.fill(
            line, width, subsequent_indent=indent, break_on_hyphens=False
        )
        for line in text.splitlines()
    )  # fmt: skip


def terminal_width(stream: TextIO) -> int | None:
    """Characters in a line of the terminal behind `stream`, or the variable COLUMNS. None: no limit."""
    from shutil import get_terminal_size  # not for every server that imports this package

    terminal = stream.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return get_terminal_size().columns if terminal else None


def printable(text: str) -> str:
    """`text` with escapes for characters that control a terminal or that a page cannot contain."""
    return text if text.isprintable() else text.encode("unicode_escape", "backslashreplace").decode("ascii")


def signed(ratio: float) -> str:
    """A change as a percentage with its sign."""
    return f"{ratio * 100:+.1f} %"
