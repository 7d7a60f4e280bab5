"""Readings as OTLP metrics: the same series as a scrape's, with times and beginnings."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric, NumberDataPoint
from support.push import ENVELOPE, RESOURCE, attributes, metrics_of, points_of

from gpu_profile.catalogue import METRICS, Instrument
from gpu_profile.catalogue import Metric as Row
from gpu_profile.catalogue import metrics as m
from gpu_profile.catalogue.self_metrics import SERIES, SERIES_DROPPED
from gpu_profile.catalogue.signals import ENERGY, UTILIZATION
from gpu_profile.testing import START_NS
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.push import metrics as push_metrics
from gpu_profile_exporter.push.batch import SCHEMA_URL, SCOPE
from gpu_profile_exporter.push.metrics import FORGET_NS, MetricEncoder
from gpu_profile_exporter.readings.readings import MetricReading

ENERGY_METRIC = m.metric_of(ENERGY)
UTILIZATION_METRIC = m.metric_of(UTILIZATION)
MEMORY = next(row for row in METRICS if row.otel == "hw.gpu.memory.usage")
#: Rows that a scrape under OpenTelemetry's names shows as numbers.
#: An exposition counts its own series itself.
SCRAPED_ONLY = {SERIES, SERIES_DROPPED}
ROWS = [row for row in METRICS if row.instrument is not Instrument.HISTOGRAM and row not in SCRAPED_ONLY]


def second(n: float) -> int:
    return START_NS + round(n * NS_PER_S)


def encoder() -> MetricEncoder:
    return MetricEncoder(ENVELOPE, began_ns=START_NS)


def pushed(encode: MetricEncoder, readings: list[MetricReading], now_ns: int) -> list[Metric]:
    return [metric for batch in encode.batches(readings, now_ns) for metric in metrics_of(batch.unpacked())]


def point(encode: MetricEncoder, reading: MetricReading, now_ns: int) -> NumberDataPoint:
    """The only point that comes of one reading."""
    ((only,),) = [points_of(metric) for metric in pushed(encode, [reading], now_ns)]
    return only


def energy(value: float, device: str = "GPU-a") -> MetricReading:
    return MetricReading(ENERGY_METRIC, {"hw.id": device}, value)


#: How the Collector's translator writes a unit; what stands in braces is left out, and "1" is special.
UNITS = {"By": "bytes", "J": "joules", "W": "watts", "Hz": "hertz", "s": "seconds", "Cel": "celsius", "V": "volts"}


def translated(metric: Metric) -> str:
    """A metric's name in Prometheus, by the rule of the OpenTelemetry Collector (`pkg/translator/prometheus`)."""
    parts = re.split(r"[^a-zA-Z0-9]+", metric.name)
    main, _, per = metric.unit.partition("/")
    for unit, prefix in ((main, ""), (per, "per_")):
        if unit and "{" not in unit and unit != "1":
            suffix = f"{prefix}{UNITS.get(unit, unit) if not prefix else {'s': 'second'}.get(unit, unit)}"
            if suffix not in parts:
                parts.append(suffix)
    if metric.HasField("sum") and metric.sum.is_monotonic:
        parts = [*(part for part in parts if part != "total"), "total"]
    if metric.HasField("gauge") and metric.unit == "1":
        parts = [*(part for part in parts if part != "ratio"), "ratio"]
    return "_".join(parts)


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def translated_series(metrics: list[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (
            translated(metric),
            frozenset((re.sub(r"[^a-zA-Z0-9_]", "_", k), escaped(v)) for k, v in attributes(one.attributes).items()),
        ): one.as_double
        for metric in metrics
        for one in points_of(metric)
    }


def scraped_series(readings: list[MetricReading]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = Exposition(lambda: readings, process=False).render()[0].decode()
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("{")
            if not rest:
                name, _, value = line.rpartition(" ")
                found[name, frozenset[tuple[str, str]]()] = float(value)
            else:
                inside, _, value = rest.rpartition("} ")
                pairs = re.findall(r'([a-zA-Z0-9_]+)="((?:[^"\\]|\\.)*)"', inside)
                found[name, frozenset(pairs)] = float(value)
    # What the exposition says of itself is no reading.
    return {key: value for key, value in found.items() if not key[0].startswith("gpu_profile_series")}


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r", exclude_categories=["Cc", "Cs"]), max_size=8)
VALUES = st.floats(0, 1e15, allow_nan=False) | st.integers(0, 2**53).map(float) | st.just(math.inf)


@st.composite
def any_readings(draw: st.DrawFn) -> list[MetricReading]:
    rows = draw(st.lists(st.sampled_from(ROWS), max_size=12))
    found = []
    for row in rows:
        names = [name for name in row.labels if draw(st.booleans())]
        found.append(MetricReading(row, {name: draw(TEXT) for name in names}, draw(VALUES)))
    return found


@settings(max_examples=150)
@given(any_readings())
def test_what_is_pushed_is_after_the_collectors_translation_what_is_scraped(readings: list[MetricReading]) -> None:
    assert translated_series(pushed(encoder(), readings, second(1))) == scraped_series(readings)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.otel)
def test_every_name_of_the_catalogue_is_the_collectors_translation_of_it(row: Row) -> None:
    for metric in pushed(encoder(), [MetricReading(row, {}, 1.0)], second(1)):
        assert translated(metric) == row.prometheus
        assert (metric.name, metric.unit, metric.description) == (row.otel, row.unit, row.brief)


def test_a_request_says_who_pushes_and_by_which_conventions() -> None:
    (batch,) = encoder().batches([energy(1)], second(1))
    (resource,) = ExportMetricsServiceRequest.FromString(batch.unpacked()).resource_metrics
    (scope,) = resource.scope_metrics
    assert attributes(resource.resource.attributes) == dict(RESOURCE)
    assert (scope.scope.name, scope.scope.version) == (SCOPE, "1.2.3")
    assert (resource.schema_url, scope.schema_url) == (SCHEMA_URL, SCHEMA_URL)
    assert batch.items == 1


def test_counters_are_monotonic_cumulative_sums_updowncounters_sums_and_the_rest_gauges() -> None:
    hw = {"hw.id": "GPU-a"}
    readings = [
        energy(1),
        MetricReading(MEMORY, hw, 2),
        MetricReading(UTILIZATION_METRIC, hw, 0.5),
        MetricReading(m.DEVICE_INFO, {**hw, "hw.name": "H100"}, 1),
    ]
    counter, updown, gauge, info = pushed(encoder(), readings, second(3))
    cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert counter.sum.is_monotonic
    assert not updown.sum.is_monotonic
    assert (counter.sum.aggregation_temporality, updown.sum.aggregation_temporality) == (cumulative, cumulative)
    assert gauge.WhichOneof("data") == info.WhichOneof("data") == "gauge"
    (identity,) = info.gauge.data_points
    assert (identity.as_double, attributes(identity.attributes)["hw.name"]) == (1.0, "H100")
    for metric in (counter, updown, gauge, info):
        assert [one.time_unix_nano for one in points_of(metric)] == [second(3)]
    assert gauge.gauge.data_points[0].start_time_unix_nano == 0


def test_a_counter_of_ours_starts_when_the_process_began_to_count() -> None:
    encode, hw = encoder(), {"hw.id": "GPU-a"}
    for ours in (MetricReading(m.BUSY, hw, 4), MetricReading(m.ACTIVITY, {**hw, m.UNIT: "sm"}, 4)):
        assert point(encode, ours, second(15)).start_time_unix_nano == START_NS
        assert point(encode, ours, second(30)).start_time_unix_nano == START_NS


def test_a_counter_that_the_driver_keeps_starts_with_its_first_point() -> None:
    encode = encoder()
    assert point(encode, energy(1e9), second(15)).start_time_unix_nano == second(15)
    assert point(encode, energy(2e9), second(30)).start_time_unix_nano == second(15)


@pytest.mark.parametrize("row", [m.BUSY, ENERGY_METRIC])
def test_a_counter_that_went_back_starts_anew_at_the_point_before(row: Row) -> None:
    encode, of = encoder(), {"hw.id": "GPU-a"}
    for at, value in ((15, 100.0), (30, 130.0)):
        point(encode, MetricReading(row, of, value), second(at))
    assert point(encode, MetricReading(row, of, 5.0), second(45)).start_time_unix_nano == second(30)
    assert point(encode, MetricReading(row, of, 5.0), second(60)).start_time_unix_nano == second(30)


def test_the_reset_of_one_series_is_not_the_others() -> None:
    encode = encoder()
    for at, a, b in ((15, 9.0, 9.0), (30, 1.0, 10.0)):
        (metric,) = pushed(encode, [energy(a, "GPU-a"), energy(b, "GPU-b")], second(at))
    assert [one.start_time_unix_nano for one in metric.sum.data_points] == [second(15), second(15)]
    (metric,) = pushed(encode, [energy(0.5, "GPU-a"), energy(11, "GPU-b")], second(45))
    assert [one.start_time_unix_nano for one in metric.sum.data_points] == [second(30), second(15)]


def test_a_gauge_that_falls_is_no_reset() -> None:
    encode = encoder()
    for at, value in ((15, 9e9), (30, 1e9)):
        found = point(encode, MetricReading(MEMORY, {"hw.id": "GPU-a"}, value), second(at))
    assert found.start_time_unix_nano == START_NS


@given(st.lists(st.tuples(st.integers(-3600, 3600), st.floats(0, 1e6)), min_size=1, max_size=20))
def test_no_point_is_before_its_start_whatever_the_clock_does(steps: list[tuple[int, float]]) -> None:
    encode, now_s = encoder(), 0
    for step_s, value in steps:
        now_s += step_s
        found = point(encode, energy(value), second(now_s))
        assert found.start_time_unix_nano <= found.time_unix_nano == second(now_s)


def test_a_series_that_is_away_for_long_is_forgotten() -> None:
    encode = encoder()
    point(encode, energy(5.0), second(15))
    later = second(16) + 2 * FORGET_NS
    pushed(encode, [MetricReading(m.DRIVER_UP, {}, 1)], later)
    assert point(encode, energy(6.0), later + NS_PER_S).start_time_unix_nano == later + NS_PER_S


def test_what_is_no_number_or_comes_twice_is_left_out_as_in_a_scrape() -> None:
    readings = [energy(math.nan, "GPU-a"), energy(1.0, "GPU-b"), energy(2.0, "GPU-b")]
    (metric,) = pushed(encoder(), readings, second(1))
    assert [one.as_double for one in metric.sum.data_points] == [1.0]


def test_nothing_known_is_nothing_pushed() -> None:
    assert encoder().batches([], second(1)) == []


@pytest.mark.parametrize("rows", [1, 3])
def test_a_node_with_many_series_is_pushed_in_requests_that_collectors_take(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_metrics, "MOST_BYTES", 4_000)
    metrics = [UTILIZATION_METRIC, MEMORY, ENERGY_METRIC][:rows]
    readings = [MetricReading(row, {"hw.id": f"GPU-{i:04}"}, i) for row in metrics for i in range(300)]
    batches = encoder().batches(readings, second(1))
    assert len(batches) > rows
    assert all(len(batch.unpacked()) < 5_000 for batch in batches)
    assert sum(batch.items for batch in batches) == len(readings)
    found = [one for batch in batches for metric in metrics_of(batch.unpacked()) for one in points_of(metric)]
    assert sorted(one.as_double for one in found) == sorted(float(i) for i in range(300) for _ in metrics)


@given(st.text(max_size=20))
def test_a_hostile_label_spoils_no_other_series(text: str) -> None:
    (metric,) = pushed(encoder(), [energy(1.0, f"x{text}\udcff"), energy(2.0, "GPU-b")], second(1))
    assert [one.as_double for one in metric.sum.data_points] == [1.0, 2.0]


def test_a_batch_that_waits_takes_a_fraction_of_its_size() -> None:
    readings = [MetricReading(UTILIZATION_METRIC, {"hw.id": f"GPU-{i}"}, i / 100) for i in range(800)]
    (batch,) = encoder().batches(readings, second(1))
    assert len(batch.packed) * 4 < len(batch.unpacked())
