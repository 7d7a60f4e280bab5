import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpu_profile.catalogue import METRICS, SIGNALS, Instrument, Kind, Metric, metric_of
from gpu_profile.catalogue import metrics as m
from gpu_profile.catalogue.signals import MEMORY_CONTROLLER, NVLINK_RX, NVLINK_TX, PCIE_RX, PCIE_TX, POWER
from gpu_profile_exporter.naming.schemes import choose
from gpu_profile_exporter.naming.semconv import Semconv, family
from gpu_profile_exporter.naming.series import TextFamily

OTEL: dict[str, Any] = json.loads((Path(__file__).parents[3] / "data" / "otel_hw.json").read_text())
HW = [metric for metric in METRICS if metric.otel.startswith("hw.")]
BY_NAME = {metric.otel: metric for metric in METRICS}
#: The conventions ask for `hw.type` on whatever a GPU reports, but list it with some of the metrics only.
EVERYWHERE = {"hw.type"}
#: `error.type` and `hw.gpu.task` may have other values than the well-known ones; these may not.
CLOSED = ("hw.type", "hw.state", "hw.limit_type", "network.io.direction")


def ids(metric: Metric) -> str:
    return metric.otel


def test_the_facts_are_of_the_release_that_is_documented() -> None:
    assert OTEL["version"] == "1.44.0"
    assert len(HW) >= 9


@pytest.mark.parametrize("metric", HW, ids=ids)
def test_a_hw_metric_has_otels_name_unit_and_instrument(metric: Metric) -> None:
    fact = OTEL["metrics"][metric.otel]
    assert (metric.unit, metric.instrument.value) == (fact["unit"], fact["instrument"])


@pytest.mark.parametrize("metric", HW, ids=ids)
def test_a_hw_metric_carries_what_otel_requires_and_nothing_that_otel_does_not_know_there(metric: Metric) -> None:
    levels: dict[str, str] = OTEL["metrics"][metric.otel]["attributes"]
    required = {name for name, level in levels.items() if "required" in level}
    assert required <= set(metric.labels) <= set(levels) | EVERYWHERE


@pytest.mark.parametrize("metric", HW, ids=ids)
def test_attributes_have_otels_values(metric: Metric) -> None:
    fixed = [pair for row in metric.signals for pair in row.attributes]
    assert [(name, value) for name, value in fixed if name in CLOSED and value not in OTEL["values"][name]] == []


def test_nothing_of_ours_is_in_a_namespace_of_otels() -> None:
    ours = [metric.otel for metric in METRICS if metric.otel not in OTEL["metrics"]]
    assert [name for name in ours if not name.startswith(("nvidia.gpu.", "gpu_profile."))] == []


def test_a_scrape_has_the_names_that_the_collector_gives_to_a_push() -> None:
    names = {name: family(BY_NAME[name]).name for name in OTEL["metrics"] if name in BY_NAME}
    expected = {
        "hw.energy": "hw_energy_joules_total",
        "hw.errors": "hw_errors_total",
        "hw.gpu.io": "hw_gpu_io_bytes_total",
        "hw.gpu.memory.limit": "hw_gpu_memory_limit_bytes",
        "hw.gpu.memory.usage": "hw_gpu_memory_usage_bytes",
        "hw.gpu.memory.utilization": "hw_gpu_memory_utilization_ratio",
        "hw.gpu.utilization": "hw_gpu_utilization_ratio",
        "hw.power": "hw_power_watts",
        "hw.status": "hw_status",
        "hw.temperature": "hw_temperature_celsius",
        "hw.temperature.limit": "hw_temperature_limit_celsius",
        "hw.fan.speed_ratio": "hw_fan_speed_ratio",
    }
    assert names.items() <= expected.items()
    assert len(names) >= 10


def test_a_family_says_its_kind_its_unit_and_what_it_is() -> None:
    assert family(m.BUSY) == TextFamily("gpu_profile_busy_seconds_total", "counter", m.BUSY.brief, "seconds")
    assert family(m.STATUS) == TextFamily("hw_status", "gauge", m.STATUS.brief, "")
    assert family(m.DEVICE_INFO) == TextFamily("gpu_profile_device_info", "info", m.DEVICE_INFO.brief, "")
    assert family(m.REGION_DURATION).kind == "histogram"
    assert family(BY_NAME["hw.gpu.utilization"]).unit == "ratio"


def test_only_counters_end_in_total() -> None:
    kinds = {family(metric).kind for metric in METRICS if family(metric).name.endswith("_total")}
    assert kinds == {"counter"}
    assert all(family(metric).name.endswith("_total") for metric in METRICS if family(metric).kind == "counter")


def test_labels_stand_in_the_catalogues_order_with_opt_in_ones_behind_and_unknown_ones_left_out() -> None:
    attributes = {"k8s.pod.name": "train-0", "hw.type": "gpu", "hw.state": "ok", "hw.id": "GPU-1", "host.id": ""}
    (series,) = Semconv().series(m.STATUS, attributes)
    assert series.labels == (("hw_id", "GPU-1"), ("hw_state", "ok"), ("hw_type", "gpu"), ("k8s_pod_name", "train-0"))
    assert series.scale == 1.0


def test_every_reading_has_exactly_one_series() -> None:
    naming = choose("semconv")
    for row in SIGNALS:
        metric = metric_of(row)
        (series,) = naming.series(metric, {"hw.id": "GPU-1", **dict(row.attributes)})
        assert series.family == family(metric)


# ------------------------------------------------------------- mistakes that other exporters make with these names


def test_memory_utilisation_is_the_share_that_is_used_not_how_busy_the_memory_controller_is() -> None:
    assert MEMORY_CONTROLLER.otel.startswith("nvidia.gpu.")
    assert [row.key for row in m.MEMORY_UTILIZATION.signals] == ["memory_used"]


def test_power_is_in_watts_and_the_instantaneous_reading_is_the_one_called_power() -> None:
    assert (POWER.otel, POWER.unit, POWER.base(250_000)) == ("hw.power", "W", 250.0)
    assert "INSTANT" in POWER.source
    averages = [row.otel for row in SIGNALS if row.unit == "W" and "average" in row.key]
    assert averages
    assert not [name for name in averages if name.startswith("hw.")]


def test_bytes_that_a_link_carried_are_counters_over_all_links_with_a_direction() -> None:
    for row in (PCIE_RX, PCIE_TX, NVLINK_RX, NVLINK_TX):
        assert row.kind is Kind.COUNTER
        assert metric_of(row).instrument is Instrument.COUNTER
        assert dict(row.attributes)["network.io.direction"] in OTEL["values"]["network.io.direction"]
    assert "all links" in NVLINK_RX.source
    assert "all links" in NVLINK_TX.source


def test_names_have_base_units_and_no_prefix_of_a_unit() -> None:
    names = [family(metric).name for metric in METRICS]
    wrong = re.compile(r"(?i)percent|mib|kib|megabytes|mhz|milli|micro(?!code)|_(mw|mj|ms|us|ns|c|w|j|hz)(_total)?$")
    assert [name for name in names if wrong.search(name)] == []
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) and "__" not in name for name in names)
    assert len(set(names)) == len(names)


def test_nvlink_counts_kibibytes_and_says_bytes() -> None:
    assert NVLINK_RX.base(1) == 1024


def test_whatever_is_read_of_a_device_says_of_which_so_that_devices_never_overwrite_each_other() -> None:
    assert [metric.otel for metric in METRICS if metric.signals and metric.labels[0] != "hw.id"] == []


def test_series_that_share_a_name_differ_in_a_label() -> None:
    for metric in METRICS:
        told = [row.key if m.UNIT in metric.labels else row.attributes for row in metric.signals]
        assert len(set(told)) == len(told), metric.otel


def test_identity_is_on_the_info_series_alone_so_that_an_update_of_the_driver_leaves_all_others_as_they_are() -> None:
    identity = {"hw.name", "hw.driver_version", "hw.parent", "pci.bus_id", "index"}
    assert {metric.otel for metric in METRICS if identity & set(metric.labels)} == {
        "gpu_profile.device.info",
        "gpu_profile.driver.info",
    }


def test_an_xid_has_its_code_as_a_label_and_no_field_for_its_source() -> None:
    from gpu_profile.catalogue.self_metrics import XID_ERRORS

    assert XID_ERRORS.labels == ("hw.id", "nvidia.gpu.xid")
    assert XID_ERRORS.instrument is Instrument.COUNTER
    assert not XID_ERRORS.signals


def test_throttling_is_told_by_reason_as_time_and_the_mask_of_bits_has_a_name_of_its_own() -> None:
    times = [row for row in SIGNALS if row.otel.endswith("throttle.time")]
    assert {(row.unit, row.kind) for row in times} == {("s", Kind.COUNTER)}
    assert all("nvidia.gpu.throttle.reason" in dict(row.attributes) for row in times)
    masks = [row for row in SIGNALS if row.unit == "{bitmask}"]
    assert {row.otel for row in masks}.isdisjoint(row.otel for row in times)
