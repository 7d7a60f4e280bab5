"""Grafana's dashboard 12239, "NVIDIA DCGM Exporter Dashboard", panel by panel over a simulated H100."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.nodes import busy, node_of
from support.programs import Prometheus, exporter, until

from gpu_profile.driver import simulated
from gpu_profile_exporter.naming.dcgm_fields import DEFAULT_FIELDS, measured

pytestmark = [
    pytest.mark.debian,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus and promtool"),
]
BOARD: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "dcgm" / "dashboard_12239.json").read_text())
NODE = node_of("H100 SXM") + busy(0.5)
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: dcgm
    static_configs: [{{targets: ["{target}"]}}]
"""
#: What a value of each unit can be on an H100 that is half busy.
PLAUSIBLE = {
    "celsius": (20, 100),
    "watt": (50, 800),
    "hertz": (2e8, 2.1e9),
    "percent": (1, 100),
    "decmbytes": (0, 82_000),
    "percentunit": (0, 1),
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    node = simulated.create(tmp_path_factory.mktemp("12239") / "node", NODE)
    with exporter("--driver", f"simulated:{node}", "--names", "dcgm", "--hostname", "node-7") as running:
        config = CONFIG.format(target=running.url.removeprefix("http://"))
        with Prometheus(tmp_path_factory.mktemp("12239") / "data", config=config) as server:
            until(lambda: len(server.query("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")) == 1, "the last panel's series")
            yield server


def variables(prometheus: Prometheus) -> dict[str, str]:
    """What Grafana fills in for "All": each value of the label, or'ed."""
    found = {}
    for name, query in BOARD["variables"].items():
        metric, label = query.removeprefix("label_values(").removesuffix(")").split(", ")
        values = sorted({row["metric"][label] for row in prometheus.query(metric)})
        assert values, query
        found[name] = "|".join(values)
    return found


def test_the_board_has_its_eight_panels() -> None:
    assert len(BOARD["panels"]) == 8


def test_its_variables_offer_the_instance_and_the_gpu(prometheus: Prometheus) -> None:
    found = variables(prometheus)
    assert found["gpu"] == "0"
    assert found["instance"].startswith("127.0.0.1:")


@pytest.mark.parametrize("panel", BOARD["panels"], ids=lambda panel: panel["title"])
def test_a_panel_shows_a_series_in_its_unit(prometheus: Prometheus, panel: dict[str, str]) -> None:
    query = panel["query"]
    for name, value in variables(prometheus).items():
        query = query.replace(f"${name}", value)
    assert "$" not in query
    (row,) = prometheus.query(query)
    low, high = PLAUSIBLE[panel["unit"]]
    assert low <= float(row["value"][1]) <= high
    if "(" not in query.split("{")[0]:
        assert row["metric"]["gpu"] == "0"


@pytest.mark.parametrize("label", ["Hostname", "hostname"])
def test_boards_that_select_by_either_spelling_of_the_host_go_on(prometheus: Prometheus, label: str) -> None:
    assert prometheus.query(f'max(DCGM_FI_DEV_POWER_USAGE{{{label}=~"node-7"}}) by ({label}, gpu, UUID)')


def test_a_prometheus_keeps_all_default_metrics_with_their_names_and_types(prometheus: Prometheus) -> None:
    expected = {field.name: field.kind for field in DEFAULT_FIELDS if measured(field.name)}

    def missing() -> set[str]:
        return expected.keys() - {row["metric"]["__name__"] for row in prometheus.query('{job="dcgm"}')}

    until(lambda: not missing(), f"series of all of {sorted(expected)}")
    told = {name: rows[0]["type"] for name, rows in prometheus.api("metadata").items()}
    assert {name: told[name] for name in expected if expected[name] == "gauge"} == {
        name: kind for name, kind in expected.items() if kind == "gauge"
    }
