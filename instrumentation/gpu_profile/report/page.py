"""The parts of every page: the frame, the timeline's place, tables."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple

from gpu_profile.regimes import Regime, Verdict
from gpu_profile.regimes.palette import COLOURS
from gpu_profile.report.table import REGIME

#: Columns of words, aligned to the left.
_WORDS: Final = frozenset(
    {"region", "device", "name", "uuid", REGIME, "kernel", "operator", "copies", "memory", "counter"}
)
#: The number of different colours for regions in `page.css`.
HUES: Final = 10
#: Lines of a section, at most.
_MOST_LINES: Final = 60
#: The mark of a page on simulated devices.
SIMULATED: Final = ' <span class="mark">SIMULATED</span>'
TIMELINE: Final = (
    '<section id="timeline" tabindex="0" aria-label="Timeline: arrows move, plus and minus zoom, 0 shows all">'
)
#: The beginning of a timeline's hints.
_MOVES: Final = (
    "Drag to zoom into a stretch, shift-drag to move, <kbd>Ctrl</kbd>+wheel to zoom, double click for all. "
    "With the timeline in focus: <kbd>←</kbd> <kbd>→</kbd> move, <kbd>+</kbd> <kbd>−</kbd> zoom, <kbd>0</kbd> all, "
)
_AXIS: Final = (
    "<noscript><p>The timeline needs scripts; the tables beneath it do not.</p></noscript>"
    '<canvas id="axis" role="img" aria-label="time axis"></canvas>'
)


def escape(text: str) -> str:
    """Text as HTML, also inside of attributes. The module `html` would take 0.3 MiB in every exporter."""
    for character, name in (("&", "amp"), ("<", "lt"), (">", "gt"), ('"', "quot"), ("'", "#x27")):
        text = text.replace(character, f"&{name};")
    return text


def document(
    title: str,
    body: Iterable[str],
    *,
    by: str,
    drawn: Mapping[str, Any] | None,
    mark: str = "",
    style: str = "",
    script: str = "",
) -> str:
    """The whole page: a heading, then `body`. `by`: the initial meaning of colours, `region` or `regime`.

    `drawn` is the data of the timeline's script. `mark` is markup after the title, `style` and `script` are more of the
    page's own.
    """
    named = escape(title)
    parts = [
        f'<header><h1>{named}{mark}</h1><button id="theme" title="light or dark" hidden>dark</button></header>',
        *(part for part in body if part),
    ]
    if drawn:
        parts.append(f'<script type="application/json" id="data">{_embedded(drawn)}</script>')
    style = asset(__package__, "page.css") + _regimes("light") + style
    dark = asset(__package__, "dark.css") + _regimes("dark")
    scripts = "\n".join((*(asset(__package__, name) for name in ("timeline.js", "page.js", "tables.js")), script))
    return (
        f'<!doctype html>\n<html lang="en" data-by="{by}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{named}: gpu-profile</title>\n<style>{style}</style>\n"
        f'<style id="dark" media="(prefers-color-scheme: dark)">{dark}</style>\n</head>\n<body>\n'
        + "\n".join(parts)
        + f"\n<script>{scripts}</script>\n</body>\n</html>\n"
    )


def _regimes(ground: Literal["light", "dark"]) -> str:
    """The regimes' colours as variables of CSS, and the swatches with them."""
    colours = "; ".join(f"--r-{regime}: {getattr(each, ground)}" for regime, each in COLOURS.items())
    swatches = "\n".join(f'[data-regime="{regime}"] {{ --of-regime: var(--r-{regime}) }}' for regime in COLOURS)
    return f":root {{ {colours} }}\n{swatches}\n"


@cache
def framed(page: str) -> str:
    """A page inside of another one, such as a notebook: it keeps its own styles and scripts."""
    return f'<iframe sandbox="allow-scripts" style="width:100%;height:640px;border:0" srcdoc="{escape(page)}"></iframe>'


def asset(package: str, name: str) -> str:
    """A file beside the modules of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _embedded(value: Mapping[str, Any]) -> str:
    """JSON that cannot end the HTML element around it, whatever names it contains."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def toolbar(by: str) -> str:
    """The timeline's heading with its buttons, and its axis."""
    return (
        '<div class="bar"><h2>Timeline</h2><button id="colours" title="Colour regions by their regime, or each by its '
        f'own">colour: {by}</button><button id="out" aria-label="zoom out">−</button>'
        f'<button id="in" aria-label="zoom in">+</button><button id="all">all</button></div>\n{_AXIS}'
    )


def group(place: int, title: str, words: str, *, shut: bool = False) -> str:
    """The place of the timeline's group with this number."""
    return (
        f"<details{'' if shut else ' open'}><summary>{escape(title)}<span>{escape(words)}</span></summary>"
        f'<canvas id="group-{place}" role="img" aria-label="{escape(title)} over time"></canvas></details>'
    )


def legend(regimes: Collection[str], hints: str) -> str:
    """The end of the timeline: the colours of `regimes`, and hints on its use, of which `hints` is the end."""
    shown = "".join(
        f'<li><span class="swatch" data-regime="{regime}"></span>{regime}</li>'
        for regime in map(str, Regime)
        if regime in regimes
    )
    return (
        f'<p id="said" aria-live="polite"></p>\n<ul class="legend regimes">{shown}</ul>'
        f'<p class="hints">{_MOVES}{hints}</p></section><dl id="tip" hidden></dl>'
    )


def tiles(shown: Iterable[tuple[str, str]]) -> str:
    """Numbers at a glance, each with its label."""
    boxes = "".join(f'<div class="tile"><b>{escape(b)}</b><small>{escape(s)}</small></div>' for b, s in shown)
    return f'<div class="tiles">{boxes}</div>'


def items(title: str, lines: Sequence[str]) -> Iterator[str]:
    """A section of lines, at most `_MOST_LINES` of them; nothing without lines."""
    if not lines:
        return
    shown = "".join(f"<li>{escape(line)}</li>" for line in lines[:_MOST_LINES])
    if len(lines) > _MOST_LINES:
        shown += f"<li>and {len(lines) - _MOST_LINES:,} more; --json has all</li>"
    yield f"<section><h2>{escape(title)}</h2><ul>{shown}</ul></section>"


def table(columns: Sequence[str], rows: Iterable[str]) -> str:
    """A table, from rows of finished cells. `tables.js` sorts and searches it."""
    head = "".join(f'<th scope="col" class="{_align(column)}">{escape(column)}</th>' for column in columns)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def cell(column: str, text: str) -> str:
    """A cell of a column."""
    return f'<td class="{_align(column)}">{escape(text)}</td>'


def named_cell(text: str, place: int | None, style: str) -> str:
    """A cell with a swatch and a name, which shows the timeline's entry with the number `place`, if it has one."""
    shown = escape(text)
    if place is not None:
        shown = f'<button data-region="{place}" aria-pressed="false" title="show it in the timeline">{shown}</button>'
    return f'<td class="left long"><span class="swatch" style="{style}"></span>{shown}</td>'


def colours(regime: Regime, place: int | None) -> str:
    """The style of an element in the colours of a region, from its regime and its number in the timeline."""
    return f"--of-regime:var(--r-{regime})" + ("" if place is None else f";--of-region:var(--hue-{place % HUES})")


class BarPart(NamedTuple):
    """A part of a bar: its share of the whole, the markup inside it, its line in the legend, and its style.

    `rest`: the part has no colour of its own.
    """

    share: float
    inside: str
    line: str
    style: str
    rest: bool = False


def bar(parts: Iterable[BarPart], *, least: float, more: str = "") -> str:
    """A whole in its parts, and a legend that ends with the markup `more`. Parts below the share `least` are empty."""
    bars, lines = [], []
    for share, inside, line, style, rest in parts:
        wide, kind = share >= least, "rest" * rest
        classes = f"{kind} {'' if wide else 'narrow'}".strip()
        bars.append(f'<i class="{classes}" style="width:{min(1.0, share):.2%};{style}">{inside if wide else ""}</i>')
        lines.append(f'<li><span class="swatch {kind}" style="{style}"></span>{escape(line)}</li>')
    return f'<div class="share">{"".join(bars)}</div><ul class="legend">{"".join(lines)}{more}</ul>'


def card(title: str, style: str, verdict: Verdict, *, about: str, step: str, more: str) -> str:
    """A region's verdict: its regime and the words `about` it, the next step, the rule, and then the markup `more`."""
    next_step = f'<p class="next">{escape(step)}</p>' if step else ""
    return (
        f'<article class="card" style="{style}"><h3>{escape(title)}</h3>'
        f'<p><span class="regime">{verdict.regime}</span>{escape(about)}</p>{next_step}'
        f"<p>{escape(verdict.rule)}</p>{more}</article>"
    )


def cards(shown: Sequence[str], count: int) -> Iterator[str]:
    """The section of the cards that are shown, of `count` in all."""
    yield f'<section><h2>Why, and what to do next</h2><div class="cards">{"".join(shown)}</div>'
    if count > len(shown):
        yield f"<p>and {count - len(shown):,} more that used less; --json has all</p>"
    yield "</section>"


def _align(column: str) -> str:
    return ("left uuid" if column == "uuid" else "left") if column in _WORDS else ""
