import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.conftest import NODE
from support.nodes import HALF, node_of
from support.programs import Exporter, Prometheus, exporter, until

from gpu_profile.catalogue import ALL_GROUPS, DEFAULT_GROUPS, METRICS, Metric
from gpu_profile.catalogue.allocation import ALLOCATION_METRICS
from gpu_profile.catalogue.http import CERTIFICATE_END
from gpu_profile.catalogue.metrics import REGION_METRICS
from gpu_profile.catalogue.push import PUSH_METRICS
from gpu_profile.catalogue.receive import RECEIVE_METRICS
from gpu_profile.catalogue.self_metrics import XID_ERRORS, XID_LAST, XID_LAST_TIME
from gpu_profile.catalogue.serving import SERVING_METRICS
from gpu_profile.driver import simulated
from gpu_profile.driver.grammar import open_driver

pytestmark = [
    pytest.mark.debian,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus and promtool"),
]
MORE = node_of("RTX 4090", "GB200", "H100 SXM") + HALF
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: gpu
    static_configs: [{{targets: ["{target}"]}}]
"""

#: What needs a region, a holder of a device, a collector, a certificate, or an XID error.
ELSEWHERE = {
    *REGION_METRICS,
    *ALLOCATION_METRICS,
    *PUSH_METRICS,
    *RECEIVE_METRICS,
    *SERVING_METRICS,
    CERTIFICATE_END,
    XID_ERRORS,
    XID_LAST,
    XID_LAST_TIME,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated.create(tmp_path_factory.mktemp("prometheus") / "node", NODE + MORE)


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Exporter]:
    with exporter("--collect", "all", "--driver", f"simulated:{directory}") as process:
        until(lambda: process.get("/-/ready")[0] == 200, "ready")
        yield process


def impossible(directory: Path) -> dict[str, str]:
    """The metrics that no device of the node can have, by Prometheus name, with the driver's reason."""
    driver = open_driver(f"simulated:{directory}", groups=ALL_GROUPS)
    try:
        devices = driver.devices()
        for device in devices:
            driver.boundary(device)
        time.sleep(0.2)
        for device in devices:
            driver.boundary(device)  # what GPM lacks, its first window tells
        capabilities = [driver.capabilities(device) for device in devices]
    finally:
        driver.close()

    def reason(metric: Metric) -> str:
        told = [can[row] for can in capabilities for row in metric.signals]
        return "" if not told or any(one.available for one in told) else told[0].reason or "no reason given"

    return {metric.prometheus: why for metric in METRICS if (why := reason(metric))}


def test_prometheus_has_series_of_every_documented_device_metric(
    running: Exporter, directory: Path, tmp_path: Path
) -> None:
    without = impossible(directory)
    documented = {metric.prometheus for metric in METRICS if metric not in ELSEWHERE}
    expected = documented - without.keys()
    assert all(why != "no reason given" for why in without.values()), without
    usual = {metric.prometheus for metric in METRICS if any(row.group in DEFAULT_GROUPS for row in metric.signals)}
    assert usual & without.keys() <= {
        "nvidia_gpu_retired_pages_total",  # of GPUs before Ampere
        "nvidia_gpu_retired_pages_pending",
        "gpu_profile_throttle_time_seconds_total",  # where the driver has no counters of its own
    }
    assert len(without) <= 5, without
    with Prometheus(tmp_path / "data", config=CONFIG.format(target=running.url.removeprefix("http://"))) as prometheus:

        def names() -> set[str]:
            return {row["metric"]["__name__"] for row in prometheus.query('{job="gpu"}')}

        until(lambda: expected <= names(), f"series of all of {sorted(expected)}")
        assert not documented & without.keys() & names()
        busy = until(
            lambda: prometheus.query(
                "rate(gpu_profile_busy_seconds_total[10s]) * on (hw_id) group_left (hw_name) gpu_profile_device_info"
                ' > 0.2 and on (hw_id) gpu_profile_device_info{hw_name="NVIDIA H200"}'
            ),
            "the H200's rate of busy time",
        )
        assert [row["metric"]["hw_name"] for row in busy] == ["NVIDIA H200"]
        # Prometheus asks for OpenMetrics, where a counter's family is named without its suffix.
        kinds = {name: rows[0]["type"] for name, rows in prometheus.api("metadata").items()}
        assert kinds["gpu_profile_busy_seconds"] == "counter"
        assert kinds["hw_power_watts"] == "gauge"


def test_promtool_finds_nothing_to_complain_of(running: Exporter) -> None:
    text = until(lambda: b"busy_seconds" in (body := running.get("/metrics")[2]) and body, "busy time")
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
