import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from support.concurrency import in_threads
from support.exporter import series
from support.programs import taken_port
from support.regions import BLANK, HUNGRY, PRODUCT, TALKING, Stage, Staged, exposition

from gpu_profile import region, serve_metrics
from gpu_profile.catalogue import metrics as rows
from gpu_profile.errors import UsageError
from gpu_profile.join.durations import BUCKETS_S
from gpu_profile.regions.session import process
from gpu_profile.regions.session.joiner import Joiner
from gpu_profile.regions.telemetry import prometheus
from gpu_profile.units import NS_PER_S


def busy_service(stage: Stage) -> None:
    """Some seconds of two regions, one of which fails now and then."""
    stage.run(0.5)
    for i in range(40):
        with region("decode", items=16):
            stage.work(0.05, "decode", share=0.8)
        handle = region.start("load")
        stage.run(0.01 + 0.004 * (i % 5))
        handle.end(OSError("disk") if i % 10 == 0 else None)
    with region("matmul") as execution:
        stage.work(0.05, "matmul")
        execution.operation = PRODUCT
    stage.run(1.1)
    stage.session.joiner.verdicts.take_kernels("matmul", HUNGRY)
    stage.session.joiner.spinning.total_ns["matmul", stage.uuid] = NS_PER_S


def test_without_a_session_there_are_no_series() -> None:
    process.stop()
    assert exposition() == ""


def test_metrics_have_the_catalogues_names_and_labels(stage: Stage) -> None:
    busy_service(stage)
    families = {family.name: family for family in text_string_to_metric_families(exposition())}
    assert set(families) == {row.prometheus.removesuffix("_total") for row in rows.REGION_METRICS}
    for row in rows.REGION_METRICS:
        family = families[row.prometheus.removesuffix("_total")]
        assert family.documentation == row.brief
        expected = {label.replace(".", "_") for label in row.labels}
        assert {frozenset(sample.labels) - {"le"} for sample in family.samples} == {frozenset(expected)}
    assert {s.labels["hw_id"] for s in families["gpu_profile_region_calls"].samples} == {stage.uuid}
    assert {s.labels["hw_id"] for s in families["gpu_profile_region_energy_joules"].samples} == {stage.uuid}


def test_counters_say_what_happened(stage: Stage) -> None:
    start = stage.clock.now_ns()
    busy_service(stage)
    found = series(exposition())
    calls = {name: value for name, value in found.items() if name.startswith("gpu_profile_region_calls_total")}
    assert sum(value for name, value in calls.items() if 'region="decode"' in name) == 40
    assert found['gpu_profile_region_items_total{region="decode"}'] == 640
    assert 'gpu_profile_region_items_total{region="load"}' not in found
    assert found['gpu_profile_region_errors_total{region="load"}'] == 4
    assert found['gpu_profile_region_errors_total{region="decode"}'] == 0
    busy = f'gpu_profile_region_busy_seconds_total{{hw_id="{stage.uuid}",region="decode"}}'
    uncertain = busy.replace("busy_seconds", "busy_uncertain_seconds")
    assert found[busy] + found[uncertain] == pytest.approx(40 * 0.04, rel=0.15)
    energy = sum(v for k, v in found.items() if k.startswith("gpu_profile_region_energy") and "_joules_total{" in k)
    assert energy < stage.truth().device(0, start, stage.clock.now_ns()).energy_j
    assert energy > 0.5 * stage.truth().device(0, start, stage.clock.now_ns()).energy_j


def test_an_execution_that_has_not_ended_has_its_share_of_energy_and_busy_time(stage: Stage) -> None:
    """Else its series would begin with all of it at its end, and no `rate()` would contain that."""
    running = region.start("epoch")
    for _ in range(40):
        with region("decode"):
            stage.work(0.05, "decode", share=0.8)
        stage.run(0.02)
    stage.run(1.1)
    found, pool = series(exposition()), stage.session.joiner.pools[stage.uuid]
    for metric, source in (("energy", pool.energy_source()), ("busy", pool.busy_source())):
        names = [name for name in found if name.startswith(f"gpu_profile_region_{metric}")]
        assert {"epoch", "decode"} == {re.findall('region="([^"]*)"', name)[0] for name in names}
        rest, total = pool.rest(source), pool._measured(source)
        assert rest is not None
        assert total is not None
        parts = sum(found[name] for name in names) + rest.certain + rest.uncertain
        assert parts == pytest.approx(float(total.family.measured[0]), rel=1e-6)
    running.end()


def test_work_of_operations_is_counted_for_their_region_alone(stage: Stage) -> None:
    busy_service(stage)
    for operation in (PRODUCT, BLANK):
        with region("matmul") as execution:
            stage.work(0.05, "matmul")
            execution.operation = operation
        with region("blank") as execution:
            execution.operation = BLANK
    stage.run(1.1)
    found = series(exposition())
    assert found['gpu_profile_region_flops_total{region="matmul"}'] == 2 * 2_400_000_000
    assert found['gpu_profile_region_traffic_bytes_total{region="matmul"}'] == 2 * 20_000_000
    work = [name for name in found if "_flops_total" in name or "_traffic_bytes_total" in name]
    assert len(work) == 2  # no zero for what nobody measured


def test_kernels_are_counted_for_the_regions_that_a_window_saw_alone(stage: Stage) -> None:
    busy_service(stage)
    stage.session.joiner.verdicts.take_kernels("matmul", TALKING)
    stage.session.joiner.verdicts.take_kernels("talk", TALKING)
    found = series(exposition())
    told = {
        name.removeprefix("gpu_profile_region_").partition("{")[0]: value
        for name, value in found.items()
        if 'region="matmul"' in name
    }
    assert (told["profiled_total"], told["kernels_total"], told["copied_bytes_total"]) == (2, 12, 4_000_000)
    assert told["profiled_time_seconds_total"] == pytest.approx(0.04)
    assert told["kernel_time_seconds_total"] == pytest.approx(0.03)
    assert told["communication_seconds_total"] == pytest.approx(0.025)
    assert told["host_wait_seconds_total"] == pytest.approx(0.0075)
    seen = {name for name in found if "_profiled_total" in name or "_copied_bytes_total" in name}
    assert seen == {
        'gpu_profile_region_profiled_total{region="matmul"}',
        'gpu_profile_region_profiled_total{region="talk"}',
        'gpu_profile_region_copied_bytes_total{region="matmul"}',  # the other's copies did not tell their bytes
    }


def test_without_a_gpu_calls_have_the_regime_of_their_operations(staged: Staged) -> None:
    stage = staged(backend="none", on_device=False)
    for _ in range(5):
        with region("matmul") as execution:
            stage.run(0.01)
            execution.operation = PRODUCT
    stage.run(0.2)
    found = series(exposition())
    calls = 'gpu_profile_region_calls_total{hw_id="",regime="COMPUTE_BOUND",region="matmul"}'
    assert found[calls] == 5
    assert found['gpu_profile_region_flops_total{region="matmul"}'] == 5 * 2_400_000_000


def test_histogram_is_cumulative_and_ends_with_all(stage: Stage) -> None:
    busy_service(stage)
    family = next(f for f in text_string_to_metric_families(exposition()) if f.name.endswith("region_duration_seconds"))
    for name in ("decode", "load"):
        samples = [s for s in family.samples if s.labels["region"] == name]
        buckets = [(float(s.labels["le"]), s.value) for s in samples if s.name.endswith("_bucket")]
        assert [edge for edge, _ in buckets] == [*BUCKETS_S, float("inf")]
        counts = [count for _, count in buckets]
        assert counts == sorted(counts)
        assert counts[-1] == 40 == next(s.value for s in samples if s.name.endswith("_count"))
    total = next(s.value for s in family.samples if s.name.endswith("_sum") and s.labels["region"] == "decode")
    assert total == pytest.approx(2.0)


def test_counters_never_fall(stage: Stage) -> None:
    before: dict[str, float] = {}
    stage.run(0.3)
    for i in range(150):
        with region("decode" if i % 3 else "prefill", items=1):
            stage.work(0.01 + 0.007 * (i % 4), "x", share=0.3 + 0.6 * (i < 75))
        if i % 5 == 0:
            now = series(exposition())
            assert not {key: (value, now.get(key)) for key, value in before.items() if now.get(key, -1.0) < value}
            before = now
    assert len(before) > 50


def test_label_values_are_escaped(stage: Stage) -> None:
    name = 'say "hi"\\now\nthen'
    with region(name):
        pass
    stage.flush()
    parsed = {s.labels["region"] for f in text_string_to_metric_families(exposition()) for s in f.samples}
    assert parsed == {name}


def test_scrape_keeps_the_join_out_while_it_reads(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    busy_service(stage)
    families, could_join = prometheus.families, []

    def probe(joiner: Joiner) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
        in_threads(lambda: could_join.append(joiner.lock._lock.acquire(blocking=False)))
        yield from families(joiner)

    monkeypatch.setattr(prometheus, "families", probe)
    assert "gpu_profile_region_calls_total" in exposition()
    assert could_join == [False]


@pytest.mark.debian
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_finds_nothing_to_complain_about(stage: Stage) -> None:
    busy_service(stage)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=exposition(), text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ------------------------------------------------------------------ a port of one's own


def test_port_0_is_a_free_one_and_serves_regions_and_the_process(stage: Stage) -> None:
    busy_service(stage)
    server = serve_metrics(0, address="127.0.0.1")
    try:
        with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            found = series(answer.read().decode())
    finally:
        server.close()
    assert found['gpu_profile_region_items_total{region="decode"}'] == 640
    assert "process_resident_memory_bytes" in found
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", server.port))


def test_port_that_is_taken_is_a_usage_error_in_one_line() -> None:
    with taken_port() as port, pytest.raises(UsageError, match=f"port {port} is taken: choose another") as caught:
        serve_metrics(port, address="127.0.0.1")
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("port", [-1, 65536, 700_000])
def test_port_that_is_none_is_a_usage_error(port: int) -> None:
    with pytest.raises(UsageError, match=f"port {port} does not exist"):
        serve_metrics(port, address="127.0.0.1")


def test_address_that_is_not_ours_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"cannot serve region metrics on 192\.0\.2\.1:0"):
        serve_metrics(0, address="192.0.2.1")
