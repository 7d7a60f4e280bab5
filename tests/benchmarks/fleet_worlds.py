"""A fleet of a chosen size in both engines: generated rows of services with two versions, their devices and ranks.

Run as a program, `fleet_worlds.py ENGINE ROWS`, it fills one engine and answers each question once. It prints as JSON
the seconds of the wall clock and of processors of each, and the peak memory so far.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from gpu_profile.analysis.fleet import QUESTIONS, tables_of
from gpu_profile.analysis.fleet.clickhouse import views
from gpu_profile.analysis.fleet.engine import FleetEngine
from gpu_profile.catalogue import serving
from gpu_profile.catalogue.allocation import HELD_ENERGY, HELD_TIME
from gpu_profile.catalogue.metrics import BUSY, OBSERVED, REGION_BUSY, REGION_CALLS, REGION_DURATION, REGION_ENERGY

#: Points of a series, 15 s apart: ten hours.
POINTS: Final = 2_400
#: Energy, GPU time, and calls with two regimes, of each of five regions.
SERIES: Final = 20
#: The threads of each engine, and its memory.
THREADS: Final = 2
MEMORY_BYTES: Final = 6 * 10**9


def duck(rows: int) -> tuple[int, Callable[[str], object]]:
    """DuckDB's process and questions. Half of the `rows` are region use, 35 % executions, the rest small tables."""
    tables = tables_of([])
    engine = FleetEngine(tables)
    for setting in (f"SET threads = {THREADS}", f"SET memory_limit = '{MEMORY_BYTES}B'"):
        engine.answer(setting)
    who = "'s' || (i % 20) AS service, 'v' || (i // 20 % 2) AS version, 'run ' || (i // 40 % 50) AS run"
    when = "TIMESTAMP '2026-01-01' + INTERVAL 1 HOUR * (i // 40 % 2 * 24 + i // 4000 % 24)"
    where = "'r' || (i // 2000 % 10) AS region"
    engine.answer(
        f"INSERT INTO gpu_profile_use SELECT {when} AS hour, hour, {who}, {where}, 'GPU-' || (i // 7 % 1000), "
        "['HOST_BOUND', 'MEMORY_BOUND', 'COMPUTE_BOUND'][i % 3 + 1], 100, 5 + i % 7, 2000 + i % 100, NULL, NULL "
        f"FROM range({rows // 2}) AS t(i)"
    )
    engine.answer(
        f"INSERT INTO gpu_profile_executions SELECT {when}, {who}, {where}, i // 3 % 64, "
        f"0.1 + i % 13 / 1000.0, false FROM range({rows * 7 // 20}) AS t(i)"
    )
    few = rows // 20
    engine.answer(
        f"INSERT INTO gpu_profile_durations SELECT {when} AS hour, hour, {who}, {where}, 100, 10 + i % 5 "
        f"FROM range({few}) AS t(i)"
    )
    engine.answer(
        f"INSERT INTO gpu_profile_held SELECT {when}, 'pod ' || (i // 40 % 500), 'GPU-' || (i % 1000), 300, 30, 1e5 "
        f"FROM range({few}) AS t(i)"
    )
    engine.answer(
        f"INSERT INTO gpu_profile_tenant_use SELECT {when}, 'e', 't' || (i % 50), 'm', 'decode', '', 5, 1, 100 "
        f"FROM range({few}) AS t(i)"
    )
    return os.getpid(), lambda name: engine.answer(QUESTIONS[name].sql)


def clickhouse(rows: int) -> tuple[int, Callable[[str], object]]:
    """ClickHouse's process and questions. Half of the `rows` are sums, 40 % spans, the others histograms."""
    from support.clickhouse import CollectorTables

    tables = CollectorTables("otel")
    tables.run(f"SET max_threads = {THREADS}", f"SET max_memory_usage = {MEMORY_BYTES}", "SET max_insert_threads = 1")
    process = f"intDiv(intDiv(number, {POINTS}), {SERIES})"
    series = f"intDiv(number, {POINTS}) % {SERIES}"
    about = (
        f"map('service.name', concat('s', toString({process} % 20)), "
        f"'service.version', concat('v', toString(intDiv({process}, 20) % 2)), "
        f"'service.instance.id', concat('i', toString({process})), 'host.name', concat('h', toString({process} % 99)))"
    )
    began = f"now() - INTERVAL 3 DAY + INTERVAL (intDiv({process}, 20) % 2) DAY"
    second = f"({began}) + INTERVAL (number % {POINTS} + 1) * 15 SECOND"
    region = f"concat('r', toString(intDiv({series}, 4)))"
    device = f"concat('GPU-', toString({process}))"
    names = f"['{REGION_ENERGY.otel}', '{REGION_BUSY.otel}', '{REGION_CALLS.otel}', '{REGION_CALLS.otel}']"
    regime = f"['', '', 'HOST_BOUND', 'MEMORY_BOUND'][{series} % 4 + 1]"
    tables.run(
        "INSERT INTO otel_metrics_sum (ResourceAttributes, MetricName, Attributes, StartTimeUnix, TimeUnix, Value, "
        f"AggregationTemporality) SELECT {about}, {names}[{series} % 4 + 1], "
        f"mapFilter((k, v) -> v != '', map('region', {region}, 'hw.id', {device}, 'regime', {regime})), "
        f"{began}, {second}, (number % {POINTS}) * 10, 2 FROM numbers({rows * 9 // 20})"
    )
    holder = f"map('hw.id', {device}, 'k8s.namespace.name', 'ml', 'k8s.pod.name', concat('p', toString({process})))"
    tables.run(
        "INSERT INTO otel_metrics_sum (ResourceAttributes, MetricName, Attributes, StartTimeUnix, TimeUnix, Value, "
        f"AggregationTemporality) SELECT {about}, ['{HELD_TIME.otel}', '{HELD_ENERGY.otel}', "
        f"'{BUSY.otel}', '{OBSERVED.otel}', '{serving.SERVING_ENERGY.otel}'][{series} % 5 + 1], "
        f"multiIf({series} % 5 < 2, {holder}, {series} % 5 < 4, map('hw.id', {device}), map('engine', 'e', 'tenant', "
        f"concat('t', toString({process})), 'model', 'm', 'phase', 'decode')), {began}, {second}, "
        f"(number % {POINTS}) * 15, 2 FROM numbers({rows // 10})"
    )
    tables.run(
        "INSERT INTO otel_metrics_histogram (ResourceAttributes, MetricName, Attributes, StartTimeUnix, TimeUnix, "
        f"Count, Sum, AggregationTemporality) SELECT {about}, '{REGION_DURATION.otel}', map('region', {region}), "
        f"{began}, {second}, number % {POINTS}, number % {POINTS} / 10, 2 FROM numbers({rows // 20})"
    )
    tables.run(
        "INSERT INTO otel_traces (Timestamp, ResourceAttributes, SpanAttributes, Duration, StatusCode) "
        f"SELECT {second}, mapUpdate({about}, map('k8s.job.name', concat('j', toString(intDiv({process}, 8))))), "
        f"map('gpu_profile.region', {region}, 'gpu_profile.rank', toString({process} % 8), "
        f"'gpu_profile.regime', 'HOST_BOUND', 'gpu_profile.energy.joules', '12.5'), "
        f"100000000 + number % 13 * 1000000, 'Unset' FROM numbers({rows * 2 // 5})"
    )
    errors = tables.install(views("otel", days=7))
    assert errors == [], errors
    return tables.process.pid, lambda name: tables.rows(f"SELECT * FROM {QUESTIONS[name].view}")


def measured(engine: str, rows: int) -> Iterator[tuple[str, Any]]:
    """Of the filling and of each question: seconds, processor seconds, and the peak memory so far in bytes."""
    started = time.perf_counter()
    pid, ask = {"DuckDB": duck, "ClickHouse": clickhouse}[engine](rows)
    cpu, memory = used(pid)
    yield "fill", [time.perf_counter() - started, cpu, memory]
    for name in QUESTIONS:
        started, before = time.perf_counter(), cpu
        ask(name)
        cpu, memory = used(pid)
        yield name, [time.perf_counter() - started, cpu - before, memory]


def used(pid: int) -> tuple[float, int]:
    """Processor seconds and the peak memory in bytes of the engine's process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(peak) * 1024


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dict(measured(sys.argv[1], int(float(sys.argv[2]))))))
