"""The alerts and recording rules over data that fires them and data that must not, by Prometheus' own promtool."""

import json
import re
import subprocess
from collections.abc import Sequence
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
        assert alert["labels"]["severity"] in ("page", "ticket", "info"), name
        texts = {"summary", "description", "runbook", "runbook_url", "dashboard_url"}
        assert set(alert["annotations"]) == texts, name
        assert "instance" in alert["annotations"]["summary"] or "region" in alert["annotations"]["summary"], name
        assert len(alert["annotations"]["runbook"]) > 80, name


def test_every_alert_leads_to_its_section_of_the_runbook_and_to_the_dashboard() -> None:
    page = (GRAFANA.parent / "docs" / "runbook.md").read_text()
    anchors = {line[4:].lower() for line in page.splitlines() if line.startswith("### ")}
    uids = {json.loads(path.read_text())["uid"] for path in (GRAFANA / "dashboards").glob("*.json")}
    for name, alert in ALERTS.items():
        path, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert (path, anchor) == ("docs/runbook.md", name.lower())
        assert anchor in anchors, name
        dashboard, _, variables = alert["annotations"]["dashboard_url"].removeprefix("/d/").partition("?")
        assert dashboard in uids, name
        assert variables.startswith("var-"), name
    assert len(anchors) == len(ALERTS)


def test_the_example_for_alertmanager_routes_every_severity_and_names_only_existing_alerts() -> None:
    example = yaml.safe_load((GRAFANA / "alertmanager.yml").read_text())
    receivers = {receiver["name"] for receiver in example["receivers"]}
    routes = [example["route"], *example["route"]["routes"]]
    assert {route["receiver"] for route in routes} == receivers
    routed = {matcher for route in routes[1:] for matcher in route["matchers"]}
    assert routed == {'severity = "page"', 'severity = "ticket"'}
    named = re.findall(r"\balertname [=!~]+ \"([\w|.+]+)\"", (GRAFANA / "alertmanager.yml").read_text())
    assert named
    assert all(any(re.fullmatch(pattern, name) for name in ALERTS) for each in named for pattern in each.split("|"))


# One sample a minute. `firing` must fire by the given minute, none of `quiet` may.
GPU = 'instance="n:9400", job="g", hw_id="GPU-1"'
NODE = 'instance="n:9400", job="g"'
MOVED = 'instance="m:9400", job="g"'
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


def idle(busy: float, observed: float = 3600, pods: tuple[str, str] = ("a", "a")) -> dict[str, str]:
    """30 hours with these seconds in each, in two halves with a pod each; without a name there is none."""
    held = dict(zip(pods, ("1x14 _x15", "_x15 1x14"), strict=True)) if pods[0] != pods[1] else {pods[0]: "1x29"}
    allocations = {
        f'gpu_profile_allocation_info{{{GPU}, source="kubelet", k8s_pod_name="{pod}"}}': values
        for pod, values in held.items()
        if pod
    }
    return allocations | {
        f"gpu_profile_busy_seconds_total{{{GPU}}}": f"0+{busy}x29",
        f"gpu_profile_observed_seconds_total{{{GPU}}}": f"0+{observed}x29",
    }


def week(first: str, second: str) -> str:
    """Eight hours, and the same hours a week later, in samples of two hours."""
    return f"{first}x4 _x79 {second}x4"


def cost(name: str, before: float, now: float, calls: int = 1000, labels: str = "") -> dict[str, str]:
    """Cost of each of `calls` in two hours, a week ago and now."""
    count = f"gpu_profile_region_duration_seconds_count{{{REGION}}}"
    return {
        f"{name}{{{REGION}{labels}}}": week(f"0+{before * calls}", f"0+{now * calls}"),
        count: week(f"0+{calls}", f"0+{calls}"),
    }


def namespaces(before: int, now: int) -> dict[str, str]:
    """A service in two namespaces, one ten times slower, which has so many of two thousand calls."""
    series = {}
    for namespace, seconds, calls in (("a", 1, (before, now)), ("b", 0.1, (2000 - before, 2000 - now))):
        labels = f'{{{REGION}, namespace="{namespace}"}}'
        series[f"gpu_profile_region_duration_seconds_count{labels}"] = week(*(f"0+{count}" for count in calls))
        series[f"{DURATION}{labels}"] = week(*(f"0+{count * seconds}" for count in calls))
    return series


def regime_change(before: str, now: str, calls: int = 1000) -> dict[str, str]:
    """Four calls in five had the regime `before` a week ago, and have `now`."""
    series = {f"gpu_profile_region_duration_seconds_count{{{REGION}}}": week(f"0+{calls}", f"0+{calls}")}
    for regime in ("COMPUTE_BOUND", "MEMORY_BOUND", "HOST_BOUND"):
        shares = [0.8 if regime == most else 0.1 for most in (before, now)]
        values = week(*(f"0+{share * calls}" for share in shares))
        series[f'gpu_profile_region_calls_total{{{REGION}, hw_id="GPU-1", regime="{regime}"}}'] = values
    return series


def ranks(*seconds: float, calls: tuple[float, ...] = ()) -> dict[str, str]:
    """A region that ranks call 60 times in a minute, or `calls` times."""
    series = {}
    for rank, (each, count) in enumerate(zip(seconds, calls or [60] * len(seconds), strict=True)):
        about = f'{{job="s", instance="s:{rank}", region="forward"}}'
        series[f"gpu_profile_region_duration_seconds_count{about}"] = f"0+{count}x60"
        series[f"gpu_profile_region_duration_seconds_sum{about}"] = f"0+{count * each}x60"
    return series


def clocks(*mhz: int, capped: bool = False, busy: int = 59) -> dict[str, str]:
    """GPUs of a node with these clocks, the last one at its power limit if `capped`."""
    series = {}
    for index, clock in enumerate(mhz):
        gpu = f'{NODE}, hw_id="GPU-{index}"'
        series[f'nvidia_gpu_clock_hertz{{{gpu}, nvidia_gpu_clock_domain="sm"}}'] = f"{clock}e6x60"
        series[f"gpu_profile_busy_seconds_total{{{gpu}}}"] = f"0+{busy}x60"
        series[f'gpu_profile_device_info{{{gpu}, hw_name="H100", index="{index}"}}'] = "1x60"
        cap = 30 if capped and index == len(mhz) - 1 else 0
        series[f'nvidia_gpu_throttle_time_seconds_total{{{gpu}, nvidia_gpu_throttle_reason="sw_power_cap"}}'] = (
            f"0+{cap}x60"
        )
    return series


def coverage(activity: int, busy: int = 60, up: str = "1x90", target: str = "1x90") -> dict[str, str]:
    """Measured seconds of each minute."""
    return {
        f'gpu_profile_activity_observed_seconds_total{{{GPU}, nvidia_gpu_unit="sm"}}': f"0+{activity}x90",
        f"gpu_profile_observed_seconds_total{{{GPU}}}": f"0+{busy}x90",
        f"gpu_profile_device_up{{{GPU}}}": up,
        f"up{{{NODE}}}": target,
    }


def relabelled(name: str, before: str, after: str) -> dict[str, str]:
    """A GPU's series whose pod changes, with `--attribution-labels pod`."""
    return {f"{name}{{{GPU}}}": "_x90", f'{name}{{{GPU}, pod="a"}}': before, f'{name}{{{GPU}, pod="b"}}': after}


def corrected(yesterday: int, today: int) -> dict[str, str]:
    """Errors of each hour of two days."""
    name = f'hw_errors_total{{{GPU}, error_type="corrected", hw_type="gpu"}}'
    return {name: f"0+{yesterday}x24 {yesterday * 24 + today}+{today}x24"}


def gpus_of_node(second: str, third: str = "_x40", driver: str = "1x40") -> dict[str, str]:
    up = {number: f'gpu_profile_device_up{{{NODE}, hw_id="GPU-{number}"}}' for number in (1, 2, 3)}
    return {up[1]: "1x40", up[2]: second, up[3]: third, f"gpu_profile_driver_up{{{NODE}}}": driver}


def exporter_moved(here: str, there: str = "") -> dict[str, str]:
    """A node of two GPUs whose exporter's pod gets another address after 11 minutes; the second one's series."""
    series = {}
    for target, first, second in ((NODE, "1x10 stale", here), (MOVED, "_x12 1x30", there)):
        series[f'gpu_profile_device_up{{{target}, hw_id="GPU-1"}}'] = first
        series[f"gpu_profile_driver_up{{{target}}}"] = first
        if second:
            series[f'gpu_profile_device_up{{{target}, hw_id="GPU-2"}}'] = second
    return series


def twice(series: dict[str, str]) -> dict[str, str]:
    """The same exporter scraped by two jobs."""
    return series | {name.replace('job="g"', 'job="again"'): values for name, values in series.items()}


def dropped(reason: str, count: int) -> dict[str, str]:
    return {
        f'gpu_profile_samples_dropped_total{{{NODE}, reason="{reason}"}}': f"0+{count}x60",
        f"gpu_profile_samples_total{{{GPU}}}": "0+1000x60",
    }


def pcie(lanes: int, busy: int) -> dict[str, str]:
    return {
        f"nvidia_gpu_pcie_link_width{{{GPU}}}": f"{lanes}x60",
        f"nvidia_gpu_pcie_link_width_max{{{GPU}}}": "16x60",
        f"gpu_profile_busy_seconds_total{{{GPU}}}": f"0+{busy}x60",
    }


def uncertain(certain: int, refused: int, active: int = 30) -> dict[str, str]:
    energy = "gpu_profile_region_energy"
    return {
        f'{energy}_joules_total{{{REGION}, hw_id="GPU-1"}}': f"0+{certain}x120",
        f'{energy}_uncertain_joules_total{{{REGION}, hw_id="GPU-1"}}': f"0+{refused}x120",
        f"gpu_profile_region_duration_seconds_sum{{{REGION}}}": f"0+{active}x120",
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


#: The alerts that compare days or weeks, with the hours between two samples of their cases. Their minutes are hours.
HOURS = {
    "GpuHeldButIdle": 1,
    "GpuCorrectedErrorsGrow": 1,
    "RegionSlower": 2,
    "RegionHungrier": 2,
    "RegionOtherRegime": 2,
}
DURATION, ENERGY = "gpu_profile_region_duration_seconds_sum", "gpu_profile_region_energy_joules_total"
UNCERTAIN = {f'gpu_profile_region_energy_uncertain_joules_total{{{REGION}, hw_id="GPU-1"}}': week("0+500", "0+500")}


def of_gpu(name: str, fires: str, quiet: str, labels: str = "") -> tuple[dict[str, str], list[dict[str, str]]]:
    series = f"{name}{{{GPU}{labels}}}"
    return {series: fires}, [{series: quiet}]


CASES: dict[str, Case] = {
    "GpuProfileTargetDown": (
        20,
        {f"up{{{NODE}}}": "1x5 0x20", f'gpu_profile_build_info{{{NODE}, version="1"}}': "1x5 stale"},
        [{f"up{{{NODE}}}": "0x30"}, {f"up{{{NODE}}}": "1x30", f"gpu_profile_build_info{{{NODE}}}": "1x30"}],
    ),
    "GpuDriverDown": (
        10,
        {f"gpu_profile_driver_up{{{NODE}}}": "0x20"},
        [
            {f"gpu_profile_driver_up{{{NODE}}}": "1x20"},
            {f"gpu_profile_driver_up{{{NODE}}}": "1x9 0 1x9"},
            # Somebody released the GPUs.
            {
                f"gpu_profile_driver_up{{{NODE}}}": "1x2 0x20",
                f'gpu_profile_reader_restarts_total{{{NODE}, reason="released"}}': "0x2 3x20",
            },
            # The same before the first scrape of an exporter that was upgraded a moment ago.
            {
                f"gpu_profile_driver_up{{{NODE}}}": "0x20",
                f'gpu_profile_reader_restarts_total{{{NODE}, reason="released"}}': "1x20",
                f"process_start_time_seconds{{{NODE}}}": "0x20",
            },
        ],
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
            {f'gpu_profile_device_up{{{NODE}, hw_id="MIG-1"}}': "0x20", f"gpu_profile_driver_up{{{NODE}}}": "1x20"},
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
            # The XID error pages.
            {f'hw_errors_total{{{GPU}, error_type="uncorrected", hw_type="gpu"}}': "0x6 1x20"} | xid(48, FIRST),
        ],
    ),
    "GpuXidCritical": (
        10,
        # A code's counter begins with its first error, here between errors of a program.
        xid(79, FIRST) | xid(13, "0x4 1x40"),
        # Old errors, seen by a Prometheus that was just started; other errors.
        [
            xid(79, "3x20", "3x20"),
            xid(79, "_x6 3x20", "_x6 3x20"),
            xid(31, FIRST),
            xid(63, FIRST),
            xid(79, FIRST) | {f"gpu_profile_device_up{{{GPU}}}": "1x5 0x40"},
        ],
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
    "GpuProfileScrapedTwice": (
        80,
        # Of a program, as two jobs scrape each exporter of a case in any case.
        {
            f'gpu_profile_region_duration_seconds_count{{instance="s:1", job="{job}", region="a"}}': "0+1x90"
            for job in ("s", "pods")
        },
        # Once; a pod that was replaced.
        [
            {
                f'gpu_profile_region_duration_seconds_count{{instance="s:{rank}", job="s", region="a"}}': "0+1x90"
                for rank in (1, 2)
            },
            {
                f'gpu_profile_device_up{{{NODE}, hw_id="GPU-1"}}': "1x30",
                f'gpu_profile_device_up{{{MOVED}, hw_id="GPU-1"}}': "_x30 1x60",
            },
        ],
    ),
    "GpuProfileCertificateEnds": (
        90,
        *of_node("gpu_profile_http_certificate_end_timestamp_seconds", "", "86400x120", "8640000x120"),
    ),
    "GpuSpinning": (
        20,
        {f"gpu_profile_spinning_seconds_total{{{GPU}}}": "0x3 75 135+60x20"},
        # Never; long ago; half a minute now and then; for five minutes, as at a checkpoint.
        [
            {f"gpu_profile_spinning_seconds_total{{{GPU}}}": "0x10 0+60x5 300x10"},
            {f"gpu_profile_spinning_seconds_total{{{GPU}}}": "0x20"},
            {f"gpu_profile_spinning_seconds_total{{{GPU}}}": "900x20"},
            {f"gpu_profile_spinning_seconds_total{{{GPU}}}": "0 30x5 60x14"},
        ],
    ),
    "GpuVanished": (
        35,
        gpus_of_node("1x10 _x30"),
        # All there; all there under a new address; the node is gone; replaced by another one; the driver is away; the
        # MIG instances were changed.
        [
            gpus_of_node("1x40"),
            exporter_moved("1x10 stale", "_x12 1x30"),
            {name: "1x10 stale" for name in exporter_moved("") if "n:9400" in name},
            gpus_of_node("1x10 stale", "_x11 1x30"),
            gpus_of_node("1x10 _x30", driver="1x10 0x30"),
            {f'gpu_profile_device_up{{{NODE}, hw_id="MIG-1"}}': "1x10 _x30"} | gpus_of_node("1x40"),
        ],
    ),
    "GpuCoverageLow": (
        60,
        coverage(40),
        # All measured; the same with a label of a new pod; busy time is missing altogether; after a loss; after a
        # restart of the exporter.
        [
            coverage(59),
            coverage(59) | relabelled("gpu_profile_observed_seconds_total", "0+60x20 stale", "_x21 0+60x69"),
            coverage(40, busy=20),
            coverage(40, up="1x20 0x9 1x61"),
            coverage(40, target="1x20 0x9 1x61"),
        ],
    ),
    "GpuSamplesDropped": (50, dropped("late", 30), [dropped("late", 5), dropped("duplicate", 500)]),
    "GpuHeldButIdle": (
        28,
        idle(20),
        # Used; held by another pod since; held by nobody; measured for half of the time.
        [idle(120), idle(20, pods=("a", "b")), idle(20, pods=("", "")), idle(20, observed=1800)],
    ),
    "GpuMemoryNearlyFull": (20, *of_gpu("hw_gpu_memory_utilization_ratio", "0.99x30", "0.95x30")),
    "GpuClockBelowPeers": (
        45,
        clocks(1980, 1980, 1965, 1980, 1600),
        [
            clocks(1980, 1980, 1965, 1980, 1900),
            clocks(1980, 1980, 1965, 1980, 1600, capped=True),
            clocks(1980, 1980, 1600),
            clocks(1980, 1980, 1965, 1980, 1600, busy=30),
        ],
    ),
    "GpuPcieLinkNarrow": (50, pcie(8, 30), [pcie(16, 30), pcie(8, 1)]),
    "GpuNvLinkErrors": (
        20,
        *of_gpu("nvidia_gpu_nvlink_errors_total", "0x5 5x30", "0x5 1x30", ', error_type="recovery"'),
    ),
    "GpuNvLinkDown": (20, *of_gpu("nvidia_gpu_nvlink_link_state", "1x5 0x30", "0x35", ', nvidia_gpu_nvlink_link="3"')),
    # Steady; few; the exporter was installed a day ago.
    "GpuCorrectedErrorsGrow": (
        47,
        corrected(2, 20),
        [corrected(20, 20), corrected(0, 3), dict.fromkeys(corrected(0, 0), "_x20 0+20x30")],
    ),
    "RegionSlower": (
        174,
        cost(DURATION, 1, 1.4),
        # A little; faster; too few calls; more of the calls in a slow namespace; a new region.
        [
            cost(DURATION, 1, 1.2),
            cost(DURATION, 1.4, 1),
            cost(DURATION, 1, 1.4, calls=50),
            namespaces(600, 1400),
            {name: "_x84 " + values.split()[-1] for name, values in cost(DURATION, 1, 1.4).items()},
        ],
    ),
    "RegionHungrier": (
        174,
        cost(ENERGY, 100, 140, labels=', hw_id="GPU-1"'),
        [cost(ENERGY, 100, 120, labels=', hw_id="GPU-1"'), cost(ENERGY, 1, 1.4, labels=', hw_id="GPU-1"') | UNCERTAIN],
    ),
    "RegionOtherRegime": (
        174,
        regime_change("COMPUTE_BOUND", "MEMORY_BOUND"),
        [regime_change("COMPUTE_BOUND", "COMPUTE_BOUND"), regime_change("COMPUTE_BOUND", "MEMORY_BOUND", calls=50)],
    ),
    "RegionMostlyUncertain": (110, uncertain(100, 400), [uncertain(400, 100), uncertain(100, 400, active=1)]),
    "RankStraggles": (
        45,
        ranks(0.2, 0.2, 0.21, 0.3),
        # Even; replicas, which are called at rates of their own; three ranks.
        [ranks(0.2, 0.2, 0.21, 0.22), ranks(0.2, 0.2, 0.21, 0.3, calls=(60, 50, 70, 60)), ranks(0.2, 0.2, 0.3)],
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
    alerts: Sequence[dict[str, Any]] = (),
    quiets: Sequence[dict[str, str]] = (),
) -> None:
    """Evaluate the committed rules over series with a value per `step` and compare. `only` one alert is faster.

    That alert must not fire over any of `quiets`, nor more often where two jobs scrape the exporter.
    """
    files = [str(path) for path in RULE_FILES]
    if only:
        rules = [
            rule for rule in RULES if only == rule.get("alert") or rule.get("record", "\0") in ALERTS[only]["expr"]
        ]
        files = [str(tmp_path / "rules.json")]
        (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": only, "rules": rules}]}))
    tests = [(series, expectations), *((quiet, [firing(only, 0)]) for quiet in quiets)]
    if only and 'job="g"' in str(series):
        tests.append((twice(series), expectations))
    test = {
        "rule_files": files,
        "evaluation_interval": step,
        "tests": [
            {
                "interval": step,
                "input_series": [{"series": name, "values": values} for name, values in given.items()],
                "promql_expr_test": [{"eval_time": f"{minute}m", **expectation} for expectation in expected],
                "alert_rule_test": [*alerts],
            }
            for given, expected in tests
        ],
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
    time, fires, quiets = CASES[name]
    minute, step = (time * 60, f"{HOURS[name]}h") if name in HOURS else (time, "1m")
    promtool(tmp_path, minute, fires, [firing(name, 1)], only=name, step=step, quiets=quiets)


@pytest.mark.debian
def test_a_gpu_that_falls_off_the_bus_pages_once_even_if_it_comes_back(tmp_path: Path) -> None:
    lost = xid(79, FIRST) | {
        f"gpu_profile_device_up{{{GPU}}}": "1x5 0x5 1x30",
        f"gpu_profile_driver_up{{{NODE}}}": "1x40",
    }
    pages = 'count(count_over_time(ALERTS{severity="page", alertstate="firing"}[30m])) by (alertname)'
    once = {"expr": pages, "exp_samples": [{"labels": '{alertname="GpuLost"}', "value": 1}]}
    promtool(tmp_path, 30, lost, [once])


@pytest.mark.debian
def test_the_only_gpu_of_a_node_is_reported_when_it_vanishes(tmp_path: Path) -> None:
    promtool(
        tmp_path,
        35,
        gpus_of_node("_x40") | {f'gpu_profile_device_up{{{NODE}, hw_id="GPU-1"}}': "1x10 _x30"},
        [firing("GpuVanished", 1)],
        only="GpuVanished",
    )


@pytest.mark.debian
def test_a_gpu_that_vanishes_while_its_exporter_gets_a_new_address_is_reported_once(tmp_path: Path) -> None:
    promtool(tmp_path, 45, exporter_moved("1x10 stale"), [firing("GpuVanished", 1)], only="GpuVanished")


@pytest.mark.debian
def test_an_exporter_that_two_jobs_scrape_is_reported(tmp_path: Path) -> None:
    series = twice({f"gpu_profile_device_up{{{GPU}}}": "1x90"})
    promtool(tmp_path, 80, series, [firing("GpuProfileScrapedTwice", 1)], only="GpuProfileScrapedTwice")


@pytest.mark.debian
def test_a_gpu_that_is_lost_for_a_moment_pages_for_its_critical_error(tmp_path: Path) -> None:
    back = xid(79, FIRST) | {f"gpu_profile_device_up{{{GPU}}}": "1x5 0 1x30"}
    promtool(tmp_path, 12, back, [firing("GpuXidCritical", 1), firing("GpuLost", 0)])


@pytest.mark.debian
@pytest.mark.parametrize("attributed", [True, False])
def test_an_alert_names_the_gpu_by_index_and_model_and_its_pod_as_far_as_they_are_attributed(
    attributed: bool, tmp_path: Path
) -> None:
    series = {f"nvidia_gpu_remapped_rows_pending{{{GPU}}}": "1x20"}
    name = "GPU GPU-1 on n:9400"
    if attributed:
        series[f'gpu_profile_device_info{{{GPU}, index="3", hw_name="NVIDIA H100"}}'] = "1x5 _x20"
        held = f'gpu_profile_allocation_info{{{GPU}, source="%s", k8s_namespace_name="ml", k8s_pod_name="train-0"}}'
        series |= {held % source: "1x20" for source in ("kubelet", "dra")}
        name = "GPU 3 (NVIDIA H100) on n:9400, pod train-0"
    annotations = dict(ALERTS["GpuRowRemapPending"]["annotations"])
    annotations["summary"] = f"{name} waits for a reset to remap memory rows"
    annotations["dashboard_url"] = "/d/gpu-profile-gpu?var-instance=n%3A9400&var-gpu=GPU-1"
    labels = {"severity": "ticket", "instance": "n:9400", "hw_id": "GPU-1"}
    expected = {"exp_labels": labels, "exp_annotations": annotations}
    alert = {"eval_time": "15m", "alertname": "GpuRowRemapPending", "exp_alerts": [expected]}
    promtool(tmp_path, 15, series, [], only="GpuRowRemapPending", alerts=[alert])


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
        part = f'gpu_profile_device_info{{{NODE}, hw_id="MIG-%d", kind="mig", hw_parent="GPU-1"}}'
        told |= {part % 1: "1x850", part % 2: "1x850"}
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
    # `test_grafana_costs` has those of the other files.
    groups = yaml.safe_load((GRAFANA / "rules" / "gpu-profile.yaml").read_text())["groups"]
    assert {name for name, _, _ in expected} == {rule["record"] for group in groups for rule in group["rules"]}
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
