import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from support.exporter import scrape, step_for
from support.nodes import HALF, node_of

from gpu_profile.catalogue import METRICS, Instrument, Metric
from gpu_profile.catalogue.allocation import ALLOCATION_METRICS
from gpu_profile.catalogue.http import HTTP_METRICS
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.metrics import REGION_METRICS, SPINNING
from gpu_profile.catalogue.push import PUSH_METRICS
from gpu_profile.catalogue.receive import RECEIVE_METRICS
from gpu_profile.catalogue.self_metrics import READER_CPU, READER_MEMORY, READER_RESTARTS
from gpu_profile.catalogue.signals import THROTTLES
from gpu_profile.driver import simulated
from gpu_profile.driver.grammar import open_driver
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock

GRAFANA = Path(__file__).parents[2] / "grafana"
BOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "gpu-profile.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [
    pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}".replace(" ", "_"))
    for panel in PANELS
    for target in panel["targets"]
]
RULE_FILES = sorted([*(GRAFANA / "alerts").glob("*.yaml"), *(GRAFANA / "rules").glob("*.yaml")])
RULES: list[dict[str, Any]] = [
    rule for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]
]
NAMED_RULES = [(rule.get("alert") or rule["record"], rule) for rule in RULES]
#: Labels that Prometheus adds to whatever it scrapes.
TARGET_LABELS = {"job", "instance"}
#: Units in Grafana's own ids, as far as the dashboard uses them.
UNITS = {"none", "percentunit", "watt", "joule", "bytes", "Bps", "celsius", "hertz", "s", "cps", "flops"}


def by_series_name() -> dict[str, Metric]:
    """Every series name that the catalogue publishes."""
    names = {}
    for metric in METRICS:
        histogram = metric.instrument is Instrument.HISTOGRAM
        for part in ("_bucket", "_sum", "_count") if histogram else ("",):
            names[metric.prometheus + part] = metric
    return names


PUBLISHED = by_series_name()


def labels_of(metric: Metric) -> set[str]:
    """The labels of a metric's series; those of received regions have their service's name too."""
    return {label(name) for name in metric.labels} | ({"service_name"} if metric in REGION_METRICS else set())


def grows(name: str) -> bool:
    return PUBLISHED[name].instrument in (Instrument.COUNTER, Instrument.HISTOGRAM)


def substituted(expr: str) -> str:
    """The query that Grafana would send with two GPUs chosen."""
    replaced = expr.replace("$__rate_interval", "1m").replace("$__range", "1h")
    return re.sub(r"\$[a-z]\w*", "(a|b)", replaced)


def nodes(node: Any, under: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every node of a parsed query with the nodes above it."""
    yield node, under
    for name in ("lhs", "rhs", "expr", "vector_selector"):
        child = getattr(node, name, None)
        if child is not None:
            yield from nodes(child, (*under, node))
    for child in getattr(node, "args", []):
        yield from nodes(child, (*under, node))


def selectors(expr: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    parsed = promql_parser.parse(substituted(expr))
    return ((node, under) for node, under in nodes(parsed) if isinstance(node, promql_parser.VectorSelector))


def functions(under: tuple[Any, ...]) -> set[str]:
    return {node.func.name for node in under if isinstance(node, promql_parser.Call)}


def is_growth(under: tuple[Any, ...]) -> bool:
    """Whether a counter is used for its growth; one that was not there an offset ago has grown from 0."""
    begins = (node.op for node in under if getattr(getattr(node, "rhs", None), "offset", None) is not None)
    return "unless" in map(str, begins) or bool(functions(under) & {"rate", "increase"})


def test_the_committed_files_are_what_the_catalogue_generates(tmp_path: Path) -> None:
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, GRAFANA / "generate.py", "--output", tmp_path], check=True, env=found)
    generated = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    committed = [path for name in ("dashboards", "alerts", "rules") for path in (GRAFANA / name).iterdir()]
    assert {path.relative_to(GRAFANA): path.read_text() for path in committed} == generated


def test_every_panel_has_an_id_and_a_title_of_its_own() -> None:
    for key in ("id", "title"):
        values = [panel[key] for panel in BOARD["panels"]]
        assert len(values) == len(set(values))


def test_every_panel_says_what_it_means_in_which_unit() -> None:
    for panel in PANELS:
        assert len(panel["description"]) > 40, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]


def test_panels_stay_within_the_grid_and_never_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        cells = set(itertools.product(range(grid["x"], grid["x"] + grid["w"]), range(grid["y"], grid["y"] + grid["h"])))
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_data_source_is_a_variable_that_starts_as_prometheus() -> None:
    first = BOARD["templating"]["list"][0]
    assert (first["name"], first["type"], first["current"]["value"]) == ("datasource", "datasource", "prometheus")
    askers = [*PANELS, *BOARD["templating"]["list"][1:], *(target for panel in PANELS for target in panel["targets"])]
    assert all(asker["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for asker in askers)


def test_every_variable_that_a_query_uses_exists() -> None:
    built_in = {"__rate_interval", "__range", "__all"}
    known = {variable["name"] for variable in BOARD["templating"]["list"]} | built_in
    assert set(re.findall(r"\$\{?([a-z_]\w*)\}?", json.dumps(BOARD))) <= known


def test_a_gpu_is_chosen_by_its_uuid_and_shown_by_its_index_name_and_node() -> None:
    variable = next(each for each in BOARD["templating"]["list"] if each["name"] == "gpu")
    # Grafana matches the expression against the answer's labels in alphabetical order.
    answer = '{hw_id="GPU-1",hw_name="NVIDIA H100",index="0",instance="n:9400",title="0 NVIDIA H100 n:9400 "} 1 1700'
    found = re.search(variable["regex"].strip("/").replace("(?<", "(?P<"), answer)
    assert found
    assert found.groupdict() == {"value": "GPU-1", "text": "0 NVIDIA H100 n:9400 "}
    assert re.fullmatch(r"query_result\((.+)\)", variable["query"]["query"])


@pytest.mark.parametrize("expr", QUERIES)
def test_a_query_uses_only_names_and_labels_of_the_catalogue(expr: str) -> None:
    found = list(selectors(expr))
    assert found
    for selector, _ in found:
        metric = PUBLISHED[selector.name]
        allowed = labels_of(metric) | TARGET_LABELS
        assert {matcher.name for matcher in selector.matchers.matchers} <= allowed


@pytest.mark.parametrize("expr", QUERIES)
def test_counters_and_only_counters_are_shown_as_growth(expr: str) -> None:
    for selector, under in selectors(expr):
        assert is_growth(under) == grows(selector.name), selector.name
    assert set(re.findall(r"\[([^\]]+)\]", expr)) <= {"$__rate_interval", "$__range"}


@pytest.mark.parametrize("rule", [pytest.param(rule, id=name) for name, rule in NAMED_RULES])
def test_a_rule_uses_only_names_and_labels_of_the_catalogue(rule: dict[str, Any]) -> None:
    known = set(TARGET_LABELS)
    for selector, under in selectors(rule["expr"]):
        if selector.name == "up":
            continue
        metric = PUBLISHED[selector.name]
        labels = labels_of(metric)
        assert {matcher.name for matcher in selector.matchers.matchers} <= labels
        assert is_growth(under) == grows(selector.name)
        known |= labels
    assert set(re.findall(r"\$labels\.(\w+)", json.dumps(rule))) <= known


@pytest.fixture(scope="module")
def by_default(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The labels of all series under the default settings of two GPUs, one with an error, and of one that is cut."""
    directory, clock = tmp_path_factory.mktemp("default"), FakeClock()
    counters = [f"NVML_FI_DEV_{row.source.removeprefix('field ')}" for row in THROTTLES]
    lacking = f"unsupported = {json.dumps(counters)}\n"  # so they are integrated
    xid = '[[fault]]\nkind = "xid"\nxid = 79\nfrom_s = 3\n'
    simulated.create(
        directory, node_of("H100 SXM") + node_of("A10G") + lacking + node_of("H100 SXM") + HALF + xid, clock=clock
    )
    sampler = Sampler(lambda: open_driver(f"simulated:{directory}", clock=clock), clock=clock)
    step_for(sampler, clock, 12)
    families = text_string_to_metric_families(scrape(sampler, clock))
    found = [{"__name__": one.name, **one.labels} for family in families for one in family.samples]
    sampler.stop()
    return found


#: What devices do not tell: metrics of regions and holders, of the push, the listener and the readers' processes, and
#: what their supervisor concludes (the dashboard's integration test asks for it).
ELSEWHERE = {
    SPINNING,
    *REGION_METRICS,
    *ALLOCATION_METRICS,
    *PUSH_METRICS,
    *RECEIVE_METRICS,
    *HTTP_METRICS,
    READER_CPU,
    READER_MEMORY,
    READER_RESTARTS,
}


@pytest.mark.parametrize("expr", [*QUERIES, *(pytest.param(rule["expr"], id=name) for name, rule in NAMED_RULES)])
def test_all_that_is_queried_of_devices_is_published_by_default(expr: str, by_default: list[dict[str, str]]) -> None:
    for selector, _ in selectors(expr):
        if selector.name == "up" or PUBLISHED[selector.name] in ELSEWHERE:
            continue
        published = [labels for labels in by_default if labels["__name__"] == selector.name]
        assert published, selector.name
        # Of each kind that a query names, such as a sensor or a reason, there is a series.
        kinds = [m for m in selector.matchers.matchers if m.name not in {"hw_id", "instance", "nvidia_gpu_xid"}]
        for matcher in kinds:
            assert set(matcher.value.split("|")) <= {labels[matcher.name] for labels in published}, matcher
