"""An analysis as one HTML page: no scripts, no fonts, nothing to load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from gpu_profile.analysis.account import Analysis
from gpu_profile.analysis.drawing import draw
from gpu_profile.analysis.text import (
    DEVICE_COLUMNS,
    advice,
    device_row,
    events,
    headline,
    labels,
    reasons,
    region_cells,
    region_columns,
)

_STYLE: Final = """
:root { --ink: #1c2024; --soft: #60646c; --line: #d9d9e0; --grid: #ececf1; --paper: #fcfcfd; --busy: #3e63dd;
  --power: #ad5700; --warn: #915930; --host: #d9730d; --copy: #c2298a; --small: #8347b9; --wait: #0d74ce;
  --memory: #12857b; --compute: #2b7a3d; --none: #8b8d98 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #edeef0; --soft: #b0b4ba; --line: #363a3f; --grid: #24262a; --paper: #111113; --busy: #849dff;
  --power: #f0a35e; --warn: #ffca16; --host: #ffa057; --copy: #ff8dcc; --small: #d19dff; --wait: #70b8ff;
  --memory: #0bd8b6; --compute: #71d083; --none: #8b8d98 }
}
body { margin: 2rem auto; max-width: 84rem; padding: 0 1rem; font: 14px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper) }
h1 { font-size: 1.3rem; margin: 0; overflow-wrap: anywhere }
h2 { font-size: 1rem; margin: 1.6rem 0 .3rem }
p, li { color: var(--soft); margin: .3rem 0; overflow-wrap: anywhere }
ul { padding-left: 1.2rem; margin: 0 }
.mark { display: inline-block; border: 1px solid var(--warn); border-radius: 4px; padding: 0 .4rem; color: var(--warn);
  font-size: .75rem; vertical-align: middle }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: right; white-space: nowrap; padding: .35rem 1.4rem .35rem 0; border-bottom: 1px solid var(--line) }
th { font-weight: 600; color: var(--soft) }
.left { text-align: left }
.regime::before { content: ""; display: inline-block; width: .7em; height: .7em; border-radius: 2px;
  margin-right: .45em; background: currentColor }
svg { display: block; width: 100%; min-width: 52rem; height: auto; margin-top: .6rem; font: 11px system-ui, sans-serif }
text { fill: var(--ink) }
.name { text-anchor: end }
.note { fill: var(--soft) }
.tick { fill: var(--soft); text-anchor: middle }
.grid { stroke: var(--grid) }
.base { stroke: var(--line) }
path { stroke-width: 1 }
path.busy { fill: var(--busy); stroke: var(--busy) }
path.power { fill: var(--power); stroke: var(--power) }
.lane { fill: currentColor }
.HOST_BOUND { color: var(--host) }
.TRANSFER_BOUND, .COMMUNICATION_BOUND { color: var(--copy) }
.OVERHEAD_BOUND { color: var(--small) }
.LATENCY_BOUND { color: var(--wait) }
.MEMORY_BOUND, .BALANCED { color: var(--memory) }
.COMPUTE_BOUND { color: var(--compute) }
.IDLE, .UNKNOWN { color: var(--none) }
td.regime > span { color: var(--ink) }
"""
_LEGEND: Final = (
    "Regions are drawn where they were on their device if that is known, else by the host's clock; the paler, the less "
    "of the time. Curves break where nothing was measured."
)
#: Columns of words, which read from the left.
_WORDS: Final = frozenset({"region", "device", "name", "uuid", "regime"})


def render_page(analysis: Analysis, *, title: str) -> str:
    """The whole page."""
    names = labels(use.device for use in analysis.devices)
    simulated = any(process.driver.startswith("simulated") for process in analysis.processes)
    mark = ' <span class="mark">SIMULATED</span>' if simulated else ""
    parts = [f"<h1>{escape(title)}{mark}</h1>", f"<p>{escape(headline(analysis))}</p>"]
    picture = draw(analysis)
    if picture:
        parts.append(f'<div class="wide">{picture}</div>')
        parts.append(f"<p>{_LEGEND}</p>")
    if analysis.regions:
        columns = region_columns(analysis.regions)
        rows = (region_cells(use, names.get(u := use.summary.device.uuid, u), columns) for use in analysis.regions)
        parts += ["<h2>Regions</h2>", _table(columns, rows)]
    if analysis.devices:
        devices = (device_row(use, names[use.device.uuid]) for use in analysis.devices)
        parts += ["<h2>Devices</h2>", _table(DEVICE_COLUMNS, devices)]
    parts += _list("What happened", events(analysis))
    parts += _list("What to do next", advice(analysis))
    parts += _list("What could not be told", reasons(analysis))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}: gpu-profile</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col" class="{_align(column)}">{escape(column)}</th>' for column in columns)
    body = "".join(
        f"<tr>{''.join(_cell(column, cell) for column, cell in zip(columns, row, strict=True))}</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(column: str, cell: str) -> str:
    if column == "regime":
        return f'<td class="left regime {escape(cell)}"><span>{escape(cell)}</span></td>'
    return f'<td class="{_align(column)}">{escape(cell)}</td>'


def _align(column: str) -> str:
    return "left" if column in _WORDS else ""


def _list(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    return [f"<h2>{escape(title)}</h2>", "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"]
