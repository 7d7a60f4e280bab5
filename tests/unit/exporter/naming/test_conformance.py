from __future__ import annotations

import json
import socket
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

import pytest
from click.testing import CliRunner, Result
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from support.servers import Answer, answering, text
from unit.exporter.naming.dcgm_node import GPU, dcgm, every_reading

from gpu_profile.catalogue import metrics as m
from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile_exporter.cli import run as main
from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.naming.comparison import Verdict, compare
from gpu_profile_exporter.naming.conformance import conformance
from gpu_profile_exporter.naming.dcgm_fields import DEFAULT_FIELDS, measured
from gpu_profile_exporter.naming.schemes import choose
from gpu_profile_exporter.naming.series import Naming
from gpu_profile_exporter.readings.readings import Reading

LABELS = 'gpu="3",UUID="GPU-11",device="nvidia3",modelName="H100",Hostname="node-7",DCGM_FI_DRIVER_VERSION="570"'


def line(name: str, value: float = 1, *, kind: str = "gauge", labels: str = LABELS) -> str:
    return f"# HELP {name} x\n# TYPE {name} {kind}\n{name}{{{labels}}} {value}\n"


def families(text: str) -> list[Family]:
    return list(text_string_to_metric_families(text))


def verdict(theirs: str, ours: str) -> Verdict:
    (found,) = compare(families(theirs), families(ours))
    return found


def exposition(naming: Naming) -> str:
    readings = [Reading(metric, attributes, 1.0) for metric, attributes in every_reading("GPU-11")]
    return Exposition(lambda: [Reading(m.DEVICE_INFO, GPU, 1), *readings], naming).render()[0].decode()


# -------------------------------------------------------------------------------------------------------- comparison


def test_the_same_metric_passes() -> None:
    found = verdict(line("DCGM_FI_DEV_GPU_TEMP", 50), line("DCGM_FI_DEV_GPU_TEMP", 51))
    assert (found.status, found.default, found.passed, found.theirs, found.ours) == ("same", True, True, 50, 51)


def test_a_metric_that_only_they_have_is_missing_and_one_that_only_we_have_is_extra() -> None:
    found = compare(families(line("DCGM_FI_DEV_GPU_TEMP")), families(line("DCGM_FI_DEV_FB_TOTAL")))
    assert [(one.name, one.status, one.passed) for one in found] == [
        ("DCGM_FI_DEV_GPU_TEMP", "missing", False),
        ("DCGM_FI_DEV_FB_TOTAL", "extra", True),
    ]


def test_another_type_is_told() -> None:
    name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    found = verdict(line(name, kind="counter"), line(name))
    assert (found.status, found.type_theirs, found.type_ours, found.passed) == ("type", "counter", "gauge", False)


def test_labels_that_are_missing_and_labels_that_are_too_many_are_told() -> None:
    found = verdict(line("DCGM_FI_DEV_GPU_TEMP"), line("DCGM_FI_DEV_GPU_TEMP", labels='UUID="GPU-11",gpu="3",x="1"'))
    assert found.status == "labels"
    assert found.labels_missing == ("DCGM_FI_DRIVER_VERSION", "Hostname", "device", "modelName")
    assert found.labels_extra == ("x",)
    assert not found.passed


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
    assert (found.status, found.missing_on, found.passed) == ("GPUs", ("GPU-12",), False)


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
    assert compare(families(line("go_goroutines")), families(line("process_open_fds"))) == []


def test_what_this_exporter_publishes_conforms_to_itself_under_both_settings() -> None:
    alone, both = choose("dcgm", hostname="n", hostname_label="Hostname"), choose("both", hostname="n")
    found = compare(families(exposition(alone)), families(exposition(both)))
    assert {one.status for one in found} == {"same"}
    assert {one.name for one in found} == {field.name for field in DEFAULT_FIELDS if measured(field.name)}


def test_a_scrape_shows_dcgms_counters_under_the_names_that_dcgm_has_them() -> None:
    shown = exposition(dcgm())
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n" in shown
    assert "\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=" in shown


# ------------------------------------------------------------------------------------------------------------ command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(conformance, arguments)


def test_the_command_ends_with_0_where_every_default_metric_is_the_same() -> None:
    body = line("DCGM_FI_DEV_GPU_TEMP", 50) + line("DCGM_FI_DEV_CUSTOM")
    with answering(text(body)) as theirs, answering(text(line("DCGM_FI_DEV_GPU_TEMP", 50))) as ours:
        done = run("--against", theirs, "--ours", f"{ours}/metrics")
    assert done.exit_code == 0, done.output
    assert "DCGM_FI_DEV_CUSTOM" in done.output
    assert "1 of the 1 default metrics that it publishes are the same here." in done.output


def test_the_command_ends_with_1_where_one_is_missing() -> None:
    with answering(text(line("DCGM_FI_DEV_GPU_TEMP"))) as theirs, answering(text(line("DCGM_FI_DEV_FB_USED"))) as ours:
        done = run("--against", theirs, "--ours", ours)
    assert done.exit_code == 1
    assert "0 of the 1 default metrics" in done.output


def test_json_says_the_same_for_programs() -> None:
    with answering(text(line("DCGM_FI_DEV_GPU_TEMP", 50))) as url:
        done = run("--against", url, "--ours", url, "--json")
    told = json.loads(done.output)
    assert (told["conforms"], told["same_gpus"], len(told["metrics"])) == (True, True, 1)
    assert told["metrics"][0] | {"name": "DCGM_FI_DEV_GPU_TEMP", "status": "same", "passed": True} == told["metrics"][0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (text("<html>Grafana</html>", "text/html"), "answers with a web page, not with metrics"),
        (text("  <!doctype html><p>hello", "text/plain"), "answers with a web page"),
        (text("gone", code=404), "answers 404 Not Found"),
        (text("{{{ no metrics\n"), "no Prometheus text"),
        (text(""), "no metric there has a name of dcgm-exporter's"),
        (text("up 1\n"), "no metric there has a name of dcgm-exporter's"),
    ],
)
def test_an_answer_that_is_no_metrics_is_one_clear_line(answer: Answer, message: str) -> None:
    with answering(answer) as theirs, answering(text(line("DCGM_FI_DEV_GPU_TEMP"))) as ours:
        done = run("--against", theirs, "--ours", ours)
    assert isinstance(done.exception, GpuProfileError)
    assert message in str(done.exception)
    assert str(done.exception).startswith(f"--against {theirs}: ")
    assert "\n" not in str(done.exception)
    assert done.exception.exit_code == 1


def test_an_address_where_nobody_listens_is_one_clear_line() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        done = run("--against", url)
    assert str(done.exception) == f"--against {url}: cannot be read: [Errno 111] Connection refused"


def test_an_address_that_never_answers_is_given_up_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        done = run("--against", url, "--timeout", "0.1")
    assert str(done.exception) == f"--against {url}: no whole answer within 0.1 s"


def test_an_answer_that_never_ends_is_given_up_too() -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            while True:
                handler.wfile.write(b"# one more line\n")

    with answering(drip) as url:
        done = run("--against", url, "--timeout", "0.1")
    assert str(done.exception) == f"--against {url}: no whole answer within 0.1 s"


@pytest.mark.parametrize(
    "url",
    ["localhost:9400", "file:///etc/passwd", "http://", "", "ftp://host/metrics", "http://[::1", "http://h:99999"],
)
def test_what_is_no_http_address_is_the_users_mistake(url: str) -> None:
    done = run("--against", url)
    assert isinstance(done.exception, UsageError)
    assert "http://host:9400/metrics" in str(done.exception)
    assert done.exception.exit_code == 2


def test_a_name_and_a_password_in_the_address_are_used_and_never_shown() -> None:
    asked: list[str | None] = []

    def refuse(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.headers["Authorization"])
        text("who are you?", code=401)(handler)

    with answering(refuse) as url:
        done = run("--against", url.replace("http://", "http://ada:s%20cret@"))
    assert asked == ["Basic YWRhOnMgY3JldA=="]
    assert str(done.exception) == f"--against {url}: answers 401 Unauthorized"


def test_a_url_is_asked_for() -> None:
    assert run().exit_code == 2


def test_the_exporters_own_command_line_passes_the_verdict_on(capsys: pytest.CaptureFixture[str]) -> None:
    temperature, used = text(line("DCGM_FI_DEV_GPU_TEMP")), text(line("DCGM_FI_DEV_FB_USED"))
    with answering(temperature) as one, answering(used) as other:
        assert main(["conformance", "--against", one, "--ours", one]) == 0
        assert main(["conformance", "--against", one, "--ours", other]) == 1
        assert main(["conformance", "--against", "nowhere"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("gpu-profile-exporter: --against 'nowhere': not an address")
