"""The result of `profile_model`: a model's modules as rows, as text, as JSON values and as points of a roofline."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpu_profile.errors import UsageError
from gpu_profile.regimes import Regime, Verdict
from gpu_profile.report.table import REGIME, UNKNOWN, regime_cell, terminal_width, text_table
from gpu_profile.roofline import headroom
from gpu_profile.roofline.ceilings.ceilings import Ceilings
from gpu_profile.roofline.machines.machine import Memory
from gpu_profile.roofline.position import Position
from gpu_profile.roofline.profile import advice, judged
from gpu_profile.roofline.repeats import Repeats
from gpu_profile.roofline.work import Work
from gpu_profile.units import percent, si

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS: Final = (
    *("module", "type", "calls", "own time", "share", "with inner", "FLOPs", "FLOP/s", "of peak"),
    *("B/s", "of memory", "FLOP/B", "in", REGIME),
)
#: Columns that the table omits on a narrow terminal, in this order.
_SPARE: Final = ("with inner", "B/s", "FLOPs", "FLOP/B", "in", "calls", "FLOP/s")
#: Formats that matplotlib writes.
_PICTURES: Final = (".png", ".svg", ".pdf")
#: The text omits regimes with a smaller share of the time.
_LEAST: Final = 0.005
#: Number of next steps in the text, for the largest modules that have one.
_STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module in one run of its model, all its calls together. Unknown values are None, with the cause in `reasons`.

    `name`: the dotted path, or the model's class for the model itself. `share`: of all modules' own time. `total_s`:
    seconds with the modules inside of it. `position` and `verdict` concern only its own time.
    """

    name: str
    type: str
    calls: int
    share: float
    total_s: float
    position: Position
    verdict: Verdict

    @property
    def times(self) -> Repeats:
        """The timings of its runs, in seconds without the modules inside of it."""
        return self.position.times

    @property
    def own_s(self) -> float:
        """The median of `times`."""
        return self.times.median_s

    @property
    def work(self) -> Work:
        """The work of all its calls, without the modules inside of it."""
        return self.position.work

    @property
    def flops(self) -> int | None:
        """Floating-point operations of all its calls."""
        return self.work.flops

    @property
    def bytes(self) -> int | None:
        """Bytes that all its calls read and write."""
        return self.work.bytes

    @property
    def precision(self) -> str | None:
        """The format of most FLOPs."""
        return None if self.work.precision is None else str(self.work.precision)

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte."""
        return self.work.intensity

    @property
    def flops_per_s(self) -> float | None:
        """FLOPs per second of its own time."""
        return self.position.flops_per_s

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second of its own time."""
        return self.position.bytes_per_s

    @property
    def regime(self) -> str:
        """The name of the regime, such as `MEMORY_BOUND`."""
        return str(self.verdict.regime)

    @property
    def confidence(self) -> float | None:
        """The confidence of the verdict, from 0 to 1. None for UNKNOWN."""
        return None if self.verdict.regime is Regime.UNKNOWN else self.verdict.confidence

    @property
    def advice(self) -> str | None:
        """The next step."""
        return advice(self.verdict, self.position) or None

    @property
    def reasons(self) -> dict[str, str]:
        """Name of an unknown value -> why it is unknown."""
        reasons: dict[str, str] = judged(self.position, self.verdict)["reasons"]
        return reasons

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON values, with the keys of `GPUProfiler`'s profiles. Times are in ms."""
        return {
            "module": self.name,
            "type": self.type or None,
            "calls": self.calls,
            "own_ms": self.own_s * 1e3,
            "own_low_ms": self.times.low_s * 1e3,
            "own_high_ms": self.times.high_s * 1e3,
            "share": self.share,
            "total_ms": self.total_s * 1e3,
            **judged(self.position, self.verdict),
        }


class ModuleGroup(NamedTuple):
    """The FLOPs or bytes (`value`) of modules that together take `share` of the time, from 0 to 1."""

    value: int
    share: float


@dataclass(frozen=True, slots=True, repr=False)
class ModelProfile:
    """The profile of a model on one machine. `print` it, or read `rows`, the longest own time first.

    `whole`: the model as one operation; its FLOPs and bytes are known only if all modules are counted. `hooks_s`:
    seconds of the host that the hooks took in the last run; on the CPU the reported times do not contain them.
    `output`: the model's last output.
    """

    model: str
    machine: str
    ceilings: Ceilings
    whole: ModuleRow
    rows: tuple[ModuleRow, ...]
    hooks_s: float
    memory: Memory | None
    notes: tuple[str, ...] = ()
    output: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"<ModelProfile of {self.model}: {si(self.whole.own_s, 's')}, {len(self.rows)} modules>"

    def __str__(self) -> str:
        return self.text(width=terminal_width(sys.stdout))

    @property
    def regimes(self) -> dict[str, float]:
        """Regime -> share of the time from 0 to 1, the largest first."""
        shares: dict[str, float] = {}
        for row in self.rows:
            shares[row.regime] = shares.get(row.regime, 0.0) + row.share
        return dict(sorted(shares.items(), key=lambda each: -each[1]))

    @property
    def counted_flops(self) -> ModuleGroup:
        """The FLOPs of all counted modules, with their share of the time."""
        return self._sum([(row.flops, row.share) for row in self.rows])

    @property
    def counted_bytes(self) -> ModuleGroup:
        """The bytes of all counted modules, with their share of the time."""
        return self._sum([(row.bytes, row.share) for row in self.rows])

    def text(self, *, top: int = 20, width: int | None = None) -> str:
        """Some lines on the model, and a table of the `top` modules with the longest own time.

        If the table would be wider than `width` characters, it omits the least important columns.
        """
        return "\n".join([*self._heading(), "", self._table(top, width), *self._ending()])

    def to_dict(self) -> dict[str, Any]:
        """The profile as JSON values, without the output."""
        whole = self.whole.to_dict()
        return {
            "model": self.model,
            "device": self.machine,
            "runtime_ms": self.whole.own_s * 1e3,
            "runs": self.whole.times.n,
            "hooks_ms": self.hooks_s * 1e3,
            "regimes": self.regimes,
            "counted": {"flops": self.counted_flops._asdict(), "bytes": self.counted_bytes._asdict()},
            "memory": None if self.memory is None else headroom.as_profile(self.memory),
            "notes": list(self.notes),
            "whole": whole,
            "modules": [row.to_dict() for row in self.rows],
        }

    def figure(self, *, dark: bool = False) -> Figure:
        """The roofline with every module as a point. Raises UsageError if matplotlib is not installed."""
        from gpu_profile.roofline.plots.points import Point
        from gpu_profile.roofline.plots.roofs import roofline_figure

        points = [
            Point(row.name, row.intensity, row.flops_per_s, row.regime, row.share, row.work.precision)
            for row in self.rows
            if row.flops != 0 or row.bytes != 0
        ]
        return roofline_figure(self.ceilings, points, title=f"{self.model} on {self.machine}", what="module", dark=dark)

    def save(self, path: str | Path, *, dark: bool = False) -> Path:
        """Write the text (`.txt`), the JSON values (`.json`) or the figure (`.png`, `.svg`, `.pdf`), by the extension.

        Raises UsageError for another extension, or if the file cannot be written.
        """
        file = Path(path)
        suffix = file.suffix.lower()
        if suffix not in (".txt", ".json", *_PICTURES):
            raise UsageError(
                f"{file}: it is written as .txt, .json, {', '.join(_PICTURES)}, not {suffix or 'without one'}"
            )
        try:
            if suffix in _PICTURES:
                self.figure(dark=dark).savefig(file)
            else:
                text = json.dumps(self.to_dict(), indent=1) if suffix == ".json" else self.text(top=len(self.rows))
                file.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{file}: cannot be written: {error.strerror or error}") from error
        return file

    def _heading(self) -> Iterator[str]:
        whole, times = self.whole, self.whole.times
        runs = "" if times.n == 1 else f", median of {times.n} ({si(times.low_s, 's')} to {si(times.high_s, 's')})"
        yield f"{self.model} on {self.machine}: {si(times.median_s, 's')}{runs}"
        confidence = "" if whole.confidence is None else f", confidence {percent(whole.confidence, 0)}"
        step = whole.verdict.explanation if whole.confidence is None else whole.advice or whole.verdict.rule
        yield f"  as a whole      {whole.regime}{confidence}: {step}"
        shares = ", ".join(f"{regime} {percent(share, 0)}" for regime, share in self.regimes.items() if share >= _LEAST)
        yield f"  time by regime  {shares}"
        yield f"  counted         {self._counted()}"
        if self.memory is not None:
            left = si(headroom.headroom(self.memory), "B")
            yield f"  memory          {left} left: risk of running out {headroom.oom_risk(self.memory)}"

    def _counted(self) -> str:
        flops, moved = self.counted_flops, self.counted_bytes
        precisions = self._precisions()
        only = f" of {min(precisions)}" if len(precisions) == 1 else ""
        text = f"{si(flops.value, 'FLOP')}{only} in modules that take {percent(flops.share, 0)} of the time"
        text += f", {si(moved.value, 'B')} in {percent(moved.share, 0)}"
        return text + ("; passes=2 counts the rest, in a run of its own" if self._is_incomplete() else "")

    @staticmethod
    def _sum(parts: Sequence[tuple[int | None, float]]) -> ModuleGroup:
        counted = [(value, share) for value, share in parts if value is not None]
        return ModuleGroup(sum(value for value, _ in counted), sum(share for _, share in counted))

    def _is_incomplete(self) -> bool:
        return any("passes=2" in reason for row in self.rows for reason in row.work.reasons.values())

    def _table(self, top: int, width: int | None) -> str:
        shown = [_cells(row) for row in self.rows[:top]]
        rest = self.rows[top:]
        if rest:
            own, share = sum(row.own_s for row in rest), sum(row.share for row in rest)
            cells = [f"{len(rest)} more", "", f"{sum(row.calls for row in rest):,}", si(own, "s"), percent(share)]
            shown.append((*cells, *[""] * (len(_COLUMNS) - len(cells))))
        # A precision that all rows have in common is in the heading.
        left_out = {"in"} if len(self._precisions()) == 1 else set()
        spare = iter(_SPARE)
        while True:
            kept = [i for i, column in enumerate(_COLUMNS) if column not in left_out]
            table = text_table([_COLUMNS[i] for i in kept], [[row[i] for i in kept] for row in shown], left=2)
            fits = width is None or max(map(len, table.splitlines())) <= width
            if fits or (column := next(spare, None)) is None:
                return table
            left_out.add(column)

    def _precisions(self) -> set[str]:
        return {row.precision for row in self.rows if row.precision is not None}

    def _ending(self) -> Iterator[str]:
        steps = [row for row in self.rows if row.advice][:_STEPS]
        if steps:
            yield "\nnext steps"
            yield from (f"  {row.name}: {row.advice}" for row in steps)
        if self.notes:
            yield "\nto note"
            yield from (f"  {note}" for note in self.notes)


def _cells(row: ModuleRow) -> tuple[str, ...]:
    position = row.position
    return (
        row.name,
        row.type or "the model itself",
        f"{row.calls:,}",
        si(row.own_s, "s"),
        percent(row.share),
        si(row.total_s, "s"),
        _quantity(row.flops) if row.work.at_least is None else f"≥ {_quantity(row.work.at_least)}",
        _quantity(row.flops_per_s),
        _share(position.compute) if row.work.at_least is None else _at_least(position.compute),
        _quantity(row.bytes_per_s),
        _share(position.bandwidth),
        UNKNOWN if row.intensity is None else f"{row.intensity:.3g}",
        row.precision or UNKNOWN,
        regime_cell(row.verdict),
    )


def _at_least(value: float | None) -> str:
    return UNKNOWN if value is None else f"≥ {_share(value)}"


def _quantity(value: float | None) -> str:
    return UNKNOWN if value is None else si(value, "").strip()


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else percent(value, 0)
