import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.metrics import _internal as metrics_internal
from opentelemetry.sdk.metrics import MeterProvider, TraceBasedExemplarFilter
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, Metric, NumberDataPoint, Sum
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.util._once import Once
from support.concurrency import in_child
from support.exporter import series
from support.regions import HUNGRY, PRODUCT, Stage, exposition

from gpu_profile import region
from gpu_profile.catalogue import Instrument
from gpu_profile.catalogue import metrics as rows
from gpu_profile.join.durations import BUCKETS_S
from gpu_profile.regions.session import process
from gpu_profile.regions.telemetry import instruments, providers
from gpu_profile.regions.telemetry.instruments import instrument_regions, leave_regions
from gpu_profile.units import NS_PER_S


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No meter provider is known yet, and hooks of this test end with it."""
    monkeypatch.setattr(instruments, "_instrumented", {})
    monkeypatch.setattr(process, "_on_start", [])
    monkeypatch.setattr(metrics_internal, "_METER_PROVIDER", None)
    monkeypatch.setattr(metrics_internal, "_METER_PROVIDER_SET_ONCE", Once())
    monkeypatch.setattr(metrics_internal, "_PROXY_METER_PROVIDER", type(metrics_internal._PROXY_METER_PROVIDER)())


class Reader:
    """A service's meter provider, and what it would export."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], exemplar_filter=TraceBasedExemplarFilter(), shutdown_on_exit=False)

    def metrics(self) -> dict[str, Metric]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        assert {scope.scope.name for scope in scopes} == {"gpu_profile"}
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def values(self, metric: str) -> dict[tuple[Any, ...], float]:
        """The value of each series of a counter, by its labels' values."""
        points = self.metrics()[metric].data.data_points
        found = {}
        for point in points:
            assert isinstance(point, NumberDataPoint)
            found[tuple((point.attributes or {}).values())] = point.value
        assert len(found) == len(points)
        return found

    def durations(self, region: str) -> HistogramDataPoint:
        points = self.metrics()[rows.REGION_DURATION.otel].data.data_points
        (point,) = (p for p in points if p.attributes == {"region": region})
        assert isinstance(point, HistogramDataPoint)
        return point


def busy_service(stage: Stage, times: int = 20) -> None:
    for i in range(times):
        with region("decode", items=16):
            stage.work(0.05, "decode", share=0.8)
        handle = region.start("load")
        stage.run(0.02)
        handle.end(OSError("disk") if i % 10 == 0 else None)
    stage.run(1.1)


def product(stage: Stage) -> None:
    with region("matmul") as execution:
        stage.work(0.05, "matmul")
        execution.operation = PRODUCT
    stage.run(1.1)
    stage.session.joiner.verdicts.take_kernels("matmul", HUNGRY)
    stage.session.joiner.spinning.total_ns["matmul", stage.uuid] = NS_PER_S


@pytest.fixture
def reader(stage: Stage) -> Reader:
    """Of a service that publishes what its regions do."""
    made = Reader()
    instrument_regions(made.provider)
    return made


# ------------------------------------------------------------------ names and numbers


def test_metrics_have_the_catalogues_names_units_and_labels(stage: Stage, reader: Reader) -> None:
    busy_service(stage)
    product(stage)
    found = reader.metrics()
    assert set(found) == {row.otel for row in rows.REGION_METRICS}
    for row in rows.REGION_METRICS:
        metric = found[row.otel]
        assert (metric.unit, metric.description) == (row.unit, row.brief)
        assert {tuple(point.attributes or {}) for point in metric.data.data_points} == {row.labels}
        if row.instrument is Instrument.COUNTER:
            assert isinstance(metric.data, Sum)
            assert metric.data.is_monotonic


def test_numbers_are_those_of_the_prometheus_page(stage: Stage, reader: Reader) -> None:
    busy_service(stage)
    page = series(exposition())
    regime = next(key[1] for key in reader.values(rows.REGION_CALLS.otel) if key[0] == "decode")
    calls = f'gpu_profile_region_calls_total{{hw_id="{stage.uuid}",regime="{regime}",region="decode"}}'
    assert reader.values(rows.REGION_CALLS.otel)["decode", regime, stage.uuid] == page[calls]
    for certain, uncertain in (
        (rows.REGION_BUSY, rows.REGION_BUSY_UNCERTAIN),
        (rows.REGION_ENERGY, rows.REGION_ENERGY_UNCERTAIN),
    ):
        names = {row: f'{row.prometheus}{{hw_id="{stage.uuid}",region="decode"}}' for row in (certain, uncertain)}
        for row, name in names.items():
            assert reader.values(row.otel)["decode", stage.uuid] == pytest.approx(page[name], rel=1e-12)
        assert sum(page[name] for name in names.values()) > 0
    assert reader.values(rows.REGION_ITEMS.otel) == {("decode",): 320}
    assert reader.values(rows.REGION_ERRORS.otel) == {("decode",): 0, ("load",): 2}
    durations = reader.durations("decode")
    assert list(durations.explicit_bounds) == list(BUCKETS_S)
    assert durations.count == 20
    assert durations.sum == pytest.approx(1.0)


@pytest.mark.parametrize("ratio", [0.0, 0.01])
def test_every_execution_counts_at_any_sampling_of_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float
) -> None:
    numbers = {}
    for sampled in (1.0, ratio):
        with Stage(tmp_path / str(sampled), monkeypatch, sampler=TraceIdRatioBased(sampled)) as stage:
            reader = Reader()
            instruments._instrumented.clear()
            instrument_regions(reader.provider)
            stage.run(0.5)
            for _ in range(500):
                with region("decode", items=2):
                    stage.work(0.005, "decode", share=0.8)
            stage.flush()
            page = series(exposition())
            assert len(stage.spans) == 500 if sampled == 1.0 else len(stage.spans) < 25
            assert page['gpu_profile_region_duration_seconds_count{region="decode"}'] == 500
            assert page['gpu_profile_region_items_total{region="decode"}'] == 1_000
            assert sum(v for k, v in page.items() if k.startswith("gpu_profile_region_calls_total")) == 500
            assert sum(reader.values(rows.REGION_CALLS.otel).values()) == 500
            assert reader.durations("decode").count == 500
            numbers[sampled] = [reader.values(row.otel) for row in (rows.REGION_BUSY, rows.REGION_ENERGY)]
            assert stage.session.joiner.pools[stage.uuid].pooled("decode").executions == 500
    kept, dropped = ([list(values.values()) for values in numbers[s]] for s in (1.0, ratio))
    assert dropped == kept


def test_work_of_operations_and_kernels_is_that_of_the_prometheus_page_and_goes_on_where_a_session_ends(
    stage: Stage, reader: Reader
) -> None:
    busy_service(stage, times=2)
    for _ in range(2):
        product(stage)
    page = series(exposition())
    counts = ((rows.REGION_FLOPS, 2_400_000_000), (rows.REGION_TRAFFIC, 20_000_000), (rows.REGION_KERNELS, 3))
    for row, each in counts:
        assert reader.values(row.otel) == {("matmul",): 2 * each}
        assert page[f'{row.prometheus}{{region="matmul"}}'] == 2 * each
    stage.restart()
    product(stage)
    assert reader.values(rows.REGION_FLOPS.otel) == {("matmul",): 3 * 2_400_000_000}
    assert reader.values(rows.REGION_PROFILED.otel) == {("matmul",): 3}


def test_names_beyond_the_bound_are_one_series(stage: Stage, reader: Reader) -> None:
    for i in range(1_050):
        with region(f"step {i}", span=False):
            pass
    stage.run(1.1)
    assert reader.durations("other").count == 50
    assert len(reader.metrics()[rows.REGION_DURATION.otel].data.data_points) == 1_001


def test_exemplar_is_an_execution_with_a_sampled_span(stage: Stage, reader: Reader) -> None:
    with region("decode"):
        stage.run(0.02)
    with region("decode", span=False):
        stage.run(0.2)
    stage.flush()
    (exemplar,) = reader.durations("decode").exemplars
    (span,) = stage.spans
    assert span.context is not None
    assert (exemplar.trace_id, exemplar.span_id) == (span.context.trace_id, span.context.span_id)
    assert exemplar.value == pytest.approx(0.02)


# ------------------------------------------------------------------ providers


def test_service_that_sets_its_meter_provider_later_gets_the_metrics(stage: Stage) -> None:
    instrument_regions()
    reader = Reader()
    busy_service(stage, times=3)
    metrics.set_meter_provider(reader.provider)
    busy_service(stage, times=2)
    # Counters are complete; durations can only be told of from when there is somebody to tell.
    assert reader.values(rows.REGION_ITEMS.otel) == {("decode",): 80}
    assert reader.durations("decode").count == 2


@pytest.mark.parametrize("when", ["before the first region", "after"])
def test_hook_publishes_where_the_service_has_a_meter_provider(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(providers, "_wanted", None)
    reader = Reader()
    if when == "after":
        process.on_start(providers.auto)
        busy_service(stage, times=1)
    metrics.set_meter_provider(reader.provider)
    if when != "after":
        process.on_start(providers.auto)
    stage.run(0.2)
    busy_service(stage, times=2)
    assert reader.values(rows.REGION_ITEMS.otel) == {("decode",): 48 if when == "after" else 32}
    providers.leave_spans()
    leave_regions()
    stage.run(0.5)
    assert rows.REGION_ITEMS.otel not in reader.metrics()


def test_instrumenting_twice_counts_once(stage: Stage) -> None:
    reader = Reader()
    metrics.set_meter_provider(reader.provider)
    instrument_regions()
    instrument_regions()
    instrument_regions(reader.provider)
    busy_service(stage, times=3)
    assert reader.values(rows.REGION_ITEMS.otel) == {("decode",): 48}
    assert reader.durations("decode").count == 3


def test_without_a_meter_provider_nothing_happens(stage: Stage) -> None:
    instrument_regions()
    busy_service(stage, times=2)
    assert stage.calls("decode") == 2


def test_leaving_publishes_nothing_more_until_instrumented_again(stage: Stage, reader: Reader) -> None:
    busy_service(stage, times=2)
    assert reader.durations("decode").count == 2
    leave_regions()
    busy_service(stage, times=2)
    assert rows.REGION_ITEMS.otel not in reader.metrics()
    assert reader.durations("decode").count == 2
    instrument_regions(reader.provider)
    assert reader.values(rows.REGION_ITEMS.otel) == {("decode",): 64}


# ------------------------------------------------------------------ life


def joules(reader: Reader, stage: Stage) -> float:
    """Of decode, certain and uncertain ones."""
    both = rows.REGION_ENERGY, rows.REGION_ENERGY_UNCERTAIN
    return sum(reader.values(row.otel)["decode", stage.uuid] for row in both)


def test_counters_go_on_where_a_session_ends(stage: Stage, reader: Reader) -> None:
    busy_service(stage, times=3)
    before = joules(reader, stage)
    process.stop()
    assert reader.values(rows.REGION_ITEMS.otel) == {("decode",): 48}
    stage.restart()
    busy_service(stage, times=2)
    assert reader.values(rows.REGION_ITEMS.otel) == {("decode",): 80}
    assert reader.durations("decode").count == 5
    assert joules(reader, stage) > before


def test_forked_child_counts_from_nothing(stage: Stage, reader: Reader) -> None:
    busy_service(stage, times=3)
    assert rows.REGION_ITEMS.otel not in in_child(reader.metrics)
    assert reader.values(rows.REGION_ITEMS.otel) == {("decode",): 48}


def test_reading_while_regions_are_joined_never_stops_either(stage: Stage, reader: Reader) -> None:
    stop = threading.Event()
    seen: list[float] = []

    def read() -> None:
        while not stop.is_set():
            found = reader.metrics().get(rows.REGION_ITEMS.otel)
            points = found.data.data_points if found is not None else []
            seen.extend(point.value for point in points if isinstance(point, NumberDataPoint))

    thread = threading.Thread(target=read)
    thread.start()
    busy_service(stage, times=20)
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
    assert seen == sorted(seen)
    assert reader.values(rows.REGION_ITEMS.otel) == {("decode",): 320}
