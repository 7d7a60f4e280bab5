"""Text in the cells of a terminal: widths, pieces with a tone, and tables that fit. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu_profile.report.table import printable

_GAP: Final = " "
_CUT: Final = "…"
#: Selectors and joiners that change the width of the character before them, differently in each terminal.
_SHAPES: Final = {ord(character): None for character in "\ufe0e\ufe0f"}


class StyledText(NamedTuple):
    """Text with a tone: a key of the colours in `app`. Tones only add to the text."""

    text: str
    tone: str = ""


#: One row of the screen.
TextLine = tuple[StyledText, ...]


def plain(line: TextLine) -> str:
    """The text of a line."""
    return "".join(piece.text for piece in line)


def cell_width(text: str) -> int:
    """The number of a terminal's cells that printable text occupies."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.category(character).startswith("M"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def safe(text: str) -> str:
    """Text of unknown origin, with escapes for control characters, and without selectors of another width."""
    return printable(unicodedata.normalize("NFC", text).translate(_SHAPES))


def fit(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells: padded, or cut with an ellipsis."""
    size = cell_width(text)
    if size > width:
        text, size = _cut(text, width)
    room = _GAP * (width - size)
    return room + text if right else text + room


def _cut(text: str, width: int) -> tuple[str, int]:
    if width < 1:
        return "", 0
    kept, used = [], 0
    for character in text:
        size = _width(character)
        if used + size > width - 1:
            break
        kept.append(character)
        used += size
    return "".join(kept) + _CUT, used + 1


def wrapped(text: str, width: int, tone: str = "") -> list[TextLine]:
    """`text` in lines of exactly `width` cells, broken between words. A word that is too long is cut."""
    lines, words = [], list[str]()
    for word in text.split():
        if words and cell_width(" ".join([*words, word])) > width:
            lines.append(" ".join(words))
            words = []
        words.append(word)
    lines.append(" ".join(words))
    return [(StyledText(fit(line, width), tone),) for line in lines]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table. `key` names it.

    `rank`: columns with higher ranks are left out first; columns of rank 0 always stay. `left`: flushed left.
    `size` is the smallest width, so that the columns do not move with their values. `flexible`: the one column that is
    cut to `size`, or takes the rest of the width.
    """

    key: str
    title: str
    rank: int = 0
    left: bool = False
    size: int = 0
    flexible: bool = False


def table_lines(
    columns: Sequence[TableColumn],
    rows: Iterable[Sequence[StyledText]],
    width: int,
    *,
    sorted_by: str = "",
    mark: str = "",
) -> list[TextLine]:
    """The heading and the rows, each of exactly `width` cells. Columns that do not fit are left out.

    `sorted_by`: the key of the sorted column, whose title ends in `mark`.
    """
    titles = [column.title + (mark if column.key == sorted_by else "") for column in columns]
    body = [list(row) for row in rows]
    widths = [
        column.size
        if column.flexible
        else max([column.size, cell_width(title), *(cell_width(row[place].text) for row in body)])
        for place, (column, title) in enumerate(zip(columns, titles, strict=True))
    ]
    shown = _chosen(columns, widths, width)
    rest = width - sum(widths[place] + 1 for place in shown) + 1
    for place in shown:
        if columns[place].flexible and rest > 0:
            widths[place] += rest
    cells = [(columns[place], place, widths[place]) for place in shown]
    heading = [StyledText(fit(titles[place], size, right=not column.left), "head") for column, place, size in cells]
    lines = [_joined(heading, "head", width)]
    for row in body:
        texts = [StyledText(fit(row[at].text, size, right=not column.left), row[at].tone) for column, at, size in cells]
        lines.append(_joined(texts, "", width))
    return lines


def _chosen(columns: Sequence[TableColumn], widths: Sequence[int], width: int) -> list[int]:
    """The places of the columns that fit into `width`."""
    shown = list(range(len(columns)))
    while sum(widths[place] + 1 for place in shown) - 1 > width:
        last = max(shown, key=lambda place: columns[place].rank)
        if not columns[last].rank:
            break
        shown.remove(last)
    return shown


def _joined(pieces: Sequence[StyledText], tone: str, width: int) -> TextLine:
    """The pieces with gaps between them, cut or padded to `width`."""
    line, used = [], 0
    for number, piece in enumerate(pieces):
        text = (_GAP if number else "") + piece.text
        size = min(cell_width(text), width - used)
        if size < cell_width(text):
            text = fit(text, size)
        line.append(StyledText(text, piece.tone))
        used += size
    if used < width:
        line.append(StyledText(_GAP * (width - used), tone))
    return tuple(line)
