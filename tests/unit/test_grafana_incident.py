"""The first row of the dashboards in an incident: what a real exporter publishes, by the expressions of the panels."""

import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.exporter import scrape, step_for
from support.nodes import node_of

from gpu_profile.driver import simulated
from gpu_profile.driver.grammar import open_driver
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock

BOARDS = Path(__file__).parents[2] / "grafana" / "dashboards"
STEP_S, SCRAPES = 4, 6
LOST, BROKEN = 2, 5
#: One of eight GPUs is lost after 9 s, which the driver reports as XID 79, and another reports XID 48 after 11 s.
INCIDENT = f"""
[[fault]]
kind = "gpu_lost"
device = {LOST}
from_s = 9
[[fault]]
kind = "xid"
xid = 48
device = {BROKEN}
from_s = 11
"""
TARGET = 'job="gpu", instance="n:9400", cluster="c"'


def expression(board: str, title: str, column: str = "") -> tuple[dict[str, Any], str]:
    """A panel, and its first query, or that of a column of its table, with everything chosen."""
    panels = json.loads((BOARDS / f"{board}.json").read_text())["panels"]
    (panel,) = (panel for panel in panels if panel["title"] == title)
    ref = "A"
    if column:
        titles = panel["transformations"][-1]["options"]["renameByName"]
        (ref,) = (field.removeprefix("Value #") for field, shown in titles.items() if shown == column)
    (expr,) = (target["expr"] for target in panel["targets"] if target["refId"] == ref)
    expr = expr.replace("$__rate_interval", "12s").replace("$__range", "20s")
    return panel, re.sub(r"\$[a-z]\w*", ".*", expr)


def colour(panel: dict[str, Any], text: str) -> str:
    """The colour that Grafana gives this text: that of the first expression that matches."""
    for mapping in panel["fieldConfig"]["defaults"]["mappings"]:
        if re.search(mapping["options"]["pattern"].strip("/"), text):
            return str(mapping["options"]["result"]["color"])
    return ""


class Recorded(dict[str, list[str]]):
    """Values of each series by the number of the scrape, as promtool takes them; `_` where it was absent."""

    def __init__(self, directory: Path, scenario: str) -> None:
        clock, rows = FakeClock(), defaultdict[str, dict[int, float]](dict)
        simulated.create(directory, scenario, clock=clock)
        sampler = Sampler(lambda: open_driver(f"simulated:{directory}", clock=clock), clock=clock, interval_s=1.0)
        for i in range(SCRAPES):
            step_for(sampler, clock, STEP_S)
            for family in text_string_to_metric_families(scrape(sampler, clock)):
                for one in family.samples:
                    labels = ", ".join(f'{name}="{value}"' for name, value in one.labels.items())
                    rows[f"{one.name}{{{TARGET}{', ' if labels else ''}{labels}}}"][i] = one.value
        sampler.stop()
        rows[f"up{{{TARGET}}}"] = dict.fromkeys(range(SCRAPES), 1.0)
        for name, values in rows.items():
            self[name] = [repr(values[i]) if i in values else "_" for i in range(SCRAPES)]

    def uuid(self, index: int) -> str:
        """The UUID of a GPU of the node."""
        (found,) = {
            match[1]
            for name in self
            if name.startswith("gpu_profile_device_info") and f' index="{index}"' in name
            for match in [re.search(r'hw_id="([^"]+)"', name)]
            if match
        }
        return found


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("incident"), node_of(*8 * ["H100 SXM"]) + INCIDENT)


def promtool(directory: Path, recorded: dict[str, list[str]], expected: dict[str, list[dict[str, Any]]]) -> None:
    """Let Prometheus' own engine compare the answers of expressions at the last scrape."""
    series = [{"series": name, "values": " ".join(values)} for name, values in recorded.items()]
    at = f"{(SCRAPES - 1) * STEP_S}s"
    asked = [{"expr": expr, "eval_time": at, "exp_samples": samples} for expr, samples in expected.items()]
    test = {"interval": f"{STEP_S}s", "input_series": series, "promql_expr_test": asked}
    path = directory / "test.json"
    path.write_text(json.dumps({"evaluation_interval": f"{STEP_S}s", "tests": [test]}))
    run = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def twice(recorded: Recorded) -> dict[str, list[str]]:
    """The same by a second scrape job of the exporter, which sees a new pod after the third scrape."""
    made = dict(recorded)
    for name, values in recorded.items():
        again = name.replace('job="gpu"', 'job="again"')
        made[again] = [*values[:3], "stale"]
        made[again.replace('job="again"', 'job="again", pod="b"')] = ["_"] * 3 + values[3:]
    return made


def count(part: int, whole: int) -> list[dict[str, Any]]:
    return [{"labels": f'{{part="{part}", whole="{whole}", text="{part} of {whole}"}}', "value": 1}]


@pytest.mark.debian
@pytest.mark.parametrize("board", ["fleet", "node", "gpu", "training"])
def test_in_an_incident_the_first_row_is_red_says_how_many_of_how_many_and_why(
    board: str, incident: Recorded, tmp_path: Path
) -> None:
    counts = {"GPUs lost": (1, 8), "GPUs with XID errors": (2, 8), "GPUs with bad memory": (0, 8)}
    if board != "training":
        counts["Nodes silent"] = (0, 1)
    expected = {}
    for title, (part, whole) in counts.items():
        panel, expr = expression(board, title)
        expected[expr] = count(part, whole)
        assert colour(panel, f"{part} of {whole}") == ("red" if part else "green")
    table, reasons = expression(board, "What is wrong, and where")
    expected[reasons] = [
        {
            "labels": f'{{cluster="c", instance="n:9400", hw_id="{incident.uuid(index)}", index="{index}", '
            f'hw_name="NVIDIA H100 80GB HBM3", reason="{reason}"}}',
            "value": value,
        }
        for index, reason, value in ((LOST, "does not answer", 0), (LOST, "XID 79", 1), (BROKEN, "XID 48", 1))
    ]
    assert "Memory error of two bits" in json.dumps(table["fieldConfig"])
    promtool(tmp_path, twice(incident), expected)


@pytest.mark.debian
def test_a_second_scrape_job_of_an_exporter_changes_no_sum(incident: Recorded, tmp_path: Path) -> None:
    expected = {}
    for board, title in (
        ("fleet", "GPUs slowed by faults"),
        ("fleet", "Idle GPU time"),
        ("fleet", "Energy while idle"),
        ("fleet", "Power of the fleet"),
        ("node", "Mean utilisation"),
        ("node", "Power"),
        ("trust", "GPUs with gaps"),
    ):
        _, both = expression(board, title)
        one = both.replace("{cluster", '{job="gpu", cluster')
        assert one != both
        expected[f"count({both}) / count({one})"] = [{"labels": "{}", "value": 1}]
        if title in ("Idle GPU time", "Energy while idle", "Power of the fleet", "Power"):
            expected[f"round(sum({both}) / sum({one}), 0.001)"] = [{"labels": "{}", "value": 1}]
        if title == "Idle GPU time":
            # The growth between the scrapes of two pods is lost, and no other.
            replaced = both.replace("{cluster", '{job="again", cluster')
            expected[f"sum({replaced}) / sum({one}) > bool 0.7"] = [{"labels": "{}", "value": 1}]
    promtool(tmp_path, twice(incident), expected)


@pytest.mark.debian
def test_a_silent_node_is_counted_and_named(tmp_path: Path) -> None:
    target = TARGET.replace("n:9400", "m:9400")
    series = {
        f"up{{{TARGET}}}": ["1", "1", "0", "0", "0", "0"],
        f"gpu_profile_build_info{{{TARGET}}}": ["1", "1", "stale"],
        f"up{{{target}}}": ["1"] * SCRAPES,
        f"gpu_profile_build_info{{{target}}}": ["1"] * SCRAPES,
        f"gpu_profile_driver_up{{{target}}}": ["0"] * SCRAPES,
    }
    _, silent = expression("fleet", "Nodes silent")
    _, wrong = expression("fleet", "What is wrong, and where")
    rows = [
        {"labels": f'{{cluster="c", instance="{instance}", reason="{reason}"}}', "value": 0}
        for instance, reason in (("n:9400", "the exporter cannot be scraped"), ("m:9400", "the driver does not answer"))
    ]
    promtool(tmp_path, series, {silent: count(2, 2), wrong: rows})


@pytest.mark.debian
def test_a_gpu_with_a_mig_instance_that_is_held_is_allocated(tmp_path: Path) -> None:
    gpus = {f'gpu_profile_device_info{{{TARGET}, hw_id="GPU-{i}", kind="gpu"}}' for i in (1, 2)}
    up = {f'gpu_profile_device_up{{{TARGET}, hw_id="{hw_id}"}}' for hw_id in ("GPU-1", "GPU-2", "MIG-1", "MIG-2")}
    cut = {f'gpu_profile_device_info{{{TARGET}, hw_id="MIG-{i}", kind="mig", hw_parent="GPU-1"}}' for i in (1, 2)} | {
        f'gpu_profile_allocation_info{{{TARGET}, hw_id="MIG-{i}", k8s_pod_name="{i}"}}' for i in (1, 2)
    }
    _, allocated = expression("fleet", "GPUs allocated")
    promtool(tmp_path, dict.fromkeys(gpus | up | cut, ["1"] * SCRAPES), {allocated: count(1, 2)})


@pytest.mark.debian
def test_the_fleet_names_the_node_with_the_lost_gpu(incident: Recorded, tmp_path: Path) -> None:
    _, lost = expression("fleet", "Nodes, the most expensive idle time first", "Lost")
    promtool(tmp_path, incident, {lost: [{"labels": '{cluster="c", instance="n:9400"}', "value": 1}]})


@pytest.mark.debian
def test_what_no_gpu_reports_has_no_count_instead_of_0(incident: Recorded, tmp_path: Path) -> None:
    _, spinning = expression("fleet", "GPUs spinning")
    promtool(tmp_path, incident, {spinning: []})
