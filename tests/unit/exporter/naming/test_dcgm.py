import json
from typing import Any

import pytest
from unit.exporter.naming.dcgm_node import CORE, DATA, GPU, IDENTITY, MIG, TEMPERATURE, dcgm, everything, nvlink

from gpu_profile.catalogue import METRICS, metric_of, signal
from gpu_profile.catalogue import metrics as m
from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.catalogue.self_metrics import XID_ERRORS, XID_LAST
from gpu_profile_exporter.naming.dcgm import DcgmNames
from gpu_profile_exporter.naming.dcgm_csv import parse_counters
from gpu_profile_exporter.naming.dcgm_fields import (
    CUMULATIVE_FIELDS,
    DEFAULT_COUNTERS,
    DEFAULT_FIELDS,
    LABEL_FIELDS,
    SOURCES,
    default_counters,
    measured,
)
from gpu_profile_exporter.naming.dcgm_renamed import BASE_UNITS, RENAMED
from gpu_profile_exporter.naming.schemes import choose
from gpu_profile_exporter.naming.semconv import Semconv
from gpu_profile_exporter.naming.sums import totals

FACTS: dict[str, Any] = json.loads((DATA / "default_metrics.json").read_text())
DEFAULTS: list[dict[str, str]] = FACTS["metrics"]
#: The ids of DCGM 4.6's fields, and its name for each older one.
DCGM_4_6: dict[str, Any] = json.loads((DATA / "fields_4_6.json").read_text())
#: The unit in dcgm's terms, by ours: what a value of 1 becomes.
SCALE = {
    ("Hz", "MHz"): 1e-6,
    ("Cel", "Cel"): 1,
    ("W", "W"): 1,
    ("J", "mJ"): 1e3,
    ("1", "%"): 1e2,
    ("1", "ratio"): 1,
    ("By", "MiB"): 1 / 2**20,
    ("By/s", "B/s"): 1,
}


# ------------------------------------------------------------------------------------------------- the default metrics


def test_the_default_metrics_are_dcgm_exporters_25_in_its_order_and_of_its_types() -> None:
    assert [(field.name, field.kind) for field in DEFAULT_FIELDS] == [(row["name"], row["type"]) for row in DEFAULTS]
    assert len(DEFAULT_FIELDS) == 25


def test_each_default_metric_that_is_measured_is_published_once_for_each_gpu() -> None:
    names = [series.family.name for series in everything(dcgm(), "GPU-11")]
    default = [field.name for field in DEFAULT_FIELDS if measured(field.name)]
    assert sorted(names) == sorted([*default, *(field.name for field in CUMULATIVE_FIELDS)])
    assert [field.name for field in DEFAULT_FIELDS if not measured(field.name)] == ["DCGM_FI_DEV_VGPU_LICENSE_STATUS"]


@pytest.mark.parametrize("row", [row for row in DEFAULTS if measured(row["name"])], ids=lambda row: row["name"])
def test_a_default_metric_has_dcgm_exporters_unit(row: dict[str, str]) -> None:
    source = SOURCES[row["name"]]
    unit = next((metric.unit for metric in METRICS if metric.otel == source.otel), "")
    assert source.scale == pytest.approx(SCALE.get((unit, row["unit"]), 1e-6 if row["unit"] == "MB" else 1))
    (series,) = [one for one in everything(dcgm(), "GPU-11") if one.family.name == row["name"]]
    assert series.scale == source.scale


def test_a_watt_is_a_watt_a_per_cent_is_one_of_a_hundred_and_a_mebibyte_has_two_to_the_twenty_bytes() -> None:
    scales = {series.family.name: series.scale for series in everything(dcgm(), "GPU-11")}
    assert 350.0 * scales["DCGM_FI_DEV_POWER_USAGE"] == 350
    assert 0.57 * scales["DCGM_FI_DEV_GPU_UTIL"] == pytest.approx(57)
    assert (80 << 30) * scales["DCGM_FI_DEV_FB_USED"] == 80 * 1024
    assert 1.98e9 * scales["DCGM_FI_DEV_SM_CLOCK"] == pytest.approx(1980)
    assert 1.5 * scales["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == 1500
    assert 0.25 * scales["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] == 0.25


def test_memory_utilisation_is_published_under_no_name_of_dcgms() -> None:
    assert not dcgm().series(m.MEMORY_UTILIZATION, {"hw.id": "GPU-11"})


def test_help_texts_are_there_and_without_a_full_stop() -> None:
    assert all(field.help and not field.help.endswith(".") and "\n" not in field.help for field in DEFAULT_FIELDS)


# --------------------------------------------------------------------------------------------------------------- labels


def test_labels_stand_in_dcgm_exporters_order() -> None:
    (series,) = dcgm().series(TEMPERATURE, {"hw.id": "GPU-11", **CORE})
    assert [name for name, _ in series.labels] == FACTS["labels"]
    assert series.labels == (*IDENTITY, ("Hostname", "node-7"), ("DCGM_FI_DRIVER_VERSION", "580.126.09"))


@pytest.mark.parametrize(
    ("label", "names"),
    [("Hostname", ["Hostname"]), ("hostname", ["hostname"]), ("both", ["Hostname", "hostname"]), ("none", [])],
)
def test_the_hosts_label_is_called_as_asked(label: str, names: list[str]) -> None:
    (series,) = dcgm(hostname_label=label).series(TEMPERATURE, {"hw.id": "GPU-11", **CORE})
    assert [(name, value) for name, value in series.labels if name.lower() == "hostname"] == [
        (name, "node-7") for name in names
    ]


def test_without_a_host_there_is_no_label_for_it() -> None:
    (series,) = dcgm(hostname="").series(TEMPERATURE, {"hw.id": "GPU-11", **CORE})
    assert "Hostname" not in dict(series.labels)


def test_a_mig_instance_carries_its_parents_identity_and_its_own_profile_and_number() -> None:
    (series,) = dcgm(GPU, MIG).series(metric_of(signal("memory_used")), {"hw.id": "MIG-22"})
    assert series.labels == (
        *IDENTITY,
        ("GPU_I_PROFILE", "3g.40gb"),
        ("GPU_I_ID", "2"),
        ("Hostname", "node-7"),
        ("DCGM_FI_DRIVER_VERSION", "580.126.09"),
    )


def test_what_a_driver_tells_of_its_devices_is_enough_to_name_them() -> None:
    gpu = Device("GPU-11", index=3, name=GPU["hw.name"], pci_bus_id=GPU["pci.bus_id"])
    mig = Device("MIG-22", "GPU-11", DeviceKind.MIG, 3, MIG["hw.name"], mig_profile="3g.40gb", mig_instance=2)
    naming = dcgm(gpu.identity, mig.identity, hostname="")
    (series,) = naming.series(metric_of(signal("memory_used")), {"hw.id": "MIG-22"})
    assert series.labels == (*IDENTITY, ("GPU_I_PROFILE", "3g.40gb"), ("GPU_I_ID", "2"))


def test_a_mig_instances_profile_is_taken_from_its_name_where_nothing_else_tells_it() -> None:
    without = {name: value for name, value in MIG.items() if name != "mig.profile"}
    (series,) = dcgm(GPU, without).series(metric_of(signal("memory_used")), {"hw.id": "MIG-22"})
    assert dict(series.labels)["GPU_I_PROFILE"] == "3g.40gb"


def test_a_mig_instance_that_cannot_be_told_from_its_neighbours_has_no_series() -> None:
    without = {name: value for name, value in MIG.items() if name != "mig.instance"}
    assert not dcgm(GPU, without).series(metric_of(signal("memory_used")), {"hw.id": "MIG-22"})
    assert not dcgm(MIG).series(metric_of(signal("memory_used")), {"hw.id": "MIG-22"})


def test_a_device_of_which_nothing_was_told_has_no_series_until_it_is() -> None:
    naming = DcgmNames()
    assert not naming.series(TEMPERATURE, {"hw.id": "GPU-11", **CORE})
    naming.about({"GPU-11": GPU})
    assert naming.series(TEMPERATURE, {"hw.id": "GPU-11", **CORE})
    naming.about({})
    assert not naming.series(TEMPERATURE, {"hw.id": "GPU-11", **CORE})


def test_what_is_not_known_of_a_device_is_no_label_rather_than_an_empty_one() -> None:
    (series,) = dcgm({"hw.id": "GPU-11"}).series(TEMPERATURE, {"hw.id": "GPU-11", **CORE})
    assert series.labels == (("UUID", "GPU-11"), ("Hostname", "node-7"))


def test_pods_come_last_under_dcgm_exporters_names_in_alphabetical_order() -> None:
    pod = {"k8s.pod.name": "train-0", "k8s.namespace.name": "ml", "k8s.container.name": "main", "slurm.job.id": "42"}
    (series,) = dcgm().series(TEMPERATURE, {"hw.id": "GPU-11", **CORE, **pod})
    assert series.labels[-5:] == (
        ("DCGM_FI_DRIVER_VERSION", "580.126.09"),
        ("container", "main"),
        ("hpc_job", "42"),
        ("namespace", "ml"),
        ("pod", "train-0"),
    )


def test_a_label_is_never_there_twice() -> None:
    attributes = {"hw.id": "GPU-11", **CORE, "gpu": "x", "Hostname": "y", "k8s.pod.name": "a", "pod": "b"}
    (series,) = dcgm().series(TEMPERATURE, attributes)
    names = [name for name, _ in series.labels]
    assert len(set(names)) == len(names)
    assert dict(series.labels)["gpu"] == "3"


# ------------------------------------------------------------------------------------------------------------------ XID


def test_the_last_xid_carries_its_code_and_what_it_means() -> None:
    (series,) = dcgm().series(XID_LAST, {"hw.id": "GPU-11", "nvidia.gpu.xid": "79"})
    assert series.family.name == "DCGM_FI_DEV_XID_ERRORS"
    assert series.labels[-2:] == (("err_code", "79"), ("err_msg", "The GPU fell off the bus"))


@pytest.mark.parametrize(("code", "meaning"), [("0", "No Error"), ("9999", "Unknown Error"), ("-1", "Unknown Error")])
def test_a_code_that_is_none_or_not_known_says_so(code: str, meaning: str) -> None:
    (series,) = dcgm().series(XID_LAST, {"hw.id": "GPU-11", "nvidia.gpu.xid": code})
    assert dict(series.labels)["err_msg"] == meaning


def test_before_the_first_xid_the_code_is_0() -> None:
    (series,) = dcgm().series(XID_LAST, {"hw.id": "GPU-11"})
    assert dict(series.labels)["err_code"] == "0"


def test_xids_by_code_are_a_counter_that_never_falls_back_as_a_sliding_window_does() -> None:
    naming = choose("dcgm", counters=parse_counters("DCGM_EXP_XID_ERRORS_COUNT, counter, by code", "c.csv"))
    naming.about({"GPU-11": GPU})
    (series,) = naming.series(XID_ERRORS, {"hw.id": "GPU-11", "nvidia.gpu.xid": "48"})
    assert (series.family.kind, dict(series.labels)["xid"]) == ("counter", "48")
    assert "window_size_in_ms" not in dict(series.labels)


# --------------------------------------------------------------------------------------------------- counters of cycles


def test_cycles_of_activity_over_those_elapsed_are_the_activity_and_a_cycle_is_a_nanosecond() -> None:
    scales = {
        dict(series.labels)["UUID"] + series.family.name: (series.family.kind, series.scale)
        for metric in (m.ACTIVITY, m.ACTIVITY_OBSERVED)
        for series in dcgm().series(metric, {"hw.id": "GPU-11", m.UNIT: "sm"})
    }
    assert scales == {
        "GPU-11DCGM_FI_PROF_SM_CYCLES_ACTIVE_TOTAL": ("counter", 1e9),
        "GPU-11DCGM_FI_PROF_SM_CYCLES_ELAPSED_TOTAL": ("counter", 1e9),
    }


def test_every_counter_of_dcgm_4_6_can_be_asked_for() -> None:
    units = ("SM", "MMA", "DMMA", "HMMA", "IMMA", "DFMA", "INT", "FP64", "FP32", "FP16")
    names = [f"{unit}_CYCLES_ACTIVE" for unit in units] + ["SM_CYCLES_ELAPSED", "PCIE_TX_BYTES", "PCIE_RX_BYTES"]
    lines = [f"DCGM_FI_PROF_{name}_TOTAL, counter, x" for name in names]
    counters = parse_counters("\n".join(lines), "c.csv")
    assert counters.warnings == ()
    naming = choose("dcgm", counters=counters)
    naming.about({"GPU-11": GPU})
    found = [series.family.name for series in everything(naming, "GPU-11")]
    assert sorted(found) == sorted(f"DCGM_FI_PROF_{name}_TOTAL" for name in names)


# -------------------------------------------------------------------------------------------------- names of DCGM 4.6


def test_every_field_that_dcgm_4_6_renamed_has_both_names_here_and_no_field_has_a_name_that_dcgm_lacks() -> None:
    known = {name for name in (*SOURCES, *LABEL_FIELDS) if name.startswith("DCGM_FI_")}
    renamed: dict[str, str] = DCGM_4_6["renamed"]
    assert known <= {*DCGM_4_6["ids"], *renamed}
    assert {older: newer for older, newer in renamed.items() if {older, newer} & known} == RENAMED
    assert {*RENAMED, *RENAMED.values()} <= known


def test_a_renamed_field_has_the_same_unit_as_before_and_a_field_in_base_units_has_the_scale_1() -> None:
    for older, newer in RENAMED.items():
        assert SOURCES.get(older) == SOURCES.get(newer)
        assert LABEL_FIELDS.get(older) == LABEL_FIELDS.get(newer)
    # In DCGM 4.6 too the "ratio" is NVML's per cent.
    assert SOURCES["DCGM_FI_DEV_GPU_UTIL_RATIO"].scale == 100
    for name, older in BASE_UNITS.items():
        assert DCGM_4_6["ids"][name] >= 1600
        assert SOURCES[name] == SOURCES[older]._replace(scale=1)


def test_the_default_metrics_have_their_names_until_4_5_their_names_since_4_6_or_both() -> None:
    assert default_counters("4.5") == DEFAULT_COUNTERS
    newer, both = default_counters("4.6"), default_counters("both")
    assert [field.name for field in newer.fields] == [
        RENAMED.get(field.name, field.name) for field in DEFAULT_COUNTERS.fields
    ]
    assert [field.help for field in newer.fields] == [field.help for field in DEFAULT_COUNTERS.fields]
    assert {*both.fields} == {*DEFAULT_COUNTERS.fields, *newer.fields}
    assert len({field.name for field in both.fields}) == len(both.fields)
    assert (newer.labels, both.labels) == (
        ("DCGM_FI_SYSTEM_DRIVER_VERSION",),
        ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION"),
    )


def test_both_names_of_a_field_have_the_same_series() -> None:
    naming = choose("dcgm", counters=default_counters("both"))
    naming.about({"GPU-11": GPU})
    older, newer = naming.series(TEMPERATURE, {"hw.id": "GPU-11", **CORE})
    assert (older.family.name, newer.family.name) == ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS")
    assert (older.labels, older.scale) == (newer.labels, newer.scale)


# ------------------------------------------------------------------------------------------------------------- schemes


def test_both_schemes_stand_side_by_side_and_change_nothing_in_each_other() -> None:
    both = choose("both", hostname="node-7", hostname_label="Hostname")
    both.about({"GPU-11": GPU})
    names = [series.family.name for series in both.series(TEMPERATURE, {"hw.id": "GPU-11", **CORE})]
    assert names == ["hw_temperature_celsius", "DCGM_FI_DEV_GPU_TEMP"]
    found = everything(both, "GPU-11")
    alone = everything(Semconv(), "GPU-11") + everything(dcgm(), "GPU-11")
    assert sorted(found) == sorted(alone)


def test_no_two_series_are_the_same() -> None:
    naming = choose("both", hostname="node-7")
    other = {**GPU, "hw.id": "GPU-12", "index": "4"}
    naming.about({device["hw.id"]: device for device in (GPU, MIG, other)})
    found = [(s.family.name, frozenset(s.labels)) for s in everything(naming, "GPU-11", "MIG-22", "GPU-12")]
    assert len(set(found)) == len(found)


def test_under_dcgms_names_alone_the_exporter_still_tells_of_itself_under_its_own() -> None:
    (series,) = dcgm().series(m.DRIVER_UP, {})
    assert series.family.name == "gpu_profile_driver_up"
    assert not DcgmNames(own=False).series(m.DRIVER_UP, {})
    assert not dcgm().series(m.DEVICE_UP, {"hw.id": "GPU-11"})


# ---------------------------------------------------------------------------------------------------------------- sums


def test_nvlinks_total_is_the_sum_of_both_directions_in_megabytes_and_no_rate() -> None:
    *same, total = totals([nvlink("receive", 3e6), nvlink("transmit", 4e6)])
    assert [reading.value for reading in same] == [3e6, 4e6]
    (series,) = dcgm().series(total.metric, total.attributes)
    assert (series.family.name, series.family.kind) == ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter")
    assert total.value * series.scale == pytest.approx(7)
    assert not Semconv().series(total.metric, total.attributes)


def test_one_direction_alone_is_no_total() -> None:
    found = list(totals([nvlink("receive", 3e6), nvlink("transmit", 4e6, "GPU-12")]))
    assert [reading.metric.otel for reading in found] == ["nvidia.gpu.nvlink.io"] * 2
