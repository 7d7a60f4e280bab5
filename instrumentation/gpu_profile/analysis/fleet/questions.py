"""The questions, one SQL file each, and the base tables that they read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from gpu_profile.analysis.chance import student_quantile
from gpu_profile.analysis.comparison.differences import ALPHA
from gpu_profile.analysis.costs.repeated import LEAST_RUNS

_WHEN: Final = {"hour": "TIMESTAMP", "first_seen": "TIMESTAMP"}
_WHERE: Final = dict.fromkeys(("service", "version", "run", "region"), "VARCHAR")
#: The base tables with the types of their columns in DuckDB. In ClickHouse they are views with the same columns.
BASES: Final[Mapping[str, Mapping[str, str]]] = {
    "gpu_profile_use": {
        **_WHEN,
        **_WHERE,
        "device": "VARCHAR",
        "regime": "VARCHAR",
        "executions": "DOUBLE",
        "gpu_s": "DOUBLE",
        "energy_j": "DOUBLE",
        "uncertain_gpu_s": "DOUBLE",
        "uncertain_energy_j": "DOUBLE",
    },
    "gpu_profile_durations": {**_WHEN, **_WHERE, "executions": "DOUBLE", "total_s": "DOUBLE"},
    "gpu_profile_executions": {
        "started": "TIMESTAMP",
        **_WHERE,
        "rank": "INTEGER",
        "duration_s": "DOUBLE",
        "failed": "BOOLEAN",
    },
    "gpu_profile_tenant_use": {
        "hour": "TIMESTAMP",
        **dict.fromkeys(("engine", "tenant", "model", "phase", "unallocated"), "VARCHAR"),
        **dict.fromkeys(("energy_j", "gpu_s", "tokens"), "DOUBLE"),
    },
    "gpu_profile_held": {
        "hour": "TIMESTAMP",
        "holder": "VARCHAR",
        "device": "VARCHAR",
        **dict.fromkeys(("held_s", "idle_s", "energy_j"), "DOUBLE"),
    },
    "gpu_profile_student": {"degrees": "INTEGER", "comparisons": "INTEGER", "quantile": "DOUBLE"},
}
#: Degrees of freedom with a row in the table of Student's t, from the fewest of an interval on.
_DEGREES: Final = (*range(LEAST_RUNS - 2, 31), 40, 60, 120, 240, 1000)
#: Powers of four with rows: up to a million comparisons at once.
_POWERS: Final = 10


@dataclass(frozen=True, slots=True)
class FleetQuestion:
    """A question. `title` is its subject in a line, `columns` the meaning of each column, `bases` the tables it reads.

    `sql` is a SELECT that ClickHouse and DuckDB both accept.
    """

    name: str
    title: str
    columns: Mapping[str, str]
    bases: tuple[str, ...]
    sql: str

    @property
    def view(self) -> str:
        """The name of its view in a database."""
        return f"gpu_profile_{self.name}"

    @classmethod
    def of(cls, name: str, text: str) -> FleetQuestion:
        """The question of a file: the first line of its comment is the title, indented ones are columns."""
        columns = dict(re.findall(r"^--   (\w+): (.*)$", text, re.MULTILINE))
        bases = tuple(base for base in BASES if re.search(rf"\b{base}\b", text))
        return cls(name, text.partition("\n")[0].removeprefix("-- ").rstrip("."), columns, bases, text)


#: In the order of the documentation.
_NAMES: Final = ("services", "regions", "tenants", "regimes", "idle", "regressions", "stragglers")
QUESTIONS: Final[Mapping[str, FleetQuestion]] = {
    name: FleetQuestion.of(name, (files(__package__) / "sql" / f"{name}.sql").read_text("utf-8")) for name in _NAMES
}


def student_rows() -> Iterator[tuple[int, int, float]]:
    """Degrees of freedom, the number of comparisons, and the quantile of Student's t.

    With it, the intervals of all comparisons contain the truth together with probability 1 - `ALPHA` (Bonferroni).
    """
    for power in range(_POWERS + 1):
        for degrees in _DEGREES:
            yield degrees, 4**power, student_quantile(ALPHA / 4**power, degrees)
