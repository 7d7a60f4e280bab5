"""The needs of a Prometheus server that scrapes a fleet of nodes with 8 GPUs: memory, processor, disk, queries.

A real exporter of 8 simulated, busy GPUs gives the text of each node, as in `fleet_nodes`. Its time stamps pass faster
than real time, so that two minutes fill 15. Prometheus's memory and disk do not depend on that; its processor time is
given for a sample. By default the fleet is a twentieth of 1,000 nodes. All of them, 8,000 GPUs, take 20 minutes and
4 GiB: `FLEET_NODES=1000 FLEET_SPEED=2 FLEET_S=900`.

Prometheus's own metrics give the figures. The bytes of a sample on disk are those of a snapshot, in which all samples
are compacted. Queries have their processor time, as their duration depends on the other work of the machine.
"""

import gzip
import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import yaml
from support.nodes import busy, node_of
from support.programs import Prometheus, exporter, until

from benchmarks import fleet_spans
from benchmarks.fleet_needs import DISK, GPUS_OF_A_NODE, INTERVAL_S, LOG, MEMORY, PROCESSOR, SCRAPE, SERIES
from benchmarks.fleet_nodes import NodeText, fleet
from benchmarks.rows import Row
from gpu_profile.driver import simulated

_NODES: Final = int(os.environ.get("FLEET_NODES", "50"))
_SPEED: Final = float(os.environ.get("FLEET_SPEED", "7.5"))
_SECONDS: Final = float(os.environ.get("FLEET_S", "120"))
#: The time range of the dashboard, in seconds.
_RANGE_S: Final = 900
#: How long Prometheus is watched without queries, in seconds.
_IDLE_S: Final = 5.0
#: How many times smaller than 1,000 nodes the fleet is.
_FACTOR: Final = 1000 / _NODES
_GRAFANA: Final = Path(__file__).parents[2] / "grafana"
_CONFIG: Final = """
global: {{scrape_interval: {interval_s}s, scrape_timeout: {timeout_s}s}}
scrape_configs:
  - job_name: gpu
    metrics_path: /metrics
    relabel_configs:
      - {{source_labels: [__address__], target_label: instance}}
      - {{source_labels: [__address__], regex: "(.*):9400", replacement: "/$1", target_label: __metrics_path__}}
      - {{target_label: __address__, replacement: "{server}"}}
    static_configs: [{{targets: [{targets}]}}]
"""


def rows() -> Iterator[Row]:
    """All rows; some three minutes."""
    yield from fleet_spans.rows()
    if shutil.which("prometheus") is None:
        yield Row("Prometheus", "not measured: prometheus is not installed", ok=False)
        return
    with tempfile.TemporaryDirectory() as directory:
        text, later, passed_s = _scraped_twice(Path(directory))
        lines = NodeText.of(text, later, passed_s)
        packed = len(gzip.compress(text.encode(), 6))
        series = len(lines.values)
        yield Row(
            SCRAPE,
            f"{len(text) / 1e3:.1f} kB, by gzip {packed / 1e3:.1f} kB, or {packed / series:.1f} B a sample",
            cost=packed / series,
        )
        yield Row(SERIES, f"{series} with {GPUS_OF_A_NODE} GPUs and the default groups", cost=series)
        template = Path(directory) / "lines.json"
        template.write_text(json.dumps({"text": text, "later": later, "passed_s": passed_s}))
        with fleet(template, _NODES, _SECONDS, _SPEED) as (address, end_s):
            yield from _measured(Path(directory), address, end_s)


def _scraped_twice(directory: Path) -> tuple[str, str, float]:
    """Two scrapes of a real exporter, and the seconds between them."""
    node = simulated.create(
        directory / "node", "".join(node_of("H200 SXM") + busy(0.3 + i / 12) for i in range(GPUS_OF_A_NODE))
    )
    with exporter("--driver", f"simulated:{node}") as running:
        until(lambda: running.get("/-/ready")[0] == 200, "ready")
        time.sleep(8)  # sums of the first seconds miss some signals
        first, at_s = running.get("/metrics")[2].decode(), time.monotonic()
        time.sleep(10)
        return first, running.get("/metrics")[2].decode(), time.monotonic() - at_s


# ------------------------------------------------------------------ Prometheus


def _measured(directory: Path, server: str, end_s: float) -> Iterator[Row]:
    interval_s = max(1, round(INTERVAL_S / _SPEED))
    targets = ", ".join(f'"node{number}:9400"' for number in range(_NODES))
    config = _CONFIG.format(interval_s=interval_s, timeout_s=interval_s, server=server, targets=targets)
    options = ("--web.enable-admin-api", "--query.timeout=10m")
    with Prometheus(directory / "data", config=config, options=options) as prometheus:
        empty = _own(prometheus)["process_resident_memory_bytes"]
        nodes = f"{_NODES:,} nodes with {_NODES * GPUS_OF_A_NODE:,} GPUs"
        peak = empty
        begun: Mapping[str, float] = {}
        while time.time() < end_s:
            time.sleep(2)
            now = _own(prometheus)
            peak = max(peak, now["process_resident_memory_bytes"])
            if (
                not begun
                and now["prometheus_tsdb_head_samples_appended_total"] > 3 * now["prometheus_tsdb_head_series"] > 0
            ):
                begun = now
        ended = _own(prometheus)
        lost = sum(ended[f"prometheus_target_scrapes_sample_{why}_total"] for why in ("out_of_order", "out_of_bounds"))
        answering = len(prometheus.query("up == 1"))
        yield Row(
            "the fleet answers",
            f"{answering:,} of {_NODES:,} nodes, {lost:,.0f} samples refused",
            ok=answering == _NODES and not lost,
        )
        samples = ended["prometheus_tsdb_head_samples_appended_total"]
        taken = samples - begun["prometheus_tsdb_head_samples_appended_total"]
        spent_s = ended["process_cpu_seconds_total"] - begun["process_cpu_seconds_total"]
        series = ended["prometheus_tsdb_head_series"]
        each = (peak - empty) / series
        yield Row(
            MEMORY,
            f"{peak / 2**20:,.0f} MiB at most, before queries, with {series:,.0f} series of {nodes}: "
            f"{each / 1e3:.2f} kB a series beside {empty / 2**20:.0f} MiB",
            cost=each / 1e3,
        )
        yield Row(
            PROCESSOR, f"{spent_s / taken * 1e6:.1f} µs of a core a sample, without queries", cost=spent_s / taken * 1e6
        )
        log = sum(each.stat().st_size for each in (directory / "data" / "wal").rglob("*") if each.is_file())
        yield Row(LOG, f"{log / samples:.2f} B a sample", cost=log / samples)
        usual = _usual(prometheus)
        yield _queries(prometheus, _fleet_panels(), f"panels of the fleet's dashboard over 15 minutes, {nodes}", usual)
        yield _queries(prometheus, _rules(), f"recording rules, {nodes}", usual)
        yield _disk(prometheus, directory / "data" / "snapshots")
        after = _own(prometheus)["process_resident_memory_bytes"] / 2**20
        yield Row("Prometheus: memory after the queries", f"{after:,.0f} MiB, with 1/{_FACTOR:g} of 1,000 nodes")


def _own(prometheus: Prometheus) -> Mapping[str, float]:
    """Prometheus's own metrics, each the sum over its labels."""
    with urlopen(f"{prometheus.url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    own: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        if not line.startswith("#"):
            own[re.split(r"[{ ]", line, maxsplit=1)[0]] += float(line.rpartition(" ")[2])
    return own


def _disk(prometheus: Prometheus, snapshots: Path) -> Row:
    """The bytes of a sample in blocks."""
    with urlopen(Request(f"{prometheus.url}/api/v1/admin/tsdb/snapshot", method="POST"), timeout=600):
        pass
    stats = [json.loads(meta.read_text())["stats"] for meta in snapshots.rglob("meta.json")]
    size = sum(each.stat().st_size for each in snapshots.rglob("*") if each.is_file())
    index = sum(each.stat().st_size for each in snapshots.rglob("index"))
    samples, series, chunks = (sum(each[key] for each in stats) for key in ("numSamples", "numSeries", "numChunks"))
    return Row(
        DISK,
        f"{(size - index) / samples:.2f} B a sample, and {index / series:.0f} B a series in each block's index, with "
        f"{samples / chunks:.0f} samples in a chunk",
        cost=(size - index) / samples,
    )


class _Query(NamedTuple):
    name: str
    expr: str
    ranged: bool


def _queries(prometheus: Prometheus, queries: list[_Query], name: str, usual: float) -> Row:
    """The processor time of each query, without the `usual` cores for taking samples. The slowest ones by name."""
    times: Counter[int] = Counter()
    for number, query in enumerate(queries):
        began_s, spent_s = time.monotonic(), _cpu_s(prometheus)
        _ask(prometheus, query)
        spent_s = _cpu_s(prometheus) - spent_s - usual * (time.monotonic() - began_s)
        times[number] = max(0, round(spent_s * 1e3))
    words = "; ".join(f"{queries[number].name}: {ms:,} ms" for number, ms in times.most_common(3))
    return Row(
        name,
        f"{times.total() / 1e3:.2f} s of a core for {len(queries)} queries, most {words}",
        cost=times.total() / 1e3,
    )


def _cpu_s(prometheus: Prometheus) -> float:
    fields = Path(f"/proc/{prometheus.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _usual(prometheus: Prometheus) -> float:
    """The cores that Prometheus needs without queries."""
    began_s, spent_s = time.monotonic(), _cpu_s(prometheus)
    time.sleep(_IDLE_S)
    return (_cpu_s(prometheus) - spent_s) / (time.monotonic() - began_s)


def _ask(prometheus: Prometheus, query: _Query) -> None:
    now_s = time.time()
    parameters = {"query": query.expr, "time": f"{now_s:.3f}"}
    if query.ranged:
        parameters = {
            "query": query.expr,
            "start": f"{now_s - _RANGE_S:.3f}",
            "end": f"{now_s:.3f}",
            "step": f"{INTERVAL_S}",
        }
    path = "query_range" if query.ranged else "query"
    with urlopen(
        Request(f"{prometheus.url}/api/v1/{path}", data=urlencode(parameters).encode()), timeout=600
    ) as answer:
        answer.read()


def _fleet_panels() -> list[_Query]:
    """The queries of the dashboard of all nodes, with everything chosen."""
    board = json.loads((_GRAFANA / "dashboards" / "fleet.json").read_text())
    queries = []
    for panel in _flat(board["panels"]):
        for target in panel.get("targets", []):
            expr = target["expr"].replace("$price", "2")
            for macro, value in (
                ("rate_interval", f"{4 * INTERVAL_S}s"),
                ("range_s", str(_RANGE_S)),
                ("range", f"{_RANGE_S}s"),
            ):
                expr = expr.replace(f"$__{macro}", value)
            queries.append(_Query(panel["title"], re.sub(r"\$[a-z]\w*", ".*", expr), not target.get("instant", False)))
    return queries


def _flat(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from _flat(panel.get("panels", []))


def _rules() -> list[_Query]:
    text = (_GRAFANA / "rules" / "gpu-profile.yaml").read_text()
    return [
        _Query(rule["record"].replace("gpu_profile_", ""), rule["expr"], False)
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
    ]
