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
from gpu_profile.catalogue.serving import SERVING_METRICS
from gpu_profile.catalogue.signals import THROTTLES
from gpu_profile.driver import simulated
from gpu_profile.driver.grammar import open_driver
from gpu_profile.regimes.palette import COLOURS
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.naming.schemes import choose

GRAFANA = Path(__file__).parents[2] / "grafana"
RUNBOOK = (GRAFANA.parent / "docs" / "runbook.md").read_text()
BOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))
}
PANELS: dict[str, list[dict[str, Any]]] = {
    name: [panel for panel in board["panels"] if panel["type"] != "row"] for name, board in BOARDS.items()
}
#: A query that several dashboards share is checked once.
EXPRESSIONS: dict[str, str] = {
    target["expr"]: f"{name}-{panel['title']}-{target['refId']}".replace(" ", "_")
    for name, panels in PANELS.items()
    for panel in panels
    for target in panel["targets"]
}
QUERIES = [pytest.param(expr, id=name) for expr, name in EXPRESSIONS.items()]
RULE_FILES = sorted([*(GRAFANA / "alerts").glob("*.yaml"), *(GRAFANA / "rules").glob("*.yaml")])
RULES: list[dict[str, Any]] = [
    rule for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]
]
NAMED_RULES = [(rule.get("alert") or rule["record"], rule) for rule in RULES]
#: Labels that Prometheus, or its configuration, adds to all that it scrapes.
TARGET_LABELS = {"job", "instance", "cluster", "namespace", "version"}
#: Series of Prometheus itself, and of each process that it scrapes.
BUILT_IN = {"up", "ALERTS", "process_start_time_seconds"}
#: Series of other rules. Inputs, such as prices, are among them.
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
#: Series of a group that is off by default: their alert needs `--collect nvlink-detail`.
REQUESTED = {"nvidia_gpu_nvlink_link_state"}
#: Units in Grafana's own ids, as far as the dashboards use them.
UNITS = {
    "none",
    "percentunit",
    "watt",
    "joule",
    "bytes",
    "Bps",
    "celsius",
    "hertz",
    "s",
    "cps",
    "flops",
    "short",
    "dateTimeAsIso",
}


def by_series_name() -> dict[str, Metric]:
    """Every series name that the catalogue publishes."""
    names = {}
    for metric in METRICS:
        histogram = metric.instrument is Instrument.HISTOGRAM
        for part in ("_bucket", "_sum", "_count") if histogram else ("",):
            names[metric.prometheus + part] = metric
    return names


PUBLISHED = by_series_name()
OF_REGIONS = {name for name, metric in PUBLISHED.items() if metric in REGION_METRICS}


def labels_of(metric: Metric) -> set[str]:
    """The labels of a metric's series; those of received regions have their service's name too."""
    return {label(name) for name in metric.labels} | ({"service_name"} if metric in REGION_METRICS else set())


def grows(name: str) -> bool:
    return name not in BUILT_IN and PUBLISHED[name].instrument in (Instrument.COUNTER, Instrument.HISTOGRAM)


def substituted(expr: str) -> str:
    """The query that Grafana would send with two GPUs chosen."""
    replaced = expr.replace("$__rate_interval", "1m").replace("$__range_s", "3600").replace("$__range", "1h")
    replaced = replaced.replace("$price", "2")
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
    """Whether a counter is used for its growth.

    One that was not there an offset ago has grown from 0, and so has that of a process that started a moment ago.
    """
    if any(str(node.op) == "and" and "process_start_time" in str(node.rhs) for node in under if hasattr(node, "op")):
        return True
    begins = (node.op for node in under if getattr(getattr(node, "rhs", None), "offset", None) is not None)
    return "unless" in map(str, begins) or bool(functions(under) & {"rate", "increase"})


def test_the_committed_files_are_what_the_catalogue_generates(tmp_path: Path) -> None:
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, GRAFANA / "generate.py", "--output", tmp_path], check=True, env=found)
    generated = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    committed = [path for name in ("dashboards", "alerts", "rules") for path in (GRAFANA / name).iterdir()]
    assert {path.relative_to(GRAFANA): path.read_text() for path in committed} == generated


def variables(name: str) -> dict[str, dict[str, Any]]:
    """The variables of a dashboard by name."""
    return {variable["name"]: variable for variable in BOARDS[name]["templating"]["list"]}


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_has_an_id_and_a_title_of_its_own(name: str) -> None:
    for key in ("id", "title"):
        values = [panel[key] for panel in BOARDS[name]["panels"]]
        assert len(values) == len(set(values))


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_says_what_it_shows_what_to_conclude_and_what_to_do(name: str) -> None:
    for panel in PANELS[name]:
        parts = re.fullmatch(r"(.+)\n\n\*\*Conclude:\*\* (.+)\n\n\*\*Do:\*\* (.+)", panel["description"])
        assert parts, panel["title"]
        assert all(part.endswith(".") for part in parts.groups()), panel["title"]
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in UNITS, panel["title"]
        assert len(defaults["noValue"]) > 15, panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_stay_within_the_grid_and_never_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARDS[name]["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        cells = set(itertools.product(range(grid["x"], grid["x"] + grid["w"]), range(grid["y"], grid["y"] + grid["h"])))
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("name", BOARDS)
def test_the_first_row_fits_above_the_fold(name: str) -> None:
    rows = [panel["gridPos"]["y"] for panel in BOARDS[name]["panels"] if panel["type"] == "row"]
    assert rows[0] == 0
    assert rows[1] <= 10


@pytest.mark.parametrize("name", BOARDS)
def test_the_data_source_is_a_variable_that_starts_as_prometheus(name: str) -> None:
    first, *others = BOARDS[name]["templating"]["list"]
    assert (first["name"], first["type"], first["current"]["value"]) == ("datasource", "datasource", "prometheus")
    askers = [*PANELS[name], *(variable for variable in others if variable["type"] == "query")]
    askers += [target for panel in PANELS[name] for target in panel["targets"]]
    askers += BOARDS[name]["annotations"]["list"]
    assert all(asker["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for asker in askers)


@pytest.mark.parametrize("name", BOARDS)
def test_every_variable_that_a_query_uses_exists(name: str) -> None:
    built_in = {"__rate_interval", "__range", "__range_s", "__all", "__url_time_range", "__data", "__field"}
    used = set(re.findall(r"\$\{?([a-z_]\w*)", json.dumps(BOARDS[name])))
    assert used <= variables(name).keys() | built_in


@pytest.mark.parametrize("name", BOARDS)
def test_all_of_a_variable_also_matches_series_without_the_label(name: str) -> None:
    # The GPUs of a training job are the exception: there “All” is the list of them.
    exempt = {"gpu"} if name == "training" else set()
    for variable in (variables(name)[key] for key in variables(name).keys() - exempt):
        if variable.get("includeAll"):
            assert variable["allValue"] == ".*", variable["name"]


def links(value: Any) -> Iterator[dict[str, Any]]:
    """Every link from a value to another dashboard, however deep."""
    if isinstance(value, dict):
        if str(value.get("url", "")).startswith("/d/"):
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from links(each)


def test_dashboards_lead_to_each_other_and_back_with_variables_that_exist_there() -> None:
    by_uid = {board["uid"]: name for name, board in BOARDS.items()}
    ways = set()
    for name, panels in PANELS.items():
        for link in links(panels):
            uid, _, query = link["url"].removeprefix("/d/").partition("?")
            ways.add((name, by_uid[uid]))
            assert set(re.findall(r"var-(\w+)=", query)) <= variables(by_uid[uid]).keys()
            assert {"${__url_time_range}", "${cluster:queryparam}"} <= set(query.split("&"))
        (menu,) = BOARDS[name]["links"]
        assert menu["tags"] == BOARDS[name]["tags"] == ["gpu-profile"]
        assert menu["includeVars"]
        assert menu["keepTime"]
    assert {("fleet", "node"), ("node", "gpu"), ("gpu", "regions"), ("regions", "gpu"), ("fleet", "regions")} <= ways
    assert ("training", "gpu") in ways


@pytest.mark.parametrize("name", BOARDS)
def test_a_link_from_a_table_reads_columns_of_that_table(name: str) -> None:
    for panel in PANELS[name]:
        if panel["type"] == "table" and list(links(panel)):
            renamed = panel["transformations"][-1]["options"]["renameByName"]
            used = set(re.findall(r"__data\.fields\.(\w+)", json.dumps(panel)))
            assert used <= set(renamed.values()), panel["title"]


def test_a_regime_has_the_same_colour_on_every_dashboard() -> None:
    expected = {str(regime): colour.either for regime, colour in COLOURS.items()}
    coloured = [panel for panels in PANELS.values() for panel in panels if "regime" in panel["title"].lower()]
    assert len(coloured) >= 5
    for panel in coloured:
        fixed = {
            override["matcher"]["options"]: change["value"]["fixedColor"]
            for override in panel["fieldConfig"]["overrides"]
            for change in override["properties"]
            if change["id"] == "color" and change["value"]["mode"] == "fixed"
        }
        assert fixed == expected, panel["title"]


#: The labels of a region that a dashboard of programs chooses by.
OF_PROGRAMS = {
    "regions": {"cluster", "namespace", "job", "service_name", "version", "region"},
    "training": {"cluster", "namespace", "job", "region"},
}


@pytest.mark.parametrize("name", OF_PROGRAMS)
def test_queries_of_regions_choose_by_every_label_and_keep_jobs_apart(name: str) -> None:
    for panel in PANELS[name]:
        for target in panel["targets"]:
            found = [selector for selector, _ in selectors(target["expr"]) if selector.name in OF_REGIONS]
            for selector in found:
                assert {matcher.name for matcher in selector.matchers.matchers} >= OF_PROGRAMS[name], panel["title"]
            if found and "{{region}}" in target["legendFormat"]:
                assert re.search(r"by \(cluster, namespace, job, (service_name, )?version, region", target["expr"])


def test_a_gpu_is_chosen_by_its_uuid_and_shown_by_its_index_name_and_node() -> None:
    for name in ("gpu", "trust"):
        variable = variables(name)["gpu"]
        # Grafana matches the expression against the answer's labels in alphabetical order.
        answer = '{hw_id="GPU-1",hw_name="NVIDIA H100",index="0",instance="n:9400",title="0 NVIDIA H100 n:9400 "} 1 1'
        found = re.search(variable["regex"].strip("/").replace("(?<", "(?P<"), answer)
        assert found
        assert found.groupdict() == {"value": "GPU-1", "text": "0 NVIDIA H100 n:9400 "}
        assert re.fullmatch(r"query_result\((.+)\)", variable["query"]["query"])


@pytest.mark.parametrize("expr", QUERIES)
def test_a_query_uses_only_names_and_labels_of_the_catalogue(expr: str) -> None:
    found = list(selectors(expr))
    assert found
    for selector, _ in found:
        allowed = TARGET_LABELS if selector.name in BUILT_IN else labels_of(PUBLISHED[selector.name]) | TARGET_LABELS
        assert {matcher.name for matcher in selector.matchers.matchers} <= allowed


def test_no_query_divides_a_regions_energy_that_may_be_uncertain() -> None:
    divided = [expr for expr in EXPRESSIONS if "region_energy_joules_total" in expr and " / " in expr]
    assert divided
    assert [expr for expr in divided if "region_energy_uncertain_joules_total" not in expr] == []


@pytest.mark.parametrize("expr", QUERIES)
def test_counters_and_only_counters_are_shown_as_growth(expr: str) -> None:
    for selector, under in selectors(expr):
        assert is_growth(under) == grows(selector.name), selector.name
    windows = {"$__rate_interval", "$__range", "$__range:$__rate_interval"}
    assert set(re.findall(r"\[([^\]]+)\]", expr)) <= windows


@pytest.mark.parametrize("rule", [pytest.param(rule, id=name) for name, rule in NAMED_RULES])
def test_a_rule_uses_only_names_and_labels_of_the_catalogue(rule: dict[str, Any]) -> None:
    known = set(TARGET_LABELS)
    for selector, under in selectors(rule["expr"]):
        if selector.name in BUILT_IN | RECORDED:
            continue
        metric = PUBLISHED[selector.name]
        labels = labels_of(metric)
        assert {matcher.name for matcher in selector.matchers.matchers} <= labels
        assert is_growth(under) == grows(selector.name)
        known |= labels
    assert set(re.findall(r"\$labels\.(\w+)", json.dumps(rule))) <= known


@pytest.mark.parametrize("rule", [pytest.param(rule, id=name) for name, rule in NAMED_RULES if "alert" in rule])
def test_the_runbook_marks_alerts_that_cannot_fire_under_the_names_of_dcgm_exporter(rule: dict[str, Any]) -> None:
    names = choose("dcgm")
    read = {selector.name for selector, _ in selectors(rule["expr"])} - BUILT_IN - OF_REGIONS
    works = all(names.series(PUBLISHED[name], {}) for name in read)
    section = RUNBOOK.partition(f"### {rule['alert']}\n")[2].partition("\n- ")[0]
    assert ("not with `--names dcgm`" in section) is not works


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
    *SERVING_METRICS,
    *HTTP_METRICS,
    READER_CPU,
    READER_MEMORY,
    READER_RESTARTS,
}


@pytest.mark.parametrize("expr", [*QUERIES, *(pytest.param(rule["expr"], id=name) for name, rule in NAMED_RULES)])
def test_all_that_is_queried_of_devices_is_published_by_default(expr: str, by_default: list[dict[str, str]]) -> None:
    for selector, _ in selectors(expr):
        if selector.name in {*BUILT_IN, *REQUESTED, *RECORDED} or PUBLISHED[selector.name] in ELSEWHERE:
            continue
        published = [labels for labels in by_default if labels["__name__"] == selector.name]
        assert published, selector.name
        # Of each kind that a query names, such as a sensor or a reason, there is a series.
        chosen = {"hw_id", "nvidia_gpu_xid", *TARGET_LABELS}
        kinds = [m for m in selector.matchers.matchers if m.name not in chosen]
        for matcher in kinds:
            assert set(matcher.value.split("|")) <= {labels[matcher.name] for labels in published}, matcher
