import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from support.programs import free_port

from gpu_profile.driver.simulated import create
from gpu_profile.driver.simulated.scenario import DEFAULT, parse

GRAFANA = Path(__file__).parents[2] / "grafana"
BOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))
}
#: A query that several dashboards share is asked once.
QUERIES = {
    query["expr"]: f"{name}-{asker.get('title') or asker['name']}-{query.get('refId', '')}".replace(" ", "_")
    for name, board in BOARDS.items()
    for asker in (*board["panels"], *board["annotations"]["list"])
    for query in asker.get("targets", [asker] if "expr" in asker else [])
}
VARIABLES = {
    f"{name}-{variable['name']}": variable["query"]["query"]
    for name, board in BOARDS.items()
    for variable in board["templating"]["list"]
    if variable["type"] == "query" and variable["query"]["query"].startswith("label_values")
}
GPU = next(each for each in BOARDS["gpu"]["templating"]["list"] if each["name"] == "gpu")
DEADLINE_S = 90.0
#: A program whose operations are counted and whose kernels are profiled, on the port that it is given.
COUNTED = """
import sys, time
from gpu_profile import configure, process, region, serve_metrics
from gpu_profile.regimes.kernel_work import KernelWork
from gpu_profile.regimes.operation import RegionOperation
from gpu_profile.regimes.evidence import Evidence
work = KernelWork(
    evidence=Evidence("kernels", {"busy": 0.6, "work": 0.5, "host_wait": 0.4}, 40, 1.0),
    kernels=40, kernel_ns=30_000_000,
    span_ns=50_000_000, busy_ns=30_000_000, host_wait_ns=20_000_000, copies=1, copy_bytes=1 << 20, copy_ns=100_000,
    communication_ns=5_000_000,
)
configure(backend="none")
serve_metrics(int(sys.argv[1]))
while True:
    with region("matmul") as execution:
        time.sleep(0.05)
        execution.operation = RegionOperation(flops=2 * 1024**3, bytes=12 * 1024**2, precision="fp32")
    process.current.joiner.take_kernels("matmul", work)
"""

#: A program of another kind, which sends a span a tenth of a second to the port that it is given.
SENT = """
import json, secrets, sys, time
from urllib.request import Request, urlopen
while True:
    time.sleep(0.1)
    end = time.time_ns()
    span = {"traceId": secrets.token_hex(16), "spanId": secrets.token_hex(8), "name": "GET /x", "kind": 2,
            "startTimeUnixNano": str(end - 50_000_000), "endTimeUnixNano": str(end)}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}
    url = f"http://127.0.0.1:{sys.argv[1]}/v1/traces"
    try:
        urlopen(Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}), timeout=5).close()
    except OSError:
        pass
"""

#: The metrics of an LLM engine's costs, which take minutes to estimate, with values that grow: by the catalogue, on the
#: port and for the GPU that it is given.
SERVED = """
import itertools, sys, time
from prometheus_client import REGISTRY, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from gpu_profile.catalogue.metric import Instrument, label
from gpu_profile.catalogue.serving import SERVING_METRICS
VALUES = {"engine": ["sglang"], "tenant": ["chat", "rag"], "phase": ["prefill", "decode"], "model": ["m"],
          "reason": ["idle", "iterations_lost"], "hw.id": [sys.argv[2]]}
class Served:
    def collect(self):
        for metric in SERVING_METRICS:
            kind = CounterMetricFamily if metric.instrument is Instrument.COUNTER else GaugeMetricFamily
            family = kind(metric.prometheus.removesuffix("_total"), metric.brief, labels=map(label, metric.labels))
            for values in itertools.product(*(VALUES[each] for each in metric.labels)):
                family.add_metric(values, time.monotonic() * 10 if kind is CounterMetricFamily else 1)
            yield family
REGISTRY.register(Served())
start_http_server(int(sys.argv[1]), "127.0.0.1")
time.sleep(3600)
"""

pytestmark = pytest.mark.debian


def substituted(expr: str) -> str:
    """The query that Grafana would send with everything chosen, at a scrape interval of a second."""
    if "_uncertain_" in expr:
        # Whether anything is uncertain is not for this test to say: the series are there, often at 0.
        expr = re.sub(r" > 0(?![.])", "", expr).replace("> 0.05 *", "> +Inf + 0 *")
    for macro, value in (("rate_interval", "10s"), ("range_s", "12"), ("range", "12s")):
        expr = expr.replace(f"$__{macro}", value)
    return re.sub(r"\$[a-z]\w*", ".*", expr.replace("$price", "2"))


@contextmanager
def running(log: Path, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


class Prometheus:
    """A running Prometheus, asked over HTTP; it fails with the logs if one of the processes behind it has ended."""

    def __init__(self, url: str, behind: dict[Path, subprocess.Popen[bytes]]) -> None:
        self.url = url
        self.behind = behind

    def get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return result

    def eventually(self, what: str, ask: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                found = ask()
            except (URLError, ConnectionError):
                found = None
            ended = [log for log, process in self.behind.items() if process.poll() is not None]
            if found:
                return found
            if ended or time.monotonic() > deadline:
                logs = "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in ended or self.behind)
                pytest.fail(f"{what}: nothing in {DEADLINE_S:.0f} s\n{logs}")
            time.sleep(0.25)


def job(name: str, port: int, **labels: str) -> dict[str, Any]:
    """A scrape job with the labels that a deployment adds."""
    labels["cluster"] = "here"
    return {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": labels}]}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus, scraping an exporter on a simulated node, which receives what SENT sends, the demo's service on the
    same node, COUNTED and SERVED."""
    here = tmp_path_factory.mktemp("dashboard")
    # On a slow machine the exporter may miss the first errors.
    errors = "".join(f'[[fault]]\nkind = "xid"\nxid = 63\nfrom_s = {second}\n' for second in range(10, 180, 10))
    node = create(here / "node", DEFAULT + errors)
    gpu = parse(DEFAULT).gpus[0].uuid
    exporter, service, counted, served, web, received = (free_port() for _ in range(6))
    jobs = here / "jobs"
    jobs.mkdir()
    (jobs / "0").write_text("4711\n")
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for kind in ("alerts", "rules") for path in (GRAFANA / kind).glob("*.yaml")],
        "scrape_configs": [
            job("exporter", exporter),
            job("service", service, namespace="web", version="1.4.0"),
            job("counted", counted, namespace="web", version="2.0.0"),
            job("served", served),
        ],
    }
    (here / "prometheus.json").write_text(json.dumps(configuration))
    python = (sys.executable, "-m")
    demo = ("gpu_profile_exporter.demo.service", "--directory", node, "--metrics", str(service))
    own = ("gpu_profile_exporter", "--driver", f"simulated:{node}", "--listen", f"127.0.0.1:{exporter}")
    # Nobody listens there: the panel of failed pushes has something to show.
    nobody = f"http://127.0.0.1:{free_port()}"
    push = ("--otlp-endpoint", nobody, "--otlp-interval", "1")
    receive = (
        "--attribution-job-mapping-dir",
        jobs,
        "--timeline",
        here / "timeline",
        "--receive-http",
        f"127.0.0.1:{received}",
        "--forward",
        nobody,
    )
    server = (
        "prometheus",
        f"--config.file={here / 'prometheus.json'}",
        f"--storage.tsdb.path={here / 'data'}",
        f"--web.listen-address=127.0.0.1:{web}",
    )
    with ExitStack() as stack:
        behind = {
            here / "service.log": stack.enter_context(running(here / "service.log", *python, *demo)),
            here / "counted.log": stack.enter_context(
                running(here / "counted.log", sys.executable, "-c", COUNTED, str(counted))
            ),
            here / "served.log": stack.enter_context(
                running(here / "served.log", sys.executable, "-c", SERVED, str(served), gpu)
            ),
            here / "exporter.log": stack.enter_context(running(here / "exporter.log", *python, *own, *push, *receive)),
            here / "sent.log": stack.enter_context(
                running(here / "sent.log", sys.executable, "-c", SENT, str(received))
            ),
            here / "prometheus.log": stack.enter_context(running(here / "prometheus.log", *server)),
        }
        asked = Prometheus(f"http://127.0.0.1:{web}", behind)
        asked.eventually("every target up", lambda: len(asked.query("up == 1")) == 4)
        yield asked


@pytest.mark.parametrize("expr", [pytest.param(expr, id=name) for expr, name in QUERIES.items()])
def test_every_query_of_every_panel_and_annotation_has_data(prometheus: Prometheus, expr: str) -> None:
    prometheus.eventually(expr, lambda: prometheus.query(substituted(expr)))


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_offers_something_to_choose(prometheus: Prometheus, name: str) -> None:
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", substituted(VARIABLES[name]))
    assert found
    selector, label = found.groups()
    values = prometheus.eventually(name, lambda: prometheus.get(f"label/{label}/values", **{"match[]": selector}))
    assert all(values)


def test_the_gpus_to_choose_from_are_named_by_index_model_and_node(prometheus: Prometheus) -> None:
    expr = substituted(GPU["query"]["query"]).removeprefix("query_result(").removesuffix(")")
    expression = re.compile(GPU["regex"].strip("/").replace("(?<", "(?P<"))
    for row in prometheus.eventually(expr, lambda: prometheus.query(expr)):
        labels = row["metric"]
        answer = "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "} 1 1"
        chosen = expression.search(answer)
        assert chosen
        assert chosen["value"] == labels["hw_id"]
        part = " MIG " + labels["hw_id"][4:8] if labels["hw_id"].startswith("MIG-") else ""
        assert chosen["text"] == f"{labels['index']} {labels['hw_name']} {labels['instance']} {part}"


def test_prometheus_evaluates_every_rule_without_an_error(prometheus: Prometheus) -> None:
    def evaluated() -> list[dict[str, Any]]:
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else []

    rules = prometheus.eventually("every rule evaluated", evaluated)
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
