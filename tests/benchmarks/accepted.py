"""The table that was accepted last, `accepted.json`, and which rows of a new one are worse.

A row's cost is one number; less is better. Where there is a baseline, the cost is the ratio to it. The file keeps a
row's costs in its last turns. A row is worse if its cost exceeds their median by 15 % and by more than the turns
differ, if it falls short and did not before, or if it was not measured. Ratios carry over to another machine; costs
that are times or bytes do not.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.rows import Row

PATH: Final = Path(__file__).with_suffix(".json")
#: A cost above the accepted one by less than this share is never worse.
TOLERANCE: Final = 0.15
_TURNS: Final = 5


@dataclass(frozen=True, slots=True)
class Accepted:
    """A row as it was accepted, and its costs in up to five turns, the newest last."""

    row: Row
    costs: tuple[float, ...] = ()

    @property
    def cost(self) -> float | None:
        """The median over the turns; None for a row that has no cost."""
        return median(self.costs) if self.costs else None

    @property
    def spread(self) -> float:
        """How far the turns differ."""
        return max(self.costs) - min(self.costs) if self.costs else 0.0

    def moved(self, cost: float | None) -> int:
        """1 if a cost is higher than this row's beyond tolerance and spread, -1 if it is lower, else 0."""
        known = self.cost
        if cost is None or known is None or abs(cost - known) <= max(TOLERANCE * abs(known), self.spread):
            return 0
        return 1 if cost > known else -1

    def worse(self, row: Row) -> bool:
        """Whether a new measurement of the row is worse than this."""
        return self.moved(row.cost) > 0 or (self.row.ok and not row.ok)

    def __str__(self) -> str:
        if self.cost is None:
            return "ok" if self.row.ok else "falls short"
        return f"{self.cost:.3g}" + (f" ± {self.spread:.2g}" if len(self.costs) > 1 else "")


Table = dict[str, dict[str, Accepted]]


def load(path: Path = PATH) -> Table:
    """The accepted rows by group and name; none if there is no file."""
    if not path.exists():
        return {}
    found: Mapping[str, list[dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
    return {group: {row.row.name: row for row in map(_read, rows)} for group, rows in found.items()}


def _read(fields: dict[str, Any]) -> Accepted:
    costs = tuple(fields.pop("costs"))
    return Accepted(Row(**fields), costs)


def save(table: Table, path: Path = PATH) -> None:
    """Write the table, a line for each row."""
    text = {
        group: ",\n".join(json.dumps(_written(row), ensure_ascii=False) for row in rows.values())
        for group, rows in table.items()
    }
    body = ",\n".join(f"{json.dumps(group)}: [\n{lines}\n]" for group, lines in text.items())
    path.write_text(f"{{\n{body}\n}}\n", encoding="utf-8")


def _written(accepted: Accepted) -> dict[str, Any]:
    fields = asdict(accepted.row)
    del fields["cost"]
    # A comparison of numpy's numbers is no bool of JSON's.
    fields["ok"] = bool(fields["ok"])
    return {**fields, "costs": [float(f"{cost:.4g}") for cost in accepted.costs]}


def beside(row: Row, known: Accepted | None) -> str:
    """The row's last column: its cost, and what was accepted."""
    if known is None:
        return "new"
    now = "" if row.cost is None or known.cost is None else f"{row.cost:.3g}, accepted "
    return ("WORSE: " if known.worse(row) else "better: " if known.moved(row.cost) < 0 else "") + now + str(known)


def accept(table: Table, group: str, rows: Iterable[Row]) -> None:
    """Take a group's rows in. A row like the accepted one adds a turn to it; any other starts anew."""
    known = table.get(group, {})
    table[group] = {row.name: _accepted(row, known.get(row.name)) for row in rows}


def _accepted(row: Row, known: Accepted | None) -> Accepted:
    costs = () if known is None or known.moved(row.cost) or known.worse(row) else known.costs
    return Accepted(replace(row, cost=None), costs if row.cost is None else (*costs, row.cost)[-_TURNS:])
