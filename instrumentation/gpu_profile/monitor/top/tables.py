"""The tables of the view: their columns, the cells of a row, sorting and filtering. Pure.

A table is a row of `TABLES`. An unknown value is a dash. It is sorted last in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from gpu_profile.monitor.top.cells import StyledText, TableColumn, safe
from gpu_profile.monitor.top.snapshot import DeviceLine, RegionLine, TopSnapshot
from gpu_profile.regimes import Regime
from gpu_profile.report.table import ABOUT, UNKNOWN

_GIB: Final = 1 << 30
_SOFT: Final = "soft"
_REGIMES: Final = frozenset(map(str, Regime))


@dataclass(frozen=True, slots=True)
class SortableColumn:
    """A column, the cell of a row in it, and the value to sort by: a number or a text, None if it is unknown.

    `falling`: sorted from large to small at first.
    """

    column: TableColumn
    cell: Callable[[Any], StyledText]
    value: Callable[[Any], Any]
    falling: bool = True


@dataclass(frozen=True, slots=True)
class ViewTable:
    """One table. `rows` picks its rows, `text` is the text of a row that a filter searches."""

    name: str
    heading: str
    columns: tuple[SortableColumn, ...]
    rows: Callable[[TopSnapshot], Sequence[Any]]
    text: Callable[[Any], str]

    def chosen(self, snapshot: TopSnapshot, *, sort: int, reverse: bool, filter_: str) -> list[Any]:
        """The rows that contain `filter_`, sorted by the column number `sort`."""
        wanted = filter_.casefold()
        rows = [row for row in self.rows(snapshot) if wanted in self.text(row).casefold()]
        by = self.columns[sort]
        ranked = [row for row in rows if by.value(row) is not None]
        ranked.sort(key=by.value, reverse=by.falling != reverse)
        return ranked + [row for row in rows if by.value(row) is None]

    def mark(self, sort: int, *, reverse: bool) -> str:
        """The arrow after the title of the column number `sort`."""
        return "▼" if self.columns[sort].falling != reverse else "▲"


def _number(value: float | None, text: Callable[[float], str]) -> StyledText:
    return StyledText(UNKNOWN, _SOFT) if value is None else StyledText(text(value))


def _finite(value: float) -> float | None:
    """A sum or a ratio; None if it is infinite, as of values near the largest one."""
    return value if isfinite(value) else None


def _percent(value: float | None) -> StyledText:
    return _number(value, lambda ratio: f"{ratio * 100:.0f}%")


def _of(value: float | None, limit: float | None, text: Callable[[float], str]) -> StyledText:
    """`value/limit`, with a dash for an unknown one."""
    if value is None and limit is None:
        return StyledText(UNKNOWN, _SOFT)
    return StyledText("/".join(UNKNOWN if each is None else text(each) for each in (value, limit)))


def _gib(size: float) -> str:
    return f"{size / _GIB:.0f}" if size >= 1000 * _GIB else f"{size / _GIB:.1f}"


def _short(value: float) -> str:
    """At most three significant digits. A positive value never looks like 0."""
    if 0 < value < 0.01:
        return "<0.01"
    if value >= 1e6:
        return f"{value:.2g}"
    return f"{value:.0f}" if value >= 100 or not value else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _throttle(line: DeviceLine) -> StyledText:
    if line.throttles is None:
        return StyledText(UNKNOWN, _SOFT)
    if not line.throttles:
        return StyledText("none", _SOFT)
    (name, _), *more = line.throttles
    return StyledText(name + (f" +{len(more)}" if more else ""), "warn")


def _status(line: DeviceLine) -> StyledText:
    if not line.up:
        return StyledText("down", "bad")
    return StyledText("ok") if line.xid is None else StyledText(f"XID {line.xid}", "bad")


def _column(
    title: str,
    cell: Callable[[Any], StyledText],
    value: Callable[[Any], Any],
    *,
    rank: int = 0,
    size: int = 0,
    left: bool = False,
    flexible: bool = False,
    falling: bool = True,
) -> SortableColumn:
    return SortableColumn(TableColumn(title, title, rank, left, size, flexible), cell, value, falling)


def _measured(
    title: str, field: str, cell: Callable[[float | None], StyledText], *, size: int = 6, rank: int = 0
) -> SortableColumn:
    """A column of one attribute of a row."""
    return _column(title, lambda row: cell(getattr(row, field)), lambda row: getattr(row, field), size=size, rank=rank)


def _texts(title: str, field: str, *, size: int = 0) -> SortableColumn:
    """A column of one text of a row; with a size, the flexible one."""
    return _column(
        title,
        lambda row: StyledText(safe(getattr(row, field))) if getattr(row, field) else StyledText(UNKNOWN, _SOFT),
        lambda row: getattr(row, field) or None,
        left=True,
        size=size,
        flexible=size > 0,
        falling=False,
    )


def _device(title: str, field: str) -> SortableColumn:
    return _column(
        title, lambda row: StyledText(safe(getattr(row, field))), lambda row: row.order, size=4, falling=False
    )


def _whole(value: float | None) -> StyledText:
    return _number(value, lambda number: f"{number:.0f}")


def _memory(size: float | None) -> StyledText:
    return _number(size, _gib)


def _rate(value: float | None) -> StyledText:
    return _number(value, _short)


def _shared(title: str, certain: str, uncertain: str, *, size: int, rank: int = 0) -> SortableColumn:
    """A column of a certain amount, with the uncertain one behind it if there is any."""

    def cell(row: Any) -> StyledText:
        amount, about = getattr(row, certain), getattr(row, uncertain)
        if amount is None and about is None:
            return StyledText(UNKNOWN, _SOFT)
        parts = ["" if amount is None else _short(amount), f"{ABOUT}{_short(about)}" if about else ""]
        return StyledText(" ".join(part for part in parts if part) or f"{ABOUT}0")

    def value(row: Any) -> float | None:
        amounts = [each for each in (getattr(row, certain), getattr(row, uncertain)) if each is not None]
        return _finite(sum(amounts)) if amounts else None

    return _column(title, cell, value, size=size, rank=rank)


DEVICES: Final = ViewTable(
    "devices",
    "",
    (
        _device("GPU", "label"),
        _column(
            "name",
            lambda row: StyledText(safe(row.name).removeprefix("NVIDIA ")),
            lambda row: row.name,
            size=8,
            left=True,
            flexible=True,
            falling=False,
        ),
        _measured("util", "utilisation", _percent, size=5),
        _measured("SM", "sm", _percent, size=4, rank=3),
        _measured("tensor", "tensor", _percent, rank=10),
        _measured("DRAM", "dram", _percent, size=5, rank=9),
        _column(
            "memory GiB",
            lambda row: _of(row.memory_bytes, row.memory_total_bytes, _gib),
            lambda row: row.memory_bytes,
            rank=1,
            size=11,
        ),
        _column(
            "power W",
            lambda row: _of(row.power_w, row.power_limit_w, lambda watts: f"{watts:.0f}"),
            lambda row: row.power_w,
            rank=2,
            size=8,
        ),
        _measured("°C", "temperature", _whole, size=3, rank=4),
        _measured("mem °C", "temperature_memory", _whole, rank=12),
        _measured("MHz", "clock_hz", lambda hertz: _number(hertz, lambda hz: f"{hz / 1e6:.0f}"), size=4, rank=5),
        _measured("PCIe rx MB/s", "pcie_rx", lambda rate: _number(rate, lambda b: _short(b / 1e6)), rank=13),
        _measured("tx MB/s", "pcie_tx", lambda rate: _number(rate, lambda b: _short(b / 1e6)), rank=13),
        _column(
            "throttle", _throttle, lambda row: sum(share for _, share in row.throttles or ()) or None, rank=6, size=9
        ),
        _column("status", _status, lambda row: 2 if not row.up else 1 if row.xid is not None else 0, size=6),
    ),
    lambda snapshot: snapshot.devices,
    lambda row: f"GPU {row.label} {row.name} {row.uuid}",
)
PROCESSES: Final = ViewTable(
    "processes",
    "processes",
    (
        _device("GPU", "device"),
        _column("pid", lambda row: StyledText(str(row.pid)), lambda row: row.pid, size=7, falling=False),
        _texts("process", "name", size=10),
        _measured("util", "utilisation", _percent, size=5),
        _measured("memory GiB", "memory_bytes", _memory),
    ),
    lambda snapshot: snapshot.processes,
    lambda row: f"GPU {row.device} {row.pid} {row.name}",
)
HOLDERS: Final = ViewTable(
    "holders",
    "holders",
    (_device("GPU", "device"), _texts("kind", "kind"), _texts("holder", "name", size=10)),
    lambda snapshot: snapshot.holders,
    lambda row: f"GPU {row.device} {row.kind} {row.name}",
)


def _regime(line: RegionLine) -> StyledText:
    """The regime. Its text comes from the endpoint, so that only a known one is a tone."""
    if not line.regime:
        return StyledText(UNKNOWN, _SOFT)
    return StyledText(safe(line.regime), line.regime if line.regime in _REGIMES else "")


def _each(line: RegionLine) -> float | None:
    """Joules per call of the certain part, where nothing is uncertain."""
    if line.joules is None or not line.calls or line.joules_uncertain:
        return None
    return _finite(line.joules / line.calls)


REGIONS: Final = ViewTable(
    "regions",
    "regions",
    (
        _texts("region", "name", size=10),
        _measured("calls/s", "calls", _rate),
        _shared("J/s", "joules", "joules_uncertain", size=9),
        _column("J/call", lambda row: _rate(_each(row)), _each, rank=3, size=6),
        _shared("busy s/s", "busy", "busy_uncertain", size=11, rank=2),
        _column("regime", _regime, lambda row: row.regime or None, rank=1, size=14, left=True, falling=False),
    ),
    lambda snapshot: snapshot.regions,
    lambda row: row.name,
)
#: In the order of the screen.
TABLES: Final[Mapping[str, ViewTable]] = {table.name: table for table in (DEVICES, PROCESSES, HOLDERS, REGIONS)}
