"""The alerts and recording rules over data that fires them and data that must not, by Prometheus' own promtool."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

GRAFANA = Path(__file__).parents[2] / "grafana"
RULE_FILES = sorted([*(GRAFANA / "alerts").glob("*.yaml"), *(GRAFANA / "rules").glob("*.yaml")])
RULES: list[dict[str, Any]] = [
    rule for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    for name, alert in ALERTS.items():
        assert alert["labels"]["severity"] in ("critical", "warning", "info"), name
        assert set(alert["annotations"]) == {"summary", "description", "runbook"}, name
        assert "instance" in alert["annotations"]["summary"] or "region" in alert["annotations"]["summary"], name
        assert len(alert["annotations"]["runbook"]) > 80, name


# One sample a minute. `firing` must fire by the given minute, none of `quiet` may.
GPU = 'instance="n:9400", job="g", hw_id="GPU-1"'
NODE = 'instance="n:9400", job="g"'
REGION = 'job="s", instance="s:1", region="train"'
Case = tuple[int, dict[str, str], list[dict[str, str]]]


def regimes(name: str) -> Case:
    """Nine calls in ten with this verdict; with another one; rare calls; half a minute of work in a second."""
    calls = f'gpu_profile_region_calls_total{{{REGION}, hw_id="GPU-1", regime="%s"}}'
    time = f"gpu_profile_region_duration_seconds_sum{{{REGION}}}"
    mostly = {calls % name: "0+90x80", calls % "COMPUTE_BOUND": "0+10x80", time: "0+30x80"}
    seldom = {calls % name: "0+10x80", calls % "COMPUTE_BOUND": "0+90x80", time: "0+30x80"}
    return 75, mostly, [seldom, {**mostly, time: "0+1x80"}]


def throttled(reason: str, other: str, share: float) -> Case:
    name = f'nvidia_gpu_throttle_time_seconds_total{{{GPU}, nvidia_gpu_throttle_reason="%s"}}'
    much, little = f"0+{share * 90}x60", f"0+{share * 30}x60"
    return 45, {name % reason: much}, [{name % reason: little}, {name % other: much}]


def idle(busy: str, observed: str) -> dict[str, str]:
    return {
        f'hw_power_watts{{{GPU}, hw_type="gpu"}}': "70x60",
        f"gpu_profile_busy_seconds_total{{{GPU}}}": busy,
        f"gpu_profile_observed_seconds_total{{{GPU}}}": observed,
    }


def xid(code: int, values: str, of_any: str = "0x5 1x40") -> dict[str, str]:
    """Errors of one code, by default its first after five minutes; and of any code."""
    return {
        f'nvidia_gpu_xid_errors_total{{{GPU}, nvidia_gpu_xid="{code}"}}': values,
        f"nvidia_gpu_xid_errors_any_total{{{GPU}}}": of_any,
    }


FIRST = "_x6 1x40"


def batches(failures: str, sent: str) -> dict[str, str]:
    return {
        f'gpu_profile_push_failures_total{{{NODE}, signal="metrics", error_type="timeout"}}': failures,
        f'gpu_profile_push_batches_total{{{NODE}, signal="metrics"}}': sent,
    }


def flagged(name: str) -> Case:
    return 15, {f"{name}{{{GPU}}}": "0x4 1x20"}, [{f"{name}{{{GPU}}}": "0x20"}]


def of_node(name: str, labels: str, fires: str, quiet: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    series = f"{name}{{{NODE}{labels}}}"
    return {series: fires}, [{series: quiet}]


CASES: dict[str, Case] = {
    "GpuProfileTargetDown": (
        15,
        {f"up{{{NODE}}}": "1x5 0x20", f'gpu_profile_build_info{{{NODE}, version="1"}}': "1x5 _x20"},
        [{f"up{{{NODE}}}": "0x30"}, {f"up{{{NODE}}}": "1x30", f"gpu_profile_build_info{{{NODE}}}": "1x30"}],
    ),
    "GpuDriverDown": (
        10,
        {f"gpu_profile_driver_up{{{NODE}}}": "0x20"},
        [{f"gpu_profile_driver_up{{{NODE}}}": "1x20"}, {f"gpu_profile_driver_up{{{NODE}}}": "1x9 0 1x9"}],
    ),
    "GpuSamplesStale": (
        10,
        {f"gpu_profile_sample_age_seconds{{{GPU}}}": "40x20", f"gpu_profile_device_up{{{GPU}}}": "1x20"},
        [
            {f"gpu_profile_sample_age_seconds{{{GPU}}}": "1x20", f"gpu_profile_device_up{{{GPU}}}": "1x20"},
            {f"gpu_profile_sample_age_seconds{{{GPU}}}": "40x20", f"gpu_profile_device_up{{{GPU}}}": "0x20"},
        ],
    ),
    "GpuBusyTimeMissing": (
        25,
        {f"gpu_profile_observed_seconds_total{{{GPU}}}": "0+60x5 300x30", f"gpu_profile_device_up{{{GPU}}}": "1x40"},
        [
            {f"gpu_profile_observed_seconds_total{{{GPU}}}": "0+60x40", f"gpu_profile_device_up{{{GPU}}}": "1x40"},
            {f"gpu_profile_observed_seconds_total{{{GPU}}}": "0+60x5", f"gpu_profile_device_up{{{GPU}}}": "0x40"},
            {f"gpu_profile_device_up{{{GPU}}}": "1x40"},
        ],
    ),
    "GpuLost": (
        10,
        {f"gpu_profile_device_up{{{GPU}}}": "1x5 0x20", f"gpu_profile_driver_up{{{NODE}}}": "1x30"},
        [
            {f"gpu_profile_device_up{{{GPU}}}": "1x20", f"gpu_profile_driver_up{{{NODE}}}": "1x20"},
            {f"gpu_profile_device_up{{{GPU}}}": "0x20", f"gpu_profile_driver_up{{{NODE}}}": "0x20"},
        ],
    ),
    "GpuHot": (
        20,
        {f'hw_temperature_celsius{{{GPU}, hw_sensor_location="core", hw_type="gpu"}}': "88x30"},
        [
            {f'hw_temperature_celsius{{{GPU}, hw_sensor_location="core"}}': "84x30"},
            {f'hw_temperature_celsius{{{GPU}, hw_sensor_location="memory"}}': "88x30"},
        ],
    ),
    "GpuSlowedByHeatOrPowerFault": throttled("hw_thermal", "sw_power_cap", 0.1),
    "GpuPowerCapped": throttled("sw_power_cap", "hw_thermal", 0.5),
    "GpuUncorrectedMemoryErrors": (
        10,
        {f'hw_errors_total{{{GPU}, error_type="uncorrected", hw_type="gpu"}}': "0x5 1x20"},
        [
            {f'hw_errors_total{{{GPU}, error_type="uncorrected", hw_type="gpu"}}': "3x30"},
            {f'hw_errors_total{{{GPU}, error_type="corrected", hw_type="gpu"}}': "0x5 9x20"},
        ],
    ),
    "GpuXidCritical": (
        10,
        # A code's counter begins with its first error, here between errors of a program.
        xid(79, FIRST) | xid(13, "0x4 1x40"),
        # Old errors, seen by a Prometheus that was just started; other errors.
        [xid(79, "3x20", "3x20"), xid(79, "_x6 3x20", "_x6 3x20"), xid(31, FIRST), xid(63, FIRST)],
    ),
    "GpuXid": (10, xid(63, FIRST), [xid(79, FIRST), xid(31, FIRST), xid(45, FIRST), xid(63, "2x20", "2x20")]),
    "GpuXidOfProgram": (10, xid(31, "1x5 2x20", "1x5 2x20"), [xid(79, FIRST), xid(31, "2x20", "2x20")]),
    "GpuRowRemapPending": flagged("nvidia_gpu_remapped_rows_pending"),
    "GpuRowRemapFailed": flagged("nvidia_gpu_remapped_rows_failure"),
    "GpuRecoveryActionNeeded": flagged("nvidia_gpu_recovery_action"),
    "GpuReadersRestarting": (
        25,
        {f'gpu_profile_reader_restarts_total{{{NODE}, reason="hung"}}': "0+1x30"},
        [
            {f'gpu_profile_reader_restarts_total{{{NODE}, reason="hung"}}': "0x5 1x25"},
            {f'gpu_profile_reader_restarts_total{{{NODE}, reason="released"}}': "0+1x30"},
        ],
    ),
    "GpuProfilePushFailing": (
        25,
        batches("0+4x30", "7x30"),
        [batches("0+1x30", "0+3x30"), batches("5x30", "7x30"), batches("0+4x12 48x18", "0x14 0+4x16")],
    ),
    "GpuProfilePushLosing": (
        10,
        *of_node("gpu_profile_push_dropped_total", ', signal="logs", reason="queue_full"', "0x5 2x20", "2x20"),
    ),
    "GpuAttributionDown": (
        20,
        {f'gpu_profile_attribution_up{{{NODE}, source="kubelet", reason="timeout"}}': "0x30"},
        [
            {f'gpu_profile_attribution_up{{{NODE}, source="kubelet", reason="not_found"}}': "0x30"},
            {f'gpu_profile_attribution_up{{{NODE}, source="kubelet"}}': "1x30"},
        ],
    ),
    "GpuProfileSeriesDropped": (
        25,
        *of_node("gpu_profile_series_dropped_total", ', reason="over_budget"', "0+50x30", "9x30"),
    ),
    "GpuProfileCertificateEnds": (
        90,
        *of_node("gpu_profile_http_certificate_end_timestamp_seconds", "", "86400x120", "8640000x120"),
    ),
    "GpuIdleButPowered": (
        45,
        idle("0+1x60", "0+60x60"),
        # Busy; an exporter that has just been started; no reading of the busy counter at all.
        [idle("0+30x60", "0+60x60"), idle("_x40 0x20", "_x40 0+60x20"), {f"hw_power_watts{{{GPU}}}": "70x60"}],
    ),
    "GpuSpinning": (
        10,
        {f"gpu_profile_spinning_seconds_total{{{GPU}}}": "0x3 75 135+60x20"},
        # Never; long ago; half a minute now and then.
        [
            {f"gpu_profile_spinning_seconds_total{{{GPU}}}": "0x20"},
            {f"gpu_profile_spinning_seconds_total{{{GPU}}}": "900x20"},
            {f"gpu_profile_spinning_seconds_total{{{GPU}}}": "0 30x5 60x14"},
        ],
    ),
    "RegionMostlyOverhead": regimes("OVERHEAD_BOUND"),
    "RegionMostlyWaitsForHost": regimes("HOST_BOUND"),
}


def promtool(
    tmp_path: Path,
    minute: int,
    series: dict[str, str],
    expectations: list[dict[str, Any]],
    *,
    only: str = "",
    step: str = "1m",
) -> None:
    """Evaluate the committed rules over series with a value per `step` and compare. `only` one alert is faster."""
    files = [str(path) for path in RULE_FILES]
    if only:
        rules = [rule for rule in RULES if only == rule.get("alert") or rule.get("record", " ") in ALERTS[only]["expr"]]
        files = [str(tmp_path / "rules.json")]
        (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": only, "rules": rules}]}))
    given = [{"series": name, "values": values} for name, values in series.items()]
    checks = [{"eval_time": f"{minute}m", **expectation} for expectation in expectations]
    test = {
        "rule_files": files,
        "evaluation_interval": step,
        "tests": [{"interval": step, "input_series": given, "promql_expr_test": checks}],
    }
    (tmp_path / "test.json").write_text(json.dumps(test))
    run = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "test.json"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def firing(name: str, count: int) -> dict[str, Any]:
    samples = [{"labels": "{}", "value": count}] if count else []
    return {"expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})', "exp_samples": samples}


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    assert set(CASES) == set(ALERTS)
    assert all(fires and quiet for _, fires, quiet in CASES.values())


@pytest.mark.debian
def test_prometheus_accepts_the_rule_files() -> None:
    run = subprocess.run(["promtool", "check", "rules", *RULE_FILES], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.debian
@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_when_it_should_and_only_then(name: str, tmp_path: Path) -> None:
    minute, fires, quiets = CASES[name]
    promtool(tmp_path, minute, fires, [firing(name, 1)], only=name)
    for quiet in quiets:
        promtool(tmp_path, minute, quiet, [firing(name, 0)], only=name)


@pytest.mark.debian
@pytest.mark.parametrize(
    ("observed", "kind", "cut", "fires"),
    [
        (None, "gpu", False, 1),
        ("0x850", "gpu", False, 1),
        ("0+120x15 1800x835", "gpu", False, 1),
        ("0+120x775 93000x75", "mig", False, 1),
        ("0+120x850", "gpu", False, 0),
        (None, "mig", False, 0),
        (None, "gpu", True, 0),
    ],
)
def test_busy_time_is_missed_from_the_start_and_for_longer_than_a_day(
    observed: str | None, kind: str, cut: bool, fires: int, tmp_path: Path
) -> None:
    told = {f"gpu_profile_device_up{{{GPU}}}": "1x850"}
    parent = ', hw_parent="GPU-0"' if kind == "mig" else ""
    told[f'gpu_profile_device_info{{{GPU}, kind="{kind}"{parent}}}'] = "1x850"
    if observed is not None:
        told[f"gpu_profile_observed_seconds_total{{{GPU}}}"] = observed
    if cut:
        told[f'gpu_profile_device_info{{{NODE}, hw_id="MIG-1", kind="mig", hw_parent="GPU-1"}}'] = "1x850"
    name = "GpuBusyTimeMissing"
    promtool(tmp_path, 1650, told, [firing(name, fires)], only=name, step="2m")


@pytest.mark.debian
@pytest.mark.parametrize("code", [43, 79, 92, 777])
def test_the_first_error_of_any_code_is_seen_and_ends_with_its_window(code: int, tmp_path: Path) -> None:
    name = {43: "GpuXidOfProgram", 79: "GpuXidCritical"}.get(code, "GpuXid")
    promtool(tmp_path, 10, xid(code, FIRST), [firing(name, 1)])
    promtool(tmp_path, 30, xid(code, FIRST), [firing(name, 0)])


@pytest.mark.debian
def test_throttling_that_only_readings_showed_counts_as_what_the_driver_counts(tmp_path: Path) -> None:
    name = f'gpu_profile_throttle_time_seconds_total{{{GPU}, nvidia_gpu_throttle_reason="hw_thermal"}}'
    promtool(tmp_path, 45, {name: "0+9x60"}, [firing("GpuSlowedByHeatOrPowerFault", 1)])
    promtool(tmp_path, 45, {name: "0+3x60"}, [firing("GpuSlowedByHeatOrPowerFault", 0)])


@pytest.mark.debian
def test_the_recording_rules_compute_utilisation_and_the_cost_of_a_call(tmp_path: Path) -> None:
    series = {
        f"gpu_profile_busy_seconds_total{{{GPU}}}": "0+15x20",
        'gpu_profile_busy_seconds_total{instance="n:9400", job="g", hw_id="GPU-2"}': "0+45x20",
        f'gpu_profile_activity_seconds_total{{{GPU}, nvidia_gpu_unit="sm"}}': "0+12x20",
        f'gpu_profile_activity_observed_seconds_total{{{GPU}, nvidia_gpu_unit="sm"}}': "0+30x20",
        f'gpu_profile_activity_seconds_total{{{GPU}, nvidia_gpu_unit="dram"}}': "7x20",
        f'gpu_profile_activity_observed_seconds_total{{{GPU}, nvidia_gpu_unit="dram"}}': "9x20",
        'gpu_profile_busy_seconds_total{instance="n:9400", job="g", hw_id="MIG-3"}': "0+60x20",
        'gpu_profile_device_info{kind="gpu", hw_id="GPU-1"}': "1x20",
        'gpu_profile_device_info{kind="gpu", hw_id="GPU-2"}': "1x20",
        'gpu_profile_device_info{kind="mig", hw_id="MIG-3"}': "1x20",
        f"gpu_profile_region_duration_seconds_count{{{REGION}}}": "0+120x20",
        f'gpu_profile_region_energy_joules_total{{{REGION}, hw_id="GPU-1"}}': "0+600x20",
        f'gpu_profile_region_energy_joules_total{{{REGION}, hw_id="GPU-2"}}': "0+1200x20",
        f'gpu_profile_region_busy_seconds_total{{{REGION}, hw_id="GPU-1"}}': "0+30x20",
        'gpu_profile_region_duration_seconds_count{job="s", region="never called"}': "7x20",
        'gpu_profile_region_energy_joules_total{job="s", region="never called"}': "7x20",
    }
    expected = [
        ("instance_hw_id:gpu_profile_busy_seconds:rate5m", 'instance="n:9400", hw_id="GPU-1"', 0.25),
        ("instance:gpu_profile_busy_seconds:avg_rate5m", 'instance="n:9400"', 0.5),
        (
            "instance_hw_id_unit:gpu_profile_activity_seconds:ratio_rate5m",
            'instance="n:9400", hw_id="GPU-1", nvidia_gpu_unit="sm"',
            0.4,
        ),
        ("job_region:gpu_profile_region_energy_joules:per_call_rate5m", 'job="s", region="train"', 15),
        ("job_region:gpu_profile_region_busy_seconds:per_call_rate5m", 'job="s", region="train"', 0.25),
    ]
    assert {name for name, _, _ in expected} == {rule["record"] for rule in RULES if "record" in rule}
    checks = [
        {"expr": f'{name}{{hw_id=~"GPU-1|"}}', "exp_samples": [{"labels": f"{name}{{{labels}}}", "value": value}]}
        for name, labels, value in expected
    ]
    promtool(tmp_path, 15, series, checks)


@pytest.mark.debian
def test_two_services_with_a_region_of_the_same_name_are_two_regions(tmp_path: Path) -> None:
    series = {}
    for service, joules in (("a", 600), ("b", 3000)):
        about = f'job="gpu", service_name="{service}", region="GET /x"'
        series[f"gpu_profile_region_duration_seconds_count{{{about}}}"] = "0+120x20"
        series[f'gpu_profile_region_energy_joules_total{{{about}, hw_id="GPU-1"}}'] = f"0+{joules}x20"
    name = "job_region:gpu_profile_region_energy_joules:per_call_rate5m"
    found = [
        {"labels": f'{name}{{job="gpu", service_name="{service}", region="GET /x"}}', "value": value}
        for service, value in (("a", 5), ("b", 25))
    ]
    promtool(tmp_path, 15, series, [{"expr": name, "exp_samples": found}])
