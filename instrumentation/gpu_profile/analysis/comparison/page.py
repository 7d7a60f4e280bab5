"""A comparison of two recordings as one HTML page that works offline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from gpu_profile.analysis.comparison.differences import Comparison, Difference
from gpu_profile.analysis.comparison.text import (
    COLUMNS,
    Judged,
    certainty,
    difference_row,
    direction,
    gaps,
    judgement,
    shown,
    simulated,
    summary,
)
from gpu_profile.report import page

#: The scale of the bars. Longer intervals are cut at its edge, and the numbers beside them are not.
_LOWEST, _HIGHEST = -1.0, 1.0


def render_page(comparison: Comparison, judged: Sequence[Judged], *, names: tuple[str, str]) -> str:
    """The whole page. `names`: those of recordings A and B."""
    a, b = (escape(name) for name in names)
    body = [
        f"<p>A: {a}<br>B: {b}</p>",
        *(f"<p>{line}</p>" for line in simulated(comparison)),
        *page.items("Summary", summary(comparison)),
        *page.items("Conditions", [judgement(*each) for each in judged]),
        *_differences(comparison),
        *page.items("Missing results", gaps(comparison)),
    ]
    mark = page.SIMULATED if comparison.simulated_a or comparison.simulated_b else ""
    return page.document(f"{names[0]} and {names[1]}", body, by="region", drawn=None, mark=mark)


def _differences(comparison: Comparison) -> Iterator[str]:
    columns = (*COLUMNS[:-2], "interval", "−100 % to +100 %", COLUMNS[-1])
    rows = []
    for each in shown(comparison):
        *cells, word = difference_row(each)
        rows.append("".join(map(page.cell, columns, cells)) + f"<td>{_bar(each)}</td>" + page.cell("difference", word))
    note = f"<p>{escape(certainty(comparison))}</p>" if comparison.intervals else ""
    yield f"<section><h2>Differences, B against A</h2>{page.table(columns, rows)}{note}</section>"


def _bar(difference: Difference) -> str:
    """The interval of the ratio as a bar on a scale with "no change" in its middle."""
    edges = difference.relative_interval
    if edges is None:
        return ""
    low, high = ((min(_HIGHEST, max(_LOWEST, edge)) - _LOWEST) / (_HIGHEST - _LOWEST) for edge in edges)
    return (
        f'<span class="interval {direction(difference)}"><i style="left:{low:.1%};width:{high - low:.1%}"></i></span>'
    )
