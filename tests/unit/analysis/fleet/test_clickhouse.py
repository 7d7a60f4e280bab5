"""The views over the Collector's tables: OTLP of our own processes, and the true answers."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from support.clickhouse import SECONDS, CollectorTables
from support.regions import Stage

from gpu_profile import region
from gpu_profile.analysis import analyse
from gpu_profile.analysis.fleet import QUESTIONS, RecordedRun, tables_of
from gpu_profile.analysis.fleet.clickhouse import views
from gpu_profile.analysis.fleet.engine import FleetEngine
from gpu_profile.analysis.fleet.questions import BASES
from gpu_profile.catalogue import serving
from gpu_profile.catalogue.allocation import HELD_ENERGY, HELD_TIME
from gpu_profile.catalogue.metric import Metric
from gpu_profile.catalogue.metrics import BUSY, OBSERVED, REGION_BUSY, REGION_CALLS, REGION_DURATION, REGION_ENERGY
from gpu_profile.errors import UsageError
from gpu_profile.recording import read_recording
from gpu_profile.regions.session import process
from gpu_profile.regions.telemetry import instruments
from gpu_profile.testing import START_NS
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.push.batch import Envelope
from gpu_profile_exporter.push.metrics import MetricEncoder
from gpu_profile_exporter.readings.readings import MetricReading

#: The tests' clock begins on the first of January 2026, and the views look back from now.
CALLS = 20
SCRIPT = views("otel", days=3650)


@pytest.fixture(scope="module")
def installed() -> Iterator[CollectorTables]:
    """The views take two seconds: all tests of this module use one database, and empty its tables."""
    tables = CollectorTables("otel")
    assert tables.install(SCRIPT) == []
    yield tables
    tables.close()


@pytest.fixture
def otel(installed: CollectorTables) -> CollectorTables:
    installed.empty()
    return installed


def answer(tables: CollectorTables, name: str) -> list[dict[str, Any]]:
    return tables.rows(f"SELECT * FROM gpu_profile_{name}")


def sum_point(
    metric: Metric,
    labels: Mapping[str, str],
    second: float,
    value: float,
    *,
    started: float = 0,
    resource: Mapping[str, str] | None = None,
    temporality: int = 2,
) -> dict[str, Any]:
    """A row of otel_metrics_sum, with times in s of the tests' clock."""
    about = {"service.name": "s", "service.version": "1", "service.instance.id": "i"}
    return {
        "ResourceAttributes": about | dict(resource or {}),
        "MetricName": metric.otel,
        "Attributes": dict(labels),
        "StartTimeUnix": START_NS // NS_PER_S + started,
        "TimeUnix": START_NS // NS_PER_S + second,
        "Value": value,
        "AggregationTemporality": temporality,
    }


def test_each_view_has_the_columns_of_its_question_or_base_table(otel: CollectorTables) -> None:
    for view, columns in {**BASES, **{each.view: each.columns for each in QUESTIONS.values()}}.items():
        assert tuple(row["name"] for row in otel.rows(f"DESCRIBE {view}")) == (*columns,)
        assert view == "gpu_profile_student" or otel.rows(f"SELECT * FROM {view}") == []
    assert answer(otel, "problems") == []


def test_a_process_and_its_recording_give_the_same_answers(
    otel: CollectorTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_on_start", [])
    monkeypatch.setattr(instruments, "_instrumented", {})
    reader = InMemoryMetricReader()
    about = Resource({"service.name": "shop", "service.version": "7", "service.instance.id": "one"})

    def push() -> None:
        data = reader.get_metrics_data()
        assert data is not None
        otel.take_metrics(encode_metrics(data).SerializeToString())

    with Stage(tmp_path, monkeypatch, record=tmp_path / "recorded") as stage:
        monkeypatch.setattr(stage.provider, "_resource", about)
        meters = MeterProvider([reader], resource=about, shutdown_on_exit=False)
        instruments.instrument_regions(meters)
        for i in range(CALLS):
            with region("decode"):
                stage.work(0.12, "decode")
            with region("load"):
                stage.run(0.08)
            if i == CALLS // 2:
                push()
        stage.flush()
        push()
        otel.take_traces(encode_spans(stage.spans).SerializeToString())
        joiner = stage.session.joiner
        pool = joiner.pools[stage.uuid]
        energy = {name: pool.counted(name, pool.energy_source()) for name in ("decode", "load")}
    live = {row["region"]: row for row in answer(otel, "regions")}
    assert {row["service"] for row in live.values()} == {"shop"}
    assert {row["version"] for row in live.values()} == {"7"}
    for name, counted in energy.items():
        assert counted is not None
        assert live[name]["executions"] == CALLS
        assert live[name]["energy_j"] == pytest.approx(counted.certain)
        assert live[name]["uncertain_energy_j"] == pytest.approx(counted.uncertain)
    tables = tables_of([RecordedRun("r", "7", analyse(read_recording(tmp_path / "recorded")))])
    recorded = FleetEngine(tables)
    again = dict_rows(recorded, "regions")
    for row in again:
        same = live[row["region"]]
        assert row["executions"] == CALLS
        # A running process shares out the energy of its first second before it has learnt the rates.
        assert row["execution_energy_j"] == pytest.approx(same["execution_energy_j"], rel=0.3)
    assert {row["regime"] for row in dict_rows(recorded, "regimes")} <= {
        row["regime"] for row in answer(otel, "regimes")
    }
    durations = {row["region"]: row for row in otel.rows("SELECT * FROM gpu_profile_durations")}
    spans = otel.rows("SELECT region, count() AS n, sum(duration_s) AS s FROM gpu_profile_executions GROUP BY region")
    for row in spans:
        assert (row["n"], durations[row["region"]]["executions"]) == (CALLS, CALLS)
        assert row["s"] == pytest.approx(durations[row["region"]]["total_s"])


def dict_rows(engine: FleetEngine, name: str) -> list[dict[str, Any]]:
    result = engine.answer(QUESTIONS[name].sql)
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def pushed(
    tables: CollectorTables,
    seconds: Sequence[float],
    readings: Sequence[Sequence[MetricReading]],
    instance: str = "node-1",
) -> None:
    """Insert the exporter's own requests for readings at these times."""
    resource = (("service.name", "gpu-profile-exporter"), ("service.version", "0.1"), ("service.instance.id", instance))
    encoder = MetricEncoder(Envelope(resource, "0.1"), began_ns=START_NS)
    for second, now in zip(seconds, readings, strict=True):
        for batch in encoder.batches(now, START_NS + round(second * NS_PER_S)):
            tables.take_metrics(batch.unpacked())


def test_a_pod_that_holds_two_gpus_and_uses_one_is_half_idle(otel: CollectorTables) -> None:
    pod = {"k8s.namespace.name": "ml", "k8s.pod.name": "train"}

    def now(second: float) -> list[MetricReading]:
        return [
            *(MetricReading(HELD_TIME, {"hw.id": uuid, **pod}, second) for uuid in ("g0", "g1")),
            *(MetricReading(HELD_ENERGY, {"hw.id": uuid, **pod}, 100 * second) for uuid in ("g0", "g1")),
            MetricReading(HELD_TIME, {"hw.id": "mig", "slurm.job.id": "9"}, second),
            *(MetricReading(OBSERVED, {"hw.id": uuid}, 0.99 * second) for uuid in ("g0", "g1")),
            MetricReading(BUSY, {"hw.id": "g0"}, 0.9 * 0.99 * second),
            MetricReading(BUSY, {"hw.id": "g1"}, 0.0),
        ]

    seconds = range(0, 1201, 60)
    pushed(otel, seconds, [now(second) for second in seconds])
    # A second exporter of the same GPUs reports the same again.
    pushed(otel, seconds, [now(second) for second in seconds], "node-1:9401")
    job, train = sorted(answer(otel, "idle"), key=lambda row: str(row["holder"]))
    assert train == {
        "holder": "ml/train",
        "devices": 2,
        "held_s": 2400,
        "measured_s": 2400,
        "idle_s": pytest.approx(1320),
        "idle_share": pytest.approx(0.55),
        "energy_j": 240_000,
    }
    # Unknown is not 0: a MIG instance has no utilisation.
    assert (job["holder"], job["held_s"], job["idle_s"], job["idle_share"]) == ("9", 1200, None, None)
    assert job["energy_j"] is None


def test_tenants_and_what_no_tenant_has_add_up_to_the_engine(otel: CollectorTables) -> None:
    def now(scale: float) -> Iterator[MetricReading]:
        rows = [("acme", "prefill", 30.0, 2.0, 900.0), ("acme", "decode", 60.0, 5.0, 100.0)]
        who = {"engine": "e", "tenant": "acme", "model": "m"}
        for _, phase, joules, seconds, tokens in rows:
            for metric, value in (
                (serving.SERVING_ENERGY, joules),
                (serving.SERVING_DEVICE_TIME, seconds),
                (serving.SERVING_TOKENS, tokens),
            ):
                yield MetricReading(metric, {**who, "phase": phase}, value * scale)
        yield MetricReading(serving.SERVING_UNALLOCATED, {"engine": "e", "reason": "idle"}, 10.0 * scale)

    pushed(otel, [60, 4000], [list(now(1)), list(now(3))])
    rows = {(row["tenant"], row["phase"], row["unallocated"]): row for row in answer(otel, "tenants")}
    assert {key: (row["energy_j"], row["gpu_s"], row["tokens"]) for key, row in rows.items()} == {
        ("acme", "prefill", ""): (90, 6, 2700),
        ("acme", "decode", ""): (180, 15, 300),
        ("", "", "idle"): (30, None, None),
    }
    assert sum(row["energy_share"] for row in rows.values()) == pytest.approx(1)


def use(otel: CollectorTables, *points: dict[str, Any]) -> list[dict[str, Any]]:
    otel.insert("otel_metrics_sum", points)
    return otel.rows(
        "SELECT service, version, run, region, regime, sum(executions) AS n, sum(energy_j) AS j "
        "FROM gpu_profile_use GROUP BY ALL ORDER BY ALL"
    )


R: Final = {"region": "r", "hw.id": "g"}


def test_growth_is_counted_once_over_hours_restarts_copies_and_late_attributes(otel: CollectorTables) -> None:
    late = {"k8s.pod.name": "added-later"}
    delta, old = {"service.instance.id": "d"}, {"service.instance.id": "o"}
    rows = use(
        otel,
        *(sum_point(REGION_ENERGY, R, second, second / 10) for second in range(60, 9001, 60)),
        sum_point(REGION_ENERGY, R, 9000, 900, resource=late),  # sent twice, once with a further attribute
        sum_point(REGION_ENERGY, R, 9060, 906, resource=late),
        sum_point(REGION_ENERGY, R, 9120, 4, started=9100),  # the process restarted
        sum_point(REGION_ENERGY, R, 9180, 10, started=9100),
        sum_point(REGION_ENERGY, R, 9240, 5, started=9200, temporality=1, resource=delta),
        sum_point(REGION_ENERGY, R, 9300, 5, started=9240, temporality=1, resource=delta),
        sum_point(REGION_ENERGY, R, 9300, 5, started=9240, temporality=1, resource=delta),
        # Began before the views' time: its growth within it counts.
        sum_point(REGION_ENERGY, R, 9000, 7000, started=-1_500_000_000, resource=old),
        sum_point(REGION_ENERGY, R, 9060, 7001, started=-1_500_000_000, resource=old),
    )
    assert {row["run"]: row["j"] for row in rows} == {"i": pytest.approx(916), "d": 10, "o": 1}
    assert {row["regime"] for row in rows} == {"UNKNOWN"}


def test_energy_is_shared_by_the_calls_of_each_regime_and_a_sidecar_names_its_services(otel: CollectorTables) -> None:
    def calls(value: float, regime: str, resource: Mapping[str, str] | None = None, **more: str) -> dict[str, Any]:
        return sum_point(REGION_CALLS, {**R, "regime": regime, **more}, 60, value, resource=resource)

    sidecar = {"service.name": "gpu-profile-exporter", "service.version": "0.1"}
    rows = use(
        otel,
        calls(30, "MEMORY_BOUND"),
        calls(10, "HOST_BOUND"),
        sum_point(REGION_ENERGY, R, 61, 100),
        calls(1, "HOST_BOUND", sidecar, **{"service.name": "java"}),
        *(calls(5, "HOST_BOUND", {"slurm.job.id": "4", "service.instance.id": rank}) for rank in ("r0", "r1")),
    )
    assert [tuple(row.values()) for row in rows] == [
        ("java", "", "i", "r", "HOST_BOUND", 1, None),
        ("s", "1", "i", "r", "HOST_BOUND", 10, 25),
        ("s", "1", "i", "r", "MEMORY_BOUND", 30, 75),
        ("s", "1", "slurm 4", "r", "HOST_BOUND", 10, None),
    ]
    assert {row["service"]: row["unmeasured_executions"] for row in answer(otel, "services")} == {"java": 1, "s": 10}


def test_a_planted_regression_is_shown_and_an_equal_region_is_not(otel: CollectorTables) -> None:
    points, durations = [], []
    for version, factor, began in (("1", 1.0, 60), ("2", 1.05, 5000)):
        for run, noise in enumerate((0.99, 1.0, 1.01, 1.005)):
            about = {"service.version": version, "service.instance.id": f"{version}-{run}"}
            for name, value in (("decode", noise * factor), ("load", noise)):
                at: dict[str, str] = {"region": name, "hw.id": "g"}
                when: dict[str, Any] = {"started": began, "resource": about}
                points += [
                    sum_point(REGION_CALLS, {**at, "regime": "HOST_BOUND"}, began, 1000, **when),
                    sum_point(REGION_ENERGY, at, began, 5000 * value, **when),
                    sum_point(REGION_BUSY, at, began, 20 * value, **when),
                ]
                row = sum_point(REGION_DURATION, {"region": name}, began, 0, **when)
                del row["Value"]
                durations.append({**row, "Count": 1000, "Sum": 30 * value})
    otel.insert("otel_metrics_sum", points)
    otel.insert("otel_metrics_histogram", durations)
    rows = answer(otel, "regressions")
    assert {(row["region"], row["quantity"], row["finding"]) for row in rows} == {
        *(("decode", quantity, "higher") for quantity in ("duration", "energy", "gpu_time")),
        *(("load", quantity, "no change shown") for quantity in ("duration", "energy", "gpu_time")),
    }
    for row in rows:
        assert (row["version_a"], row["version_b"], row["runs_a"], row["runs_b"]) == ("1", "2", 4, 4)
        assert row["change"] == pytest.approx(0.05 if row["region"] == "decode" else 0, abs=1e-9)
        assert row["low"] < row["change"] < row["high"]


def test_without_histograms_regressions_has_energy_and_gpu_time(otel: CollectorTables) -> None:
    parts = [part for part in SCRIPT.split(";\n") if re.search(r"VIEW gpu_profile_(durations|regressions) ", part)]
    script = ";\n".join(parts)
    otel.run("RENAME TABLE otel_metrics_histogram TO aside")
    try:
        assert len(otel.install(script)) == 1
        assert answer(otel, "problems") == [
            {"problem": "otel_metrics_histogram: no such table", "unanswered": "durations of regressions"}
        ]
        points = []
        for version, began in (("1", 60), ("2", 5000)):
            for run in range(3):
                about = {"service.version": version, "service.instance.id": f"{version}-{run}"}
                when: dict[str, Any] = {"started": began, "resource": about}
                at = {"region": "decode", "hw.id": "g"}
                points += [
                    sum_point(REGION_CALLS, at, began, 1000, **when),
                    sum_point(REGION_ENERGY, at, began, 5000 + run, **when),
                    sum_point(REGION_BUSY, at, began, 20 + run / 100, **when),
                ]
        otel.insert("otel_metrics_sum", points)
        assert {(row["quantity"], row["finding"]) for row in answer(otel, "regressions")} == {
            ("energy", "no change shown"),
            ("gpu_time", "no change shown"),
        }
    finally:
        otel.run("RENAME TABLE aside TO otel_metrics_histogram")
        assert otel.install(script) == []


def test_other_tables_are_one_line_each_and_the_other_questions_have_answers() -> None:
    older = {**SECONDS, "AggregationTemporality": "", "AggTemp": "Int32", "Attributes": "String"}
    tables = CollectorTables("other", {"otel_metrics_sum": older, "otel_metrics_histogram": SECONDS}, "otel_traces")
    try:
        assert tables.install(views("other", days=3650))
        unanswered = "idle, regimes, regions, regressions, services, tenants"
        assert answer(tables, "problems") == [
            {"problem": "otel_metrics_sum: column Attributes is String, not Map", "unanswered": unanswered},
            {"problem": "otel_metrics_sum: no column AggregationTemporality", "unanswered": unanswered},
            {"problem": "otel_traces: no such table", "unanswered": "stragglers"},
        ]
        assert tables.rows("SELECT * FROM gpu_profile_durations") == []
    finally:
        tables.close()


def test_a_database_has_a_plain_name() -> None:
    with pytest.raises(UsageError, match="--database"):
        views("otel; DROP DATABASE x")
