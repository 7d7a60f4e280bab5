"""Answers questions on tables in memory with DuckDB, in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpu_profile.analysis.fleet.questions import BASES, QUESTIONS
from gpu_profile.errors import UsageError

if TYPE_CHECKING:
    import duckdb

    from gpu_profile.analysis.fleet.tables import Column

INSTALL: Final = "pip install 'gpu-profile[query]'"
#: The form of a result's file by the end of its name.
FILE_FORMS: Final = {
    ".parquet": "(FORMAT parquet, COMPRESSION zstd)",
    ".csv": "(FORMAT csv, HEADER)",
    ".json": "(FORMAT json, ARRAY true)",
}


class FleetAnswer(NamedTuple):
    """The result of a query: the columns, and the rows with None for missing values."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]


class FleetEngine:
    """Base tables in DuckDB, and a view for each question. UsageError without DuckDB."""

    def __init__(self, tables: Mapping[str, Mapping[str, Column]]) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise UsageError(f"query needs DuckDB, which is not installed: {INSTALL}") from error
        # DuckDB's default for large answers is a folder in the user's own.
        spill = str(Path(gettempdir()) / f"gpu-profile-query-{os.getpid()}")
        # A table that does not exist must not be a variable of this module.
        self._connection: duckdb.DuckDBPyConnection = duckdb.connect(
            config={"temp_directory": spill, "python_enable_replacements": False}
        )
        self._error = duckdb.Error
        self._select = (duckdb.StatementType.SELECT, duckdb.StatementType.MULTI)  # PIVOT is of the second
        for name, columns in tables.items():
            types = ", ".join(f"{column} {kind}" for column, kind in BASES[name].items())
            self._connection.register("loaded", dict(columns))
            self._connection.execute(f"CREATE TABLE {name} ({types})")
            self._connection.execute(f"INSERT INTO {name} SELECT {', '.join(BASES[name])} FROM loaded")
            self._connection.unregister("loaded")
        for question in QUESTIONS.values():
            self._connection.execute(f"CREATE VIEW {question.view} AS {question.sql}")

    def check(self, sql: str) -> None:
        """UsageError unless the text is one SELECT, or another statement that only reads."""
        try:
            kinds = [statement.type for statement in self._connection.extract_statements(sql)]
        except self._error as error:
            raise self._wrong(error) from error
        if len(kinds) != 1 or kinds[0] not in self._select:
            raise UsageError("query: one SELECT is needed, and no other statement: run several queries one by one")

    def answer(self, sql: str) -> FleetAnswer:
        """The rows of a query. UsageError with DuckDB's reason if it is not valid."""
        result = self._run(sql)
        rows = [tuple(_plain(value) for value in row) for row in result.fetchall()]
        return FleetAnswer(_distinct([column[0] for column in result.description or ()]), rows)

    def write(self, sql: str, path: Path) -> int:
        """Write the rows of a query to a file, and return their number. A link stays one: its target is written.

        UsageError for an unknown ending or a file that cannot be written.
        """
        form = FILE_FORMS.get(path.suffix)
        if form is None:
            raise UsageError(f"--out {path}: the name ends with none of {', '.join(FILE_FORMS)}")
        target = os.path.realpath(path).replace("'", "''")
        counted = self._run(f"COPY ({sql.rstrip().rstrip(';')}\n) TO '{target}' {form}").fetchone()
        return 0 if counted is None else int(counted[0])

    def _run(self, sql: str) -> duckdb.DuckDBPyConnection:
        try:
            return self._connection.execute(sql)
        except self._error as error:
            raise self._wrong(error) from error

    @staticmethod
    def _wrong(error: Exception) -> UsageError:
        return UsageError(f"query: {str(error).partition(chr(10))[0]}"[:200])


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """The names of columns. Later ones of equal names have a number, because JSON and CSV need different ones."""
    taken: list[str] = []
    for name in names:
        numbers = (f"{name}_{number}" for number in count(1))
        taken.append(name if name not in taken else next(each for each in numbers if each not in (*taken, *names)))
    return tuple(taken)


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat(sep=" ") if isinstance(value, datetime) else value
