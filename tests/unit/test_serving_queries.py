"""The query of the documentation that adds up the parts of requests of workers on two nodes."""

import re
from pathlib import Path

import duckdb

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def row(trace: str, worker: str, **values: object) -> tuple[str, dict[str, str]]:
    attributes = {f"gpu_profile.request.{name}": str(value) for name, value in values.items()}
    return trace, attributes | ({"gpu_profile.request.worker": worker} if worker else {})


def test_the_query_adds_up_the_parts_of_requests_that_have_both() -> None:
    (query,) = re.findall(
        r"<!-- run by tests/unit/test_serving_queries.py -->\n\n```sql\n(.*?)```", PAGE.read_text(), re.DOTALL
    )
    spans = [
        row("both", "prefill", energy=3.5), row("both", "decode", energy=4.0), row("both", ""),
        row("half", "decode", energy=4.0),
        row("refused", "prefill", reason="iterations_lost"), row("refused", "decode", energy=4.0),
        row("whole", "", energy=9.0),
    ]  # fmt: skip
    database = duckdb.connect()
    database.execute("CREATE TABLE otel_traces (TraceId VARCHAR, SpanAttributes MAP(VARCHAR, VARCHAR))")
    for trace, attributes in spans:
        database.execute(
            "INSERT INTO otel_traces VALUES (?, MAP(?, ?))", [trace, [*attributes], [*attributes.values()]]
        )
    assert database.execute(query).fetchall() == [("both", 7.5)]
