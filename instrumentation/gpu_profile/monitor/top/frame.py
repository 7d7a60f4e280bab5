"""The whole screen as lines of text of one width. Pure: the snapshot and the state of the view in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpu_profile.monitor.top.cells import StyledText, TextLine, cell_width, fit, plain, safe, table_lines, wrapped
from gpu_profile.monitor.top.snapshot import DeviceLine, TopSnapshot
from gpu_profile.monitor.top.tables import DEVICES, HOLDERS, PROCESSES, REGIONS, TABLES, ViewTable
from gpu_profile.report.sparkline import sparkline
from gpu_profile.report.table import ABOUT_MEANS

#: The narrowest screen.
LEAST_WIDTH: Final = 20
NO_URL: Final = (
    "none: give --url http://HOST:PORT/metrics of a program that calls gpu_profile.serve_metrics(), or of an exporter "
    "that receives spans"
)


@dataclass(frozen=True, slots=True)
class ViewState:
    """The user's choices: the table that keys apply to, each table's sort column and order, the filter, the pause."""

    table: str = DEVICES.name
    sort: Mapping[str, int] = field(default_factory=dict)
    reverse: frozenset[str] = frozenset()
    filter: str = ""
    paused: bool = False

    def with_next_table(self, snapshot: TopSnapshot, step: int = 1) -> ViewState:
        """Select the next table that the screen shows."""
        names = [name for name in TABLES if name != HOLDERS.name or snapshot.holders]
        at = names.index(self.table) if self.table in names else 0
        return replace(self, table=names[(at + step) % len(names)])

    def with_next_sort(self) -> ViewState:
        """Sort the selected table by its next column."""
        table = TABLES[self.table]
        following = (self.sort.get(table.name, 0) + 1) % len(table.columns)
        return replace(self, sort={**self.sort, table.name: following})

    def reversed(self) -> ViewState:
        """Reverse the order of the selected table."""
        return replace(self, reverse=self.reverse ^ {self.table})


@dataclass(frozen=True, slots=True)
class TopFrame:
    """A drawing. `starts`: the number of the first line of each table in `body`. All lines have the same width."""

    title: TextLine
    body: tuple[TextLine, ...]
    starts: Mapping[str, int]

    @property
    def text(self) -> str:
        """The frame as plain text, without blanks at the ends of lines."""
        return "\n".join(plain(line).rstrip() for line in (self.title, *self.body)) + "\n"


def draw(snapshot: TopSnapshot, state: ViewState, width: int) -> TopFrame:
    """The frame for a terminal that is `width` cells wide, at least `LEAST_WIDTH`."""
    width = max(width, LEAST_WIDTH)
    body: list[TextLine] = []
    starts: dict[str, int] = {}
    for table, lines in _sections(snapshot, state, width):
        starts[table.name] = len(body)
        body += lines
    return TopFrame(_title(snapshot, state, width), tuple(body), starts)


def _title(snapshot: TopSnapshot, state: ViewState, width: int) -> TextLine:
    count = len(snapshot.devices)
    parts = [
        "gpu-profile top",
        safe(snapshot.source),
        f"{count} device{'' if count == 1 else 's'}",
        snapshot.time,
        "PAUSED" if state.paused else "",
        f"filter: {safe(state.filter)}" if state.filter else "",
    ]
    # If it is too long, the name of the driver is cut: the state of the view matters more.
    text = "  ".join(part for part in parts if part)
    spare = cell_width(text) - width
    if spare > 0:
        parts[0] = "top"
        spare -= len("gpu-profile ")
        room = max(6, cell_width(parts[1]) - max(0, spare))
        parts[1] = fit(parts[1], min(room, cell_width(parts[1])))
    return (StyledText(fit("  ".join(part for part in parts if part), width), "title"),)


def _sections(snapshot: TopSnapshot, state: ViewState, width: int) -> Iterator[tuple[ViewTable, list[TextLine]]]:
    devices = _rows(DEVICES, snapshot, state)
    lines = _table(DEVICES, devices, state, width) if snapshot.devices else []
    if snapshot.waiting:
        lines += wrapped("waiting for the driver", width, "soft")
    elif snapshot.problem:
        lines += wrapped(f"no driver: {safe(snapshot.problem)}", width, "bad")
    elif not snapshot.devices:
        lines += wrapped("no devices: the driver lists none", width, "soft")
    for device in devices:
        if not device.up and device.reason != snapshot.problem:
            lines += wrapped(f"GPU {safe(device.label)} is down: {safe(device.reason)}", width, "bad")
    if devices:
        lines += [_blank(width), *_history(devices, width)]
    yield DEVICES, _matching(lines, devices, snapshot.devices, state, width)
    for table, note in ((PROCESSES, snapshot.process_note), (HOLDERS, ""), (REGIONS, snapshot.region_note)):
        every = table.rows(snapshot)
        if table is HOLDERS and not every:
            continue
        rows = _rows(table, snapshot, state)
        lines = [_blank(width), _heading(table, state, width)]
        if rows:
            lines += _table(table, rows, state, width)
        if table is REGIONS and any(row.joules_uncertain or row.busy_uncertain for row in rows):
            lines += wrapped(ABOUT_MEANS, width, "soft")
        if note:
            lines += wrapped(safe(note), width, "soft")
        yield table, _matching(lines, rows, every, state, width)


def _rows(table: ViewTable, snapshot: TopSnapshot, state: ViewState) -> list[Any]:
    sort, reverse = state.sort.get(table.name, 0), table.name in state.reverse
    return table.chosen(snapshot, sort=sort, reverse=reverse, filter_=state.filter)


def _matching(
    lines: list[TextLine], rows: Sequence[Any], every: Sequence[Any], state: ViewState, width: int
) -> list[TextLine]:
    """The lines, with a note if the filter leaves none of `every` row."""
    return lines if rows or not every else lines + wrapped(f"none matches {safe(state.filter)!r}", width, "soft")


def _table(table: ViewTable, rows: Sequence[Any], state: ViewState, width: int) -> list[TextLine]:
    sort, reverse = state.sort.get(table.name, 0), table.name in state.reverse
    columns = [each.column for each in table.columns]
    cells = [[each.cell(row) for each in table.columns] for row in rows]
    lines = table_lines(columns, cells, width, sorted_by=columns[sort].key, mark=table.mark(sort, reverse=reverse))
    if table.name == state.table:
        lines[0] = tuple(StyledText(piece.text, "selected") for piece in lines[0])
    return lines


def _heading(table: ViewTable, state: ViewState, width: int) -> TextLine:
    return (StyledText(fit(table.heading, width), "selected" if table.name == state.table else "head"),)


def _blank(width: int) -> TextLine:
    return (StyledText(" " * width),)


def _history(devices: Sequence[DeviceLine], width: int) -> list[TextLine]:
    """The last minute of each device: utilisation, and power as a share of its limit or its own maximum."""
    labels = min(12, max(3, *(cell_width(safe(device.label)) for device in devices)))
    each = (width - labels - 2) // 2
    rest = width - labels - 2 - 2 * each
    heads = "last minute: util", "power of limit" if all(map(_is_limited, devices)) else "power of limit or peak"
    titles = (fit(heads[0], each), fit(heads[1], each + rest))
    lines: list[TextLine] = [(StyledText(" ".join((fit("GPU", labels, right=True), *titles)), "head"),)]
    end = max(history.end for device in devices for history in (device.busy, device.power))
    for device in devices:
        busy, power = device.busy.columns(each, end), device.power.columns(each, end)
        peak = device.power_scale_w or max((watts for watts in power if watts is not None), default=0.0)
        shares = [None if watts is None else watts / peak if peak > 0 else 0.0 for watts in power]
        lines.append(
            (
                StyledText(fit(safe(device.label), labels, right=True) + " "),
                StyledText(sparkline(busy) + " ", "busy"),
                StyledText(sparkline(shares) + " " * rest, "power"),
            )
        )
    return lines


def _is_limited(device: DeviceLine) -> bool:
    """Whether the device's power has a limit, or no value."""
    return device.power_scale_w is not None or not any(device.power.covered_ns)
