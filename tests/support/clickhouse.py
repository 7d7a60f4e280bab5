"""The tables of the Collector's `clickhouse` exporter in an embedded ClickHouse, and their rows from OTLP.

Columns and types are those of the exporter's own templates (`internal/sqltemplates`, 2026), without codecs and indices.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.push import attributes

_MAP: Final = "Map(LowCardinality(String), String)"
_POINT: Final = {
    "ResourceAttributes": _MAP,
    "ResourceSchemaUrl": "String",
    "ScopeName": "String",
    "ScopeVersion": "String",
    "ScopeAttributes": _MAP,
    "ScopeDroppedAttrCount": "UInt32",
    "ScopeSchemaUrl": "String",
    "ServiceName": "LowCardinality(String)",
    "MetricName": "String",
    "MetricDescription": "String",
    "MetricUnit": "String",
    "Attributes": _MAP,
    "StartTimeUnix": "DateTime64(9)",
    "TimeUnix": "DateTime64(9)",
}
#: Columns by table. Exemplars, events and links are left out: nothing reads them.
TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "otel_metrics_gauge": {**_POINT, "Value": "Float64", "Flags": "UInt32"},
    "otel_metrics_sum": {
        **_POINT,
        "Value": "Float64",
        "Flags": "UInt32",
        "AggregationTemporality": "Int32",
        "IsMonotonic": "Bool",
    },
    "otel_metrics_histogram": {
        **_POINT,
        "Count": "UInt64",
        "Sum": "Float64",
        "BucketCounts": "Array(UInt64)",
        "ExplicitBounds": "Array(Float64)",
        "Flags": "UInt32",
        "Min": "Float64",
        "Max": "Float64",
        "AggregationTemporality": "Int32",
    },
    "otel_traces": {
        "Timestamp": "DateTime64(9)",
        "TraceId": "String",
        "SpanId": "String",
        "ParentSpanId": "String",
        "TraceState": "String",
        "SpanName": "LowCardinality(String)",
        "SpanKind": "LowCardinality(String)",
        "ServiceName": "LowCardinality(String)",
        "ResourceAttributes": _MAP,
        "ScopeName": "String",
        "ScopeVersion": "String",
        "SpanAttributes": _MAP,
        "Duration": "UInt64",
        "StatusCode": "LowCardinality(String)",
        "StatusMessage": "String",
    },
}
#: Since 2026 the metrics' times are in whole seconds.
SECONDS: Final = {"StartTimeUnix": "DateTime", "TimeUnix": "DateTime", "MetricName": "LowCardinality(String)"}


class CollectorTables:
    """A database with the Collector's tables. `changed` replaces types of columns by table; an empty one drops it."""

    def __init__(self, name: str, changed: Mapping[str, Mapping[str, str]] | None = None, left_out: str = "") -> None:
        self.name = name
        # Its two dozen threads would be in each later test of this process that forks.
        command = [sys.executable, str(Path(__file__).with_name("clickhouse_worker.py"))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.run("SET session_timezone = 'UTC'", f"CREATE DATABASE {name}", f"USE {name}")
        for table, columns in TABLES.items():
            if table == left_out:
                continue
            types = {**columns, **(changed or {}).get(table, {})}
            listed = ", ".join(f"`{column}` {kind}" for column, kind in types.items() if kind)
            time = "Timestamp" if table == "otel_traces" else "TimeUnix"
            self.run(f"CREATE TABLE {table} ({listed}) ENGINE = MergeTree PARTITION BY toDate({time}) ORDER BY {time}")

    def run(self, *statements: str) -> None:
        for statement in statements:
            self._ask(statement, "Null")

    def _ask(self, statement: str, form: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([statement, form]) + "\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return str(reply["text"])

    def install(self, script: str) -> list[str]:
        """Run a script as `clickhouse-client --ignore-error` does; returns the errors."""
        errors = []
        for statement in re.split(r";\n", script):
            if re.sub(r"(?m)^--.*$", "", statement).strip(" \n;"):
                try:
                    self.run(statement)
                except RuntimeError as error:
                    errors.append(str(error))
        return errors

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._ask(sql, "JSONEachRow").splitlines()]

    def insert(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        lines = "\n".join(json.dumps(row) for row in rows)
        if lines:
            self.run(f"INSERT INTO {table} FORMAT JSONEachRow\n{lines}")

    def empty(self) -> None:
        self.run(*(f"TRUNCATE TABLE {table}" for table in TABLES))

    def close(self) -> None:
        self.process.communicate()

    # ------------------------------------------------------------------ OTLP

    def take_metrics(self, body: bytes) -> None:
        """Insert a request as the exporter does: attributes as text, numbers as doubles."""
        rows: dict[str, list[Mapping[str, Any]]] = {table: [] for table in TABLES}
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            about = _texts(resource.resource.attributes)
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    data = getattr(metric, kind)
                    for point in data.data_points:
                        rows[f"otel_metrics_{kind}"].append(
                            {
                                "ResourceAttributes": about,
                                "ServiceName": about.get("service.name", ""),
                                "MetricName": metric.name,
                                "MetricUnit": metric.unit,
                                "Attributes": _texts(point.attributes),
                                "StartTimeUnix": _time(point.start_time_unix_nano),
                                "TimeUnix": _time(point.time_unix_nano),
                                **dict(_values(kind, data, point)),
                            }
                        )
        for table, mine in rows.items():
            self.insert(table, mine)

    def take_traces(self, body: bytes) -> None:
        rows = [
            _span_row(span, _texts(resource.resource.attributes), scope.scope.name)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        self.insert("otel_traces", rows)


def _span_row(span: Span, about: Mapping[str, str], scope: str) -> dict[str, Any]:
    return {
        "Timestamp": _time(span.start_time_unix_nano),
        "TraceId": span.trace_id.hex(),
        "SpanId": span.span_id.hex(),
        "ParentSpanId": span.parent_span_id.hex(),
        "SpanName": span.name,
        "SpanKind": ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")[span.kind],
        "ServiceName": about.get("service.name", ""),
        "ResourceAttributes": about,
        "ScopeName": scope,
        "SpanAttributes": _texts(span.attributes),
        "Duration": span.end_time_unix_nano - span.start_time_unix_nano,
        "StatusCode": ("Unset", "Ok", "Error")[span.status.code],
        "StatusMessage": span.status.message,
    }


def _texts(pairs: Any) -> dict[str, str]:
    """Attributes as the exporter writes them: lists as JSON, numbers as in Go."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in attributes(pairs).items()}


def _time(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns // 10**9, UTC):%Y-%m-%d %H:%M:%S}.{ns % 10**9:09d}"


def _values(kind: str, data: Any, point: Any) -> Iterator[tuple[str, Any]]:
    if kind == "histogram":
        yield from (("Count", point.count), ("Sum", point.sum), ("BucketCounts", list(point.bucket_counts)))
    else:
        yield "Value", float(point.as_double if point.WhichOneof("value") == "as_double" else point.as_int)
    if kind != "gauge":
        yield "AggregationTemporality", data.aggregation_temporality
