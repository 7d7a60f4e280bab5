"""The questions as SQL views for ClickHouse, over the tables of the OpenTelemetry Collector's `clickhouse` exporter.

A cumulative sum grows from the start of its stream. A view takes the last value of a stream in each bucket of time, and
subtracts the last one before. So it reads each point once, and restarts and lost points cost nothing. A stream that
began before the window of the views starts at its first value within it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpu_profile.analysis.fleet.questions import BASES, QUESTIONS, student_rows
from gpu_profile.catalogue import attributes as names
from gpu_profile.catalogue import serving
from gpu_profile.catalogue.allocation import HELD_ENERGY, HELD_TIME, HOLDER
from gpu_profile.catalogue.metric import Metric
from gpu_profile.catalogue.metrics import (
    BUSY,
    OBSERVED,
    REGION_BUSY,
    REGION_BUSY_UNCERTAIN,
    REGION_CALLS,
    REGION_DURATION,
    REGION_ENERGY,
    REGION_ENERGY_UNCERTAIN,
)
from gpu_profile.errors import UsageError

_HOUR: Final = 3600
#: The buckets of held devices. A holder may have a device for a part of an hour only.
_HELD: Final = 300
_SUM, _HISTOGRAM, _TRACES = "otel_metrics_sum", "otel_metrics_histogram", "otel_traces"
_POINT: Final = {
    "ResourceAttributes": "Map(",
    "Attributes": "Map(",
    "MetricName": "",
    "StartTimeUnix": "DateTime",
    "TimeUnix": "DateTime",
    "AggregationTemporality": "Int",
}
#: The columns that each base view reads, with the beginning of their types.
_COLUMNS: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "gpu_profile_use": {_SUM: {**_POINT, "Value": "Float"}},
    "gpu_profile_durations": {_HISTOGRAM: {**_POINT, "Count": "UInt", "Sum": "Float"}},
    "gpu_profile_executions": {
        _TRACES: {
            "Timestamp": "DateTime",
            "ResourceAttributes": "Map(",
            "SpanAttributes": "Map(",
            "Duration": "",
            "StatusCode": "",
        }
    },
    "gpu_profile_tenant_use": {_SUM: {**_POINT, "Value": "Float"}},
    "gpu_profile_held": {_SUM: {**_POINT, "Value": "Float"}},
}
#: Base views that a question can do without, with the part of its answer that is missing then.
_OPTIONAL: Final = {"gpu_profile_durations": "durations of regressions"}
_TYPES: Final = {"TIMESTAMP": "DateTime", "VARCHAR": "String", "DOUBLE": "Float64"}
#: One process of a service. Without an id of the instance, it is its host and its process id.
_INSTANCE: Final = (
    "if(resource['service.instance.id'] != '', resource['service.instance.id'], "
    "if(resource['process.pid'] != '', concat(resource['host.name'], '/', resource['process.pid']), ''))"
)
#: The processes of one job depend on one another: they are one run.
_JOB: Final = (
    "resource['slurm.job.id'] != '', concat('slurm ', resource['slurm.job.id']), "
    "resource['k8s.job.name'] != '', concat('job ', resource['k8s.job.name'])"
)
_RUN: Final = f"multiIf({_JOB}, {_INSTANCE})"
#: Ranks without a job's name are one job of their service and version.
_RANKED_RUN: Final = f"multiIf({_JOB}, rank IS NULL, {_INSTANCE}, '')"
#: A sidecar publishes the regions of other services. Its own resource has the exporter's name and version.
_SERVICE: Final = (
    "if(attributes['service.name'] != '', attributes['service.name'], resource['service.name']) AS service,\n"
    "        if(attributes['service.name'] != '', '', resource['service.version']) AS version"
)


def views(database: str = "default", days: int = 7) -> str:
    """All views as one script for `clickhouse-client`, over the last `days` days. UsageError for a
    database's name with other characters than letters, digits and underscores."""
    if not re.fullmatch(r"\w+", database, re.ASCII):
        raise UsageError(f"--database {database!r}: a name of letters, digits and underscores is needed")
    since = f"(now() - INTERVAL {days} DAY)"
    bases = {
        "gpu_profile_use": _use(since),
        "gpu_profile_durations": _durations(since),
        "gpu_profile_executions": _executions(since),
        "gpu_profile_tenant_use": _tenant_use(since),
        "gpu_profile_held": _held(since),
        "gpu_profile_student": _student(),
    }
    # Without its table, a base view of `_OPTIONAL` cannot be made. Then the empty one before it remains.
    empty = [(base, _nothing(base)) for base in _OPTIONAL]
    scripts = [("gpu_profile_problems", _problems()), *empty, *bases.items()]
    scripts += [(question.view, question.sql) for question in QUESTIONS.values()]
    head = (
        f"-- The questions of gpu-profile over the tables of the OpenTelemetry Collector in the database {database}.\n"
        "-- Install: gpu-profile query --clickhouse | clickhouse-client --ignore-error\n"
        "-- Then: SELECT * FROM gpu_profile_problems; SELECT * FROM gpu_profile_services\n"
        f"USE {database};\n\n"
    )
    return head + "\n\n".join(f"CREATE OR REPLACE VIEW {name} AS\n{text.strip()};" for name, text in scripts)


def _growth(table: str, metrics: Sequence[Metric], since: str, seconds: int, values: Mapping[str, str]) -> str:
    """The growth of cumulative sums in buckets of some seconds: metric, resource, attributes, hour, and the `values`,
    columns of `table` with their new names."""
    listed = ", ".join(f"'{metric.otel}'" for metric in metrics)

    def joined(template: str) -> str:
        return ",\n            ".join(template.format(column=column, name=name) for column, name in values.items())

    instance = _INSTANCE.replace("resource[", "p.resource[")
    # Deltas are grouped by their time too, so that copies of a point are one.
    # Whole maps are hashed first, because that is much faster than reading their keys for each point.
    points = joined("toFloat64(max({column})) AS {name}_last, toFloat64(min({column})) AS {name}_first")
    # Collectors may add attributes to a resource later: these are not part of a series.
    merged = joined(
        "max(p.{name}_last) AS {name}_last, min(p.{name}_first) AS {name}_first, sum(p.{name}_last) AS {name}_added"
    )
    before = joined(
        "max({name}_last) OVER (PARTITION BY series, started ORDER BY hour ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING) "
        "AS {name}_before"
    )
    # A sum that decreased without a new start was reset by somebody: its growth is unknown, and not negative.
    grown = joined(
        "if(delta, {name}_added, greatest(0, {name}_last - multiIf(place > 1, {name}_before, started >= "
        + since
        + ", 0, {name}_first))) AS {name}"
    )
    return f"""SELECT metric, resource, attributes, hour, first_seen,
            {grown}
FROM (
    SELECT *, row_number() OVER (PARTITION BY series, started ORDER BY hour) AS place,
            {before}
    FROM (
        SELECT metric, started, hour, delta, any(p.resource) AS resource, any(p.attributes) AS attributes,
            cityHash64(metric, p.resource['service.name'], {instance}, p.attributes) AS series,
            min(p.first_seen) AS first_seen,
            {merged}
        FROM (
            SELECT MetricName AS metric, StartTimeUnix AS started,
            toStartOfInterval(toDateTime(TimeUnix), INTERVAL {seconds} SECOND) AS hour,
            AggregationTemporality = 1 AS delta, toDateTime(min(TimeUnix)) AS first_seen,
            any(ResourceAttributes) AS resource, any(Attributes) AS attributes,
            {points}
            FROM {table}
            WHERE MetricName IN ({listed}) AND TimeUnix >= {since}
            GROUP BY metric, started, hour, delta, if(delta, toFloat64(TimeUnix), 0),
                cityHash64(ResourceAttributes, Attributes)
        ) AS p
        GROUP BY metric, started, hour, delta, series
    )
)"""


def _use(since: str) -> str:
    metrics = (REGION_CALLS, REGION_BUSY, REGION_BUSY_UNCERTAIN, REGION_ENERGY, REGION_ENERGY_UNCERTAIN)
    parts = {
        "busy": REGION_BUSY,
        "busy_uncertain": REGION_BUSY_UNCERTAIN,
        "joules": REGION_ENERGY,
        "joules_uncertain": REGION_ENERGY_UNCERTAIN,
    }
    sums = ",\n        ".join(f"sumOrNullIf(growth, metric = '{row.otel}') AS {name}" for name, row in parts.items())
    whole = ",\n        ".join(f"sum({name}) OVER use AS {name}_whole" for name in parts)
    return f"""
-- Calls have a regime, GPU time and energy have none: each regime has its share of the hour's calls.
SELECT hour, first_seen, service, version, run, region, device,
    if(regime = '', 'UNKNOWN', regime) AS regime,
    calls AS executions,
    busy_whole * share AS gpu_s,
    joules_whole * share AS energy_j,
    busy_uncertain_whole * share AS uncertain_gpu_s,
    joules_uncertain_whole * share AS uncertain_energy_j
FROM (
    SELECT *, sum(calls) OVER use AS all_calls, {whole},
        multiIf(all_calls > 0, calls / all_calls, regime = '', 1, 0) AS share
    FROM (
        SELECT hour, min(g.first_seen) AS first_seen, {_SERVICE}, {_RUN} AS run,
            attributes['region'] AS region, attributes['hw.id'] AS device, attributes['regime'] AS regime,
            sumIf(growth, metric = '{REGION_CALLS.otel}') AS calls,
            {sums}
        FROM (
{_growth(_SUM, metrics, since, _HOUR, {"Value": "growth"})}
        ) AS g
        GROUP BY hour, service, version, run, region, device, regime
    )
    WINDOW use AS (PARTITION BY hour, service, version, run, region, device)
)
WHERE share > 0
"""


def _durations(since: str) -> str:
    return f"""
SELECT hour, first_seen, {_SERVICE}, {_RUN} AS run, attributes['region'] AS region, executions, total_s
FROM (
{_growth(_HISTOGRAM, (REGION_DURATION,), since, _HOUR, {"Count": "executions", "Sum": "total_s"})}
)
"""


def _executions(since: str) -> str:
    run = _RANKED_RUN.replace("resource[", "ResourceAttributes[")
    return f"""
SELECT toDateTime(Timestamp) AS started,
    ResourceAttributes['service.name'] AS service,
    ResourceAttributes['service.version'] AS version,
    {run} AS run,
    SpanAttributes['{names.REGION.name}'] AS region,
    toInt32OrNull(SpanAttributes['{names.RANK.name}']) AS rank,
    Duration / 1e9 AS duration_s,
    StatusCode IN ('Error', 'STATUS_CODE_ERROR') AS failed
FROM {_TRACES}
WHERE Timestamp >= {since} AND SpanAttributes['{names.REGION.name}'] != ''
"""


def _tenant_use(since: str) -> str:
    tokens, energy, time = serving.SERVING_TOKENS, serving.SERVING_ENERGY, serving.SERVING_DEVICE_TIME
    unallocated = serving.SERVING_UNALLOCATED
    return f"""
SELECT hour, attributes['engine'] AS engine, attributes['tenant'] AS tenant, attributes['model'] AS model,
    attributes['phase'] AS phase, attributes['reason'] AS unallocated,
    sumOrNullIf(growth, metric IN ('{energy.otel}', '{unallocated.otel}')) AS energy_j,
    sumOrNullIf(growth, metric = '{time.otel}') AS gpu_s,
    sumOrNullIf(growth, metric = '{tokens.otel}') AS tokens
FROM (
{_growth(_SUM, (energy, time, tokens, unallocated), since, _HOUR, {"Value": "growth"})}
)
GROUP BY hour, engine, tenant, model, phase, unallocated
"""


def _held(since: str) -> str:
    holder = ", ".join(f"attributes['{name}']" for name in HOLDER if name != "container.runtime.name")
    return f"""
-- The busy time is the device's, also where several holders share it.
SELECT hour, holder, device, held_s,
    if(busy_s IS NOT NULL AND observed_s > 0, held_s * greatest(0, 1 - busy_s / observed_s), NULL) AS idle_s, energy_j
FROM (
    SELECT hour, device, holder, held_s, energy_j,
        sum(busy) OVER device_hour AS busy_s, sum(observed) OVER device_hour AS observed_s
    FROM (
        -- Several exporters of one device report the same.
        SELECT hour, device, holder,
            max(held) AS held_s, max(joules) AS energy_j, max(busy) AS busy, max(observed) AS observed
        FROM (
            SELECT hour, attributes['hw.id'] AS device, {_INSTANCE} AS exporter,
                arrayStringConcat(arrayFilter(x -> x != '', [{holder}]), '/') AS holder,
                sumIf(growth, metric = '{HELD_TIME.otel}') AS held,
                sumOrNullIf(growth, metric = '{HELD_ENERGY.otel}') AS joules,
                sumOrNullIf(growth, metric = '{BUSY.otel}') AS busy,
                sumOrNullIf(growth, metric = '{OBSERVED.otel}') AS observed
            FROM (
{_growth(_SUM, (HELD_TIME, HELD_ENERGY, BUSY, OBSERVED), since, _HELD, {"Value": "growth"})}
            )
            GROUP BY hour, device, holder, exporter
        )
        GROUP BY hour, device, holder
    )
    WINDOW device_hour AS (PARTITION BY hour, device)
)
WHERE holder != ''
"""


def _nothing(base: str) -> str:
    """A view with the columns of a base table, and no rows."""
    columns = ", ".join(f"{name} {_TYPES[kind]}" for name, kind in BASES[base].items())
    return f"SELECT * FROM null('{columns}')"


def _student() -> str:
    rows = ",\n    ".join(f"({degrees}, {comparisons}, {value:.6g})" for degrees, comparisons, value in student_rows())
    return f"SELECT * FROM values('degrees Int32, comparisons Int32, quantile Float64',\n    {rows})"


def _needed() -> Iterator[tuple[str, str, str, str]]:
    """Table, column, beginning of the type, and the questions that need it."""
    for table in (_SUM, _HISTOGRAM, _TRACES):
        columns = {name: kind for base in _COLUMNS.values() for name, kind in base.get(table, {}).items()}
        for column, kind in columns.items():
            bases = {base for base, tables in _COLUMNS.items() if column in tables.get(table, {})}
            needed = bases - {*_OPTIONAL}
            parts = [_OPTIONAL[base] for base in bases & {*_OPTIONAL}]
            unanswered = [question.name for question in QUESTIONS.values() if needed & {*question.bases}]
            yield table, column, kind, ", ".join((*unanswered, *parts))


def _problems() -> str:
    rows = ",\n        ".join(str(row) for row in _needed())
    return f"""
-- One line for each table and column that a question needs and the database does not have.
SELECT multiIf(
        t.columns = 0, concat(n.table, ': no such table'),
        c.type = '', concat(n.table, ': no column ', n.name),
        concat(n.table, ': column ', n.name, ' is ', c.type, ', not ', trim(TRAILING '(' FROM n.type))
    ) AS problem,
    arrayStringConcat(arraySort(groupUniqArrayArray(splitByString(', ', n.questions))), ', ') AS unanswered
FROM values('table String, name String, type String, questions String',
        {rows}) AS n
LEFT JOIN (SELECT table, count() AS columns FROM system.columns WHERE database = currentDatabase() GROUP BY table) AS t
    ON t.table = n.table
LEFT JOIN (SELECT table, name, type FROM system.columns WHERE database = currentDatabase()) AS c
    ON c.table = n.table AND c.name = n.name
WHERE c.type = '' OR NOT startsWith(replaceOne(c.type, 'LowCardinality(', ''), n.type)
GROUP BY problem
ORDER BY problem
"""
