import re
from pathlib import Path

import pytest
from support.dcgm_conformance import Verdict, compare, main
from unit.exporter.naming.dcgm_node import GPU, dcgm, every_reading

from gpu_profile.catalogue import metrics as m
from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.naming.dcgm_fields import DEFAULT_COUNTERS, measured
from gpu_profile_exporter.naming.schemes import choose
from gpu_profile_exporter.naming.series import Naming
from gpu_profile_exporter.readings.readings import MetricReading

LABELS = 'gpu="3",UUID="GPU-11",device="nvidia3",modelName="H100",Hostname="node-7",DCGM_FI_DRIVER_VERSION="570"'


def line(name: str, value: float = 1, *, kind: str = "gauge", labels: str = LABELS) -> str:
    return f"# HELP {name} x\n# TYPE {name} {kind}\n{name}{{{labels}}} {value}\n"


def verdict(theirs: str, ours: str) -> Verdict:
    (found,) = compare(theirs, ours)
    return found


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return path.as_uri()


def exposition(naming: Naming) -> str:
    readings = [MetricReading(metric, attributes, 1.0) for metric, attributes in every_reading("GPU-11")]
    return Exposition(lambda: [MetricReading(m.DEVICE_INFO, GPU, 1), *readings], naming).render()[0].decode()


def test_the_same_metric_passes() -> None:
    found = verdict(line("DCGM_FI_DEV_GPU_TEMP", 50), line("DCGM_FI_DEV_GPU_TEMP", 51))
    assert (found.status, found.default, found.passed, found.theirs, found.ours) == ("same", True, True, 50, 51)


def test_a_metric_that_only_they_have_is_missing_and_one_that_only_we_have_is_extra() -> None:
    found = compare(line("DCGM_FI_DEV_GPU_TEMP"), line("DCGM_FI_DEV_FB_TOTAL"))
    assert [(one.name, one.status, one.passed) for one in found] == [
        ("DCGM_FI_DEV_GPU_TEMP", "missing", False),
        ("DCGM_FI_DEV_FB_TOTAL", "extra", True),
    ]


def test_another_type_is_told() -> None:
    name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    found = verdict(line(name, kind="counter"), line(name))
    assert (found.status, found.detail, found.passed) == ("type", "counter, ours gauge", False)


def test_labels_that_are_missing_and_labels_that_are_too_many_are_told() -> None:
    found = verdict(line("DCGM_FI_DEV_GPU_TEMP"), line("DCGM_FI_DEV_GPU_TEMP", labels='UUID="GPU-11",gpu="3",x="1"'))
    detail = "without DCGM_FI_DRIVER_VERSION, Hostname, device, modelName; besides x"
    assert (found.status, found.detail, found.passed) == ("labels", detail, False)


@pytest.mark.parametrize("host", ['Hostname="a"', 'hostname="a"', 'Hostname="a",hostname="a"'])
def test_either_spelling_of_the_hosts_label_will_do(host: str) -> None:
    theirs, ours = (
        line("DCGM_FI_DEV_GPU_TEMP"),
        line("DCGM_FI_DEV_GPU_TEMP", labels=LABELS.replace('Hostname="node-7"', host)),
    )
    assert verdict(theirs, ours).status == "same"


def test_labels_of_the_pods_that_happen_to_run_are_no_difference() -> None:
    theirs = line("DCGM_FI_DEV_GPU_TEMP", labels=LABELS + ',container="a",namespace="b",pod="c"')
    assert verdict(theirs, line("DCGM_FI_DEV_GPU_TEMP")).status == "same"


def test_a_gpu_that_only_they_have_it_for_is_named() -> None:
    other = f"DCGM_FI_DEV_GPU_TEMP{{{LABELS.replace('GPU-11', 'GPU-12')}}} 1\n"
    found = verdict(line("DCGM_FI_DEV_GPU_TEMP") + other, line("DCGM_FI_DEV_GPU_TEMP"))
    assert (found.status, found.detail, found.passed) == ("GPUs", "not for GPU-12", False)


def test_two_nodes_with_different_gpus_are_compared_by_names_types_and_labels_alone() -> None:
    found = verdict(
        line("DCGM_FI_DEV_GPU_TEMP", 50), line("DCGM_FI_DEV_GPU_TEMP", 90, labels=LABELS.replace("11", "99"))
    )
    assert (found.status, found.theirs, found.ours) == ("same", None, None)


@pytest.mark.parametrize(
    ("name", "theirs", "ours", "status"),
    [
        ("DCGM_FI_DEV_POWER_USAGE", 500, 509, "same"),
        ("DCGM_FI_DEV_POWER_USAGE", 500, 550, "values"),
        ("DCGM_FI_DEV_POWER_USAGE", 250, 250_000, "values"),
        ("DCGM_FI_DEV_GPU_UTIL", 97, 100, "same"),
        ("DCGM_FI_DEV_GPU_UTIL", 57, 0.57, "values"),
        ("DCGM_FI_PROF_DRAM_ACTIVE", 0.50, 0.52, "same"),
        ("DCGM_FI_PROF_DRAM_ACTIVE", 0.50, 0.60, "values"),
        ("DCGM_FI_PROF_DRAM_UTIL_RATIO", 0.50, 0.52, "same"),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", 50, 52, "same"),
        ("DCGM_FI_DEV_SM_CLOCK", 1980, 1980, "same"),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 0, 1, "values"),
        ("DCGM_FI_DEV_FB_USED", 0, 0, "same"),
    ],
)
def test_values_are_told_apart_by_what_two_readers_of_one_gpu_may_see(
    name: str, theirs: float, ours: float, status: str
) -> None:
    found = verdict(line(name, theirs), line(name, ours))
    assert (found.status, found.passed) == (status, True)


def test_metrics_with_other_names_are_left_alone() -> None:
    assert compare(line("go_goroutines"), line("process_open_fds")) == []


def test_what_this_exporter_publishes_conforms_to_itself_under_both_settings() -> None:
    alone, both = choose("dcgm", hostname="n", hostname_label="Hostname"), choose("both", hostname="n")
    found = compare(exposition(alone), exposition(both))
    assert {one.status for one in found} == {"same"}
    assert {one.name for one in found} == {field.name for field in DEFAULT_COUNTERS.fields if measured(field.name)}


def test_a_scrape_shows_dcgms_counters_under_the_names_that_dcgm_has_them() -> None:
    shown = exposition(dcgm())
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n" in shown
    assert "\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=" in shown


def test_a_person_sees_a_line_for_each_metric_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = {"theirs": line("DCGM_FI_DEV_GPU_TEMP") + line("DCGM_FI_DEV_CUSTOM"), "ours": line("DCGM_FI_DEV_GPU_TEMP")}
    urls = [write(tmp_path / name, body) for name, body in {**bodies, "none": line("DCGM_FI_DEV_FB_USED")}.items()]
    assert (main(urls[:2]), main(urls[1:])) == (0, 1)
    assert re.search("^DCGM_FI_DEV_CUSTOM +missing$", capsys.readouterr().out, re.MULTILINE)
