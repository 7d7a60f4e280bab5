"""The bytes of a span of a region: on the wire, and as a row in ClickHouse.

The rows are those of the Collector's exporter for ClickHouse: its columns, codecs, order and indices of `otel_traces`.
chDB, which is ClickHouse in a process, stores them: `pip install chdb`. Numbers among the attributes vary by a
hundredth, so that no row is like the one before.
"""

import gzip
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.nodes import busy, node_of

from benchmarks.fleet_needs import ROW, SPAN
from benchmarks.rows import Row
from gpu_profile import GpuSpanProcessor, configure, region, stop
from gpu_profile.driver import simulated

_BATCH: Final = 512
_ROWS: Final = 200_000
#: After this time a region's spans have all attributes.
_SETTLED_S: Final = 15.0
_TEXT: Final = "String CODEC(ZSTD(1))"
_NAME: Final = "LowCardinality(String) CODEC(ZSTD(1))"
_PAIRS: Final = "Map(LowCardinality(String), String) CODEC(ZSTD(1))"
_COLUMNS: Final = {
    "Timestamp": "DateTime64(9) CODEC(Delta, ZSTD(1))",
    **dict.fromkeys(("TraceId", "SpanId", "ParentSpanId", "TraceState"), _TEXT),
    **dict.fromkeys(("SpanName", "SpanKind", "ServiceName"), _NAME),
    "ResourceAttributes": _PAIRS,
    **dict.fromkeys(("ScopeName", "ScopeVersion"), _TEXT),
    "SpanAttributes": _PAIRS,
    "Duration": "UInt64 CODEC(ZSTD(1))",
    "StatusCode": _NAME,
    "StatusMessage": _TEXT,
}
_INDICES: Final = (
    "INDEX trace TraceId TYPE bloom_filter(0.001) GRANULARITY 1",
    *(
        f"INDEX {part}_{column} map{part}({column}) TYPE bloom_filter(0.01) GRANULARITY 1"
        for column in ("ResourceAttributes", "SpanAttributes")
        for part in ("Keys", "Values")
    ),
    "INDEX length Duration TYPE minmax GRANULARITY 1",
)
_TABLE: Final = (
    f"CREATE TABLE spans ({', '.join([*(f'{name} {kind}' for name, kind in _COLUMNS.items()), *_INDICES])}) "
    "ENGINE = MergeTree PARTITION BY toDate(Timestamp) ORDER BY (ServiceName, SpanName, Timestamp)"
)
_STORED: Final = """
import sys
from chdb.session import Session
session = Session(sys.argv[1])
session.query("CREATE DATABASE d")
session.query("USE d")
session.query(sys.argv[2])
session.query(f"INSERT INTO spans SELECT * FROM file('{sys.argv[3]}', JSONEachRow)")
session.query("OPTIMIZE TABLE spans FINAL")
print(session.query("SELECT sum(bytes_on_disk), sum(rows) FROM system.parts WHERE active AND table = 'spans'", "TSV"))
"""


def rows() -> Iterator[Row]:
    """Both rows; a minute at most."""
    spans = _recorded()
    bare = [_bare(span) for span in spans]
    sizes = []
    for some in (spans, bare):
        data = encode_spans(some).SerializeToString()
        sizes += [len(data) / len(some), len(gzip.compress(data, 6)) / len(some)]
    attributes = sum(len(span.attributes or ()) for span in spans) / len(spans)
    yield Row(
        SPAN,
        f"{sizes[0]:.0f} B with {attributes:.1f} attributes, by gzip {sizes[1]:.0f} B, in batches of {len(spans)}",
        f"without attributes {sizes[2]:.0f} B, by gzip {sizes[3]:.0f} B",
        f"{sizes[1] / sizes[3]:.2f}x",
        cost=sizes[1],
    )
    if importlib.util.find_spec("chdb") is None:
        yield Row(ROW, "not measured: pip install chdb")
        return
    with tempfile.TemporaryDirectory() as directory:
        each, without = (_stored(Path(directory) / str(i), some) for i, some in enumerate((spans, bare)))
    yield Row(
        ROW,
        f"{each:.0f} B on disk with {attributes:.1f} attributes",
        f"without attributes {without:.0f} B",
        f"{each / without:.2f}x",
        cost=each,
    )


def _recorded() -> Sequence[ReadableSpan]:
    """The last batch of a region's spans, on a simulated GPU."""
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(GpuSpanProcessor(SimpleSpanProcessor(kept)))
    trace.set_tracer_provider(provider)
    with tempfile.TemporaryDirectory() as directory:
        node = simulated.create(Path(directory) / "node", node_of("H200 SXM") + busy(0.5))
        configure(backend=f"simulated:{node}", spans=False)
        ends_s = time.monotonic() + _SETTLED_S
        while time.monotonic() < ends_s:
            with region("step"):
                time.sleep(0.01)
        provider.force_flush()
        stop()
    return kept.get_finished_spans()[-_BATCH:]


def _bare(span: ReadableSpan) -> ReadableSpan:
    """The same span without attributes."""
    return ReadableSpan(
        span.name, span.context, span.parent, span.resource, start_time=span.start_time, end_time=span.end_time
    )


def _stored(folder: Path, spans: Sequence[ReadableSpan]) -> float:
    """The bytes of a row on disk, after a merge of all of them."""
    folder.mkdir()
    chance = np.random.default_rng(1)
    with (folder / "rows.json").open("w") as file:
        for number in range(_ROWS):
            span = spans[number % len(spans)]
            started = span.start_time or 0
            attributes = {
                key: str(value * (1 + chance.normal() / 100)) if isinstance(value, float) else str(value)
                for key, value in (span.attributes or {}).items()
            }
            at_ns = started + (number // len(spans)) * 10**9
            row = {
                "Timestamp": f"{at_ns // 10**9}.{at_ns % 10**9:09d}",
                "TraceId": chance.bytes(16).hex(),
                "SpanId": chance.bytes(8).hex(),
                "SpanName": f"{span.name}{number % 10}",
                "SpanKind": "Internal",
                "ServiceName": "service",
                "ResourceAttributes": {key: str(value) for key, value in span.resource.attributes.items()},
                "ScopeName": "gpu_profile",
                "SpanAttributes": attributes,
                "Duration": max(0, round((span.end_time or 0) - started + chance.normal() * 1e5)),
                "StatusCode": "Unset",
            }
            file.write(f"{json.dumps(row)}\n")
    command = [sys.executable, "-c", _STORED, str(folder / "data"), _TABLE, str(folder / "rows.json")]
    size, count = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(size) / int(count)
