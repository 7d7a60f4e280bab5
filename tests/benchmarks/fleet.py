"""Questions in SQL on ten million rows in each engine, and how often `regressions` is right."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.rows import Row
from gpu_profile.analysis.fleet import QUESTIONS, tables_of
from gpu_profile.analysis.fleet.engine import FleetEngine

ROWS: Final = 10_000_000
#: Most memory of an engine's process.
MOST_BYTES: Final = 6e9
#: Fleets with and without a regression, each with this many services, and runs of each version.
FLEETS: Final = 100
SERVICES: Final = 10
RUNS: Final = 5


def rows() -> Iterator[Row]:
    """All of it."""
    yield from speed("DuckDB", ROWS)
    yield from speed("ClickHouse", ROWS)
    yield from truth(FLEETS)


def sample() -> Iterator[Row]:
    """Fewer rows, in DuckDB alone: filling ClickHouse takes longest."""
    yield from speed("DuckDB", ROWS // 10)
    yield from truth(FLEETS // 4)


def speed(engine: str, count: int) -> Iterator[Row]:
    """A row for each question: seconds, those of the processors, and the process's memory until then."""
    command = [sys.executable, str(Path(__file__).with_name("fleet_worlds.py")), engine, str(count)]
    spent = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for name in QUESTIONS:
        seconds, cpu, memory = spent[name]
        yield Row(
            f"{name} on {count:,} rows in {engine}, 2 threads",
            f"{seconds:.2f} s, {cpu:.2f} s of processors, {memory / 1e9:.2f} GB",
            reach=f"<={MOST_BYTES / 1e9:g} GB",
            ok=memory <= MOST_BYTES,
            cost=cpu,
        )


def truth(fleets: int) -> Iterator[Row]:
    """How often an answer of `regressions` has any change where there is none, and finds one that there is."""
    tables = tables_of([])
    engine = FleetEngine(tables)
    drawn = np.random.default_rng(7)
    wrong = sum(bool(shown(engine, drawn, planted=0.0)) for _ in range(fleets))
    yield Row(
        f"regressions, {SERVICES} services without a change, {RUNS} runs of each version that spread by 1 %",
        f"answers with any change: {wrong} of {fleets}",
        reach="<=5 % + chance",
        ok=wrong <= 0.05 * fleets + 2 * (0.05 * 0.95 * fleets) ** 0.5,
        cost=wrong / fleets,
    )
    answers = [shown(engine, drawn, planted=0.05) for _ in range(fleets)]
    hits = sum("s0" in services for services in answers)
    yield Row(
        f"regressions, 5 % more energy in one of {SERVICES} services, {RUNS} runs of each version that spread by 1 %",
        f"in {hits / fleets:.1%} of {fleets} answers",
        reach=">=90 %",
        ok=hits >= 0.9 * fleets,
        cost=1 - hits / fleets,
    )


def shown(engine: FleetEngine, drawn: np.random.Generator, *, planted: float) -> set[str]:
    """The services with a change of energy in one answer. The executions of a run spread by 20 % among themselves, and
    the runs by 1 %, as far as executions do not explain it."""
    values = []
    for service in range(SERVICES):
        for version in range(2):
            for run in range(RUNS):
                calls = int(drawn.integers(200, 2000))
                level = 10 * (1 + planted * (service == 0) * version) * (1 + 0.01 * drawn.standard_normal())
                joules = level * drawn.gamma(25, 1 / 25, calls).sum()
                values.append(f"({version}, 's{service}', 'v{version}', 'run {run}', {calls}, {joules})")
    engine.answer("DELETE FROM gpu_profile_use")
    engine.answer(
        "INSERT INTO gpu_profile_use BY NAME SELECT TIMESTAMP '2026-01-01' + INTERVAL 1 DAY * t AS first_seen, "
        "service, version, run, 'r' AS region, n AS executions, j AS energy_j "
        f"FROM (VALUES {', '.join(values)}) AS v(t, service, version, run, n, j)"
    )
    answer = engine.answer(QUESTIONS["regressions"].sql)
    place = answer.columns.index("finding")
    return {row[0] for row in answer.rows if row[place] in ("higher", "lower")}
