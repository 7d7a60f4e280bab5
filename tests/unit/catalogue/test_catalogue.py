"""The catalogue's own grammar. tests/golden/catalogue.md shows every published name: UPDATE_GOLDEN=1 writes it anew."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_profile.catalogue import (
    ALL_GROUPS,
    ATTRIBUTES,
    BUSY_SOURCES,
    DEFAULT_GROUPS,
    ENERGY_SOURCES,
    GROUPS,
    METRICS,
    SIGNALS,
    Group,
    Instrument,
    Kind,
    Metric,
    Signal,
    metric_of,
    signal,
)
from gpu_profile.catalogue.attributes import KERNEL_ATTRIBUTES, KERNEL_EVENT
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.serving import REQUEST_ATTRIBUTES
from gpu_profile.catalogue.signals import PCIE_RX, POWER, UTILIZATION
from gpu_profile.units import NS_PER_S, PROMETHEUS_SUFFIX

GOLDEN = Path(__file__).parents[2] / "golden" / "catalogue.md"
OTEL_NAME = re.compile(r"[a-z][a-z0-9]*(?:[._][a-z0-9]+)+")
PROMETHEUS_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+")
LABEL = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")

#: What OpenTelemetry's semantic conventions v1.44.0 say (model/hardware): instrument, unit, attributes that are ours.
SEMCONV = {
    "hw.gpu.utilization": ("gauge", "1", {"hw.id", "hw.gpu.task"}),
    "hw.gpu.memory.usage": ("updowncounter", "By", {"hw.id"}),
    "hw.gpu.memory.limit": ("updowncounter", "By", {"hw.id"}),
    "hw.gpu.memory.utilization": ("gauge", "1", {"hw.id"}),
    "hw.gpu.io": ("counter", "By", {"hw.id", "network.io.direction"}),
    "hw.errors": ("counter", "{error}", {"hw.id", "hw.type", "error.type"}),
    "hw.status": ("updowncounter", "1", {"hw.id", "hw.type", "hw.state"}),
    "hw.energy": ("counter", "J", {"hw.id", "hw.type"}),
    "hw.power": ("gauge", "W", {"hw.id", "hw.type"}),
    "hw.temperature": ("gauge", "Cel", {"hw.id", "hw.type", "hw.sensor_location"}),
    "hw.temperature.limit": ("gauge", "Cel", {"hw.id", "hw.type", "hw.sensor_location", "hw.limit_type"}),
    "hw.fan.speed_ratio": ("gauge", "1", {"hw.id"}),
}
#: The same metrics after the Collector's translation to Prometheus.
TRANSLATED = {
    "hw.gpu.utilization": "hw_gpu_utilization_ratio",
    "hw.gpu.memory.usage": "hw_gpu_memory_usage_bytes",
    "hw.gpu.memory.limit": "hw_gpu_memory_limit_bytes",
    "hw.gpu.memory.utilization": "hw_gpu_memory_utilization_ratio",
    "hw.gpu.io": "hw_gpu_io_bytes_total",
    "hw.errors": "hw_errors_total",
    "hw.status": "hw_status",
    "hw.energy": "hw_energy_joules_total",
    "hw.power": "hw_power_watts",
    "hw.temperature": "hw_temperature_celsius",
    "hw.temperature.limit": "hw_temperature_limit_celsius",
    "hw.fan.speed_ratio": "hw_fan_speed_ratio",
}


def by_name(rows: tuple[Metric, ...] = METRICS) -> dict[str, Metric]:
    return {metric.otel: metric for metric in rows}


# ---------------------------------------------------------------------- metrics


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.otel)
def test_a_metrics_names_follow_their_grammars(metric: Metric) -> None:
    assert OTEL_NAME.fullmatch(metric.otel)
    assert PROMETHEUS_NAME.fullmatch(metric.prometheus)
    assert all(LABEL.fullmatch(label(name)) for name in metric.labels)


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.otel)
def test_exactly_counters_end_in_total_and_exactly_gauges_of_unit_1_in_ratio(metric: Metric) -> None:
    assert metric.prometheus.endswith("_total") == (metric.instrument is Instrument.COUNTER)
    assert metric.prometheus.endswith("_ratio") == (metric.instrument is Instrument.GAUGE and metric.unit == "1")


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.otel)
def test_a_metrics_unit_is_known_and_shows_in_its_name_once(metric: Metric) -> None:
    assert metric.unit == "" or metric.unit in PROMETHEUS_SUFFIX or re.fullmatch(r"\{[a-z]+\}", metric.unit)
    suffix = PROMETHEUS_SUFFIX.get(metric.unit, "")
    if suffix:
        assert metric.prometheus.removesuffix("_total").endswith(f"_{suffix}")
        assert f"{suffix}_{suffix}" not in metric.prometheus


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.otel)
def test_a_metrics_brief_is_a_phrase(metric: Metric) -> None:
    assert metric.brief
    assert not metric.brief.endswith(".")
    assert "\n" not in metric.brief


def test_no_two_metrics_share_a_name() -> None:
    assert len({metric.otel for metric in METRICS}) == len(METRICS)
    assert len({metric.prometheus for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.otel)
def test_labels_of_a_metric_never_collide_and_belong_to_known_attributes(metric: Metric) -> None:
    labels = [label(name) for name in metric.labels]
    assert len(set(labels)) == len(labels)
    fixed = {name for row in metric.signals for name, _ in row.attributes}
    assert fixed <= set(metric.labels)


def test_every_attribute_can_be_told_from_its_label() -> None:
    names = {name for metric in METRICS for name in metric.labels}
    assert len({label(name) for name in names}) == len(names)


def test_names_under_hw_are_exactly_those_of_the_semantic_conventions() -> None:
    ours = {name for name in by_name() if name.startswith("hw.")}
    assert ours == SEMCONV.keys()


@pytest.mark.parametrize("name", SEMCONV)
def test_a_metric_of_the_semantic_conventions_has_their_instrument_unit_and_attributes(name: str) -> None:
    metric = by_name()[name]
    assert (str(metric.instrument), metric.unit, set(metric.labels)) == SEMCONV[name]


@pytest.mark.parametrize(("name", "translated"), TRANSLATED.items())
def test_a_scrape_names_a_series_as_the_collector_would(name: str, translated: str) -> None:
    assert by_name()[name].prometheus == translated


def test_our_own_names_stand_outside_of_the_conventions() -> None:
    own = {name.partition(".")[0] for name in by_name() if not name.startswith("hw.")}
    assert own == {"nvidia", "gpu_profile"}


# ---------------------------------------------------------------------- signals


def test_every_signal_is_published_by_one_metric_with_its_unit() -> None:
    for row in SIGNALS:
        metric = metric_of(row)
        assert metric in METRICS
        assert (metric.otel, metric.unit) == (row.otel, row.unit)
        assert (metric.instrument is Instrument.COUNTER) == (row.kind is Kind.COUNTER)


def test_keys_and_series_of_signals_are_unique() -> None:
    assert len({row.key for row in SIGNALS}) == len(SIGNALS)
    assert len({(row.otel, row.attributes) for row in SIGNALS}) == len(SIGNALS)
    assert len({row.dcgm.name for row in SIGNALS if row.dcgm}) == sum(row.dcgm is not None for row in SIGNALS)


def test_a_signal_is_found_by_its_key() -> None:
    assert all(signal(row.key) is row for row in SIGNALS)
    with pytest.raises(KeyError):
        signal("no such signal")


@pytest.mark.parametrize("row", SIGNALS, ids=lambda r: r.key)
def test_quanta_and_base_units_are_inverse(row: Signal) -> None:
    assert [row.quanta(row.base(n)) for n in (0, 1, 7, row.limit)] == [0, 1, 7, row.limit]


@pytest.mark.parametrize("row", SIGNALS, ids=lambda r: r.key)
def test_the_longest_exact_interval_keeps_a_sum_below_2_to_the_62(row: Signal) -> None:
    longest = row.longest_exact_ns
    assert longest > 60 * NS_PER_S
    bound = row.limit * longest // NS_PER_S if row.kind is Kind.COUNTER else row.limit * longest
    assert bound <= 1 << 62


@pytest.mark.parametrize("row", SIGNALS, ids=lambda r: r.key)
def test_signals_of_one_metric_share_unit_and_kind(row: Signal) -> None:
    assert {(other.unit, other.kind) for other in metric_of(row).signals} == {(row.unit, row.kind)}


@pytest.mark.parametrize("row", SIGNALS, ids=lambda r: r.key)
def test_a_window_is_told_for_window_means_and_for_nothing_else(row: Signal) -> None:
    assert (row.window_ns > 0) == (row.kind is Kind.WINDOW_MEAN)


def test_only_the_counters_that_the_driver_says_can_wrap_do() -> None:
    assert [row.key for row in SIGNALS if row.wraps_at] == ["pcie_rx", "pcie_tx"]
    assert PCIE_RX.wraps_at == 1 << 32


def test_sources_of_busy_time_and_energy_carry_seconds_and_joules() -> None:
    assert {row.unit for row in BUSY_SOURCES} == {"1"}
    assert {row.unit for row in ENERGY_SOURCES} <= {"J", "W"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"otel": "Power"}, "not an OpenTelemetry name: 'Power'"),
        ({"otel": "power"}, "not an OpenTelemetry name"),
        ({"unit": "mW"}, "unknown unit 'mW'"),
        ({"brief": ""}, "must be a phrase"),
        ({"brief": "Power draw."}, "without a full stop"),
        ({"limit": 0}, "must be positive"),
        ({"quantum": 0.0}, "must be positive"),
        ({"lowest": 4_000_000}, "lowest plausible value"),
        ({"lowest": -4_000_001}, "lowest plausible value"),
    ],
)
def test_a_row_that_breaks_the_grammar_does_not_construct(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(POWER, **change)  # type: ignore[arg-type]


def test_rows_are_equal_only_to_themselves() -> None:
    assert replace(UTILIZATION) != UTILIZATION


def test_every_group_has_signals_and_a_line_that_explains_it() -> None:
    assert {row.group for row in SIGNALS} == set(Group) == set(ALL_GROUPS) == set(GROUPS)
    assert all(brief and not brief.endswith(".") for brief in GROUPS.values())


def test_a_groups_name_can_be_typed_and_is_told_from_the_others_by_what_it_begins_with() -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-detail)?", group) for group in Group)
    assert all(Group(group.removesuffix("-detail")) in DEFAULT_GROUPS for group in Group if group.endswith("-detail"))


def test_what_is_split_up_in_detail_is_off_by_default() -> None:
    assert Group.CORE in DEFAULT_GROUPS
    assert not any(group.endswith("-detail") for group in DEFAULT_GROUPS)


def test_only_margins_can_be_below_0() -> None:
    assert {row.otel for row in SIGNALS if row.lowest < 0} == {
        "nvidia.gpu.temperature.margin",
        "nvidia.gpu.temperature.margin.limit",
    }


# ---------------------------------------------------------------------- span attributes


@pytest.mark.parametrize("attribute", [*ATTRIBUTES, *KERNEL_ATTRIBUTES, *REQUEST_ATTRIBUTES], ids=lambda a: a.name)
def test_span_attributes_are_ours_and_explained(attribute: object) -> None:
    name, brief = getattr(attribute, "name", ""), getattr(attribute, "brief", "")
    assert re.fullmatch(r"gpu_profile(\.[a-z][a-z_]*)+", name)
    assert brief
    assert not brief.endswith(".")


def test_no_two_span_attributes_share_a_name() -> None:
    assert len({attribute.name for attribute in ATTRIBUTES}) == len(ATTRIBUTES)


# ---------------------------------------------------------------------- the golden page


def page() -> str:
    lines = ["| OpenTelemetry | Prometheus | unit | instrument | attributes |", "|---|---|---|---|---|"]
    lines += [
        f"| {m.otel} | {m.prometheus} | {m.unit} | {m.instrument} | {', '.join(m.labels)} |"
        for m in sorted(METRICS, key=lambda m: m.otel)
    ]
    lines += ["", "| span attribute | type | unit |", "|---|---|---|"]
    lines += [f"| {a.name} | {a.type} | {a.unit} |" for a in sorted(ATTRIBUTES, key=lambda a: a.name)]
    lines += ["", f"| attribute of {KERNEL_EVENT} | type | unit |", "|---|---|---|"]
    lines += [f"| {a.name} | {a.type} | {a.unit} |" for a in (*KERNEL_ATTRIBUTES, *REQUEST_ATTRIBUTES)]
    return "\n".join(lines) + "\n"


def test_published_names_are_those_of_the_golden_page() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(page(), encoding="utf-8")
    assert page() == GOLDEN.read_text(encoding="utf-8"), "a published name changed: if on purpose, set UPDATE_GOLDEN=1"
