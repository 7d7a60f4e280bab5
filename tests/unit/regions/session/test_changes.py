"""Changes of a region's regime while the program runs, on simulated GPUs."""

import logging
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk import _logs
from opentelemetry.sdk._logs import export
from support.regions import Stage

from gpu_profile import region
from gpu_profile.catalogue.samples import Device
from gpu_profile.driver.simulated import Work
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.region_watch import RegionChange, RegionWatch
from gpu_profile.join.unmixing.pools.periods import Period
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Regime
from gpu_profile.regimes.regime_watch import RegimeChange
from gpu_profile.regions.session.changes import MOST_A_MINUTE, Changes
from gpu_profile.regions.telemetry.log_records import leave_events, log_events
from gpu_profile.testing import FakeClock

STEP_S = 0.4
MEMORY = Work(flops=1e9, bytes=0.95 * STEP_S * 0.8 * 4.8e12)
COMPUTE = Work(flops=0.95 * STEP_S * 0.8 * 989e12, bytes=1e9)


def train(stage: Stage, work: Work, seconds: float) -> None:
    until_ns = stage.clock.now_ns() + int(seconds * 1e9)
    while stage.clock.now_ns() < until_ns:
        with region("train"):
            stage.queue.launch(work, tag="train")
            stage.run(STEP_S)


def test_a_regions_change_in_the_middle_of_a_run_is_one_log_record_and_one_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory: Any = getattr(export, "InMemoryLogRecordExporter", None) or getattr(export, "InMemoryLogExporter", None)
    exporter = memory()
    provider = _logs.LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(export.SimpleLogRecordProcessor(exporter))
    log_events(provider)
    caplog.set_level(logging.INFO, "gpu_profile")
    with Stage(tmp_path, monkeypatch) as stage:
        train(stage, MEMORY, 45)
        assert [r for r in caplog.records if "until" in r.getMessage()] == []
        changed_ns = stage.clock.now_ns()
        train(stage, COMPUTE, 45)
        uuid = stage.uuid
    leave_events()
    provider.shutdown()
    (line,) = [r for r in caplog.records if "until" in r.getMessage()]
    assert line.levelno == logging.INFO
    assert f"train on device {uuid}: MEMORY_BOUND until " in line.getMessage()
    assert " UTC, then COMPUTE_BOUND: compute >= ceiling, above memory, confidence 9" in line.getMessage()
    (record,) = [found.log_record for found in exporter.get_finished_logs()]
    assert abs(record.timestamp - changed_ns) <= 10e9
    assert (getattr(record, "event_name", None) or record.attributes["event.name"]) == (
        "gpu_profile.region.regime_changed"
    )
    assert record.severity_text == "INFO"
    attributes = dict(record.attributes)
    assert attributes.pop("gpu_profile.confidence") > 0.9
    attributes.pop("event.name", None)
    assert attributes == {
        "gpu_profile.region": "train",
        "hw.id": uuid,
        "hw.type": "gpu",
        "gpu_profile.regime.before": "MEMORY_BOUND",
        "gpu_profile.regime": "COMPUTE_BOUND",
        "gpu_profile.basis": "counters",
        "gpu_profile.reason": "compute >= ceiling, above memory",
    }


def test_a_minute_has_a_bounded_number_of_records_and_the_next_one_counts_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change = RegimeChange(Regime.IDLE, Regime.HOST_BOUND, 43_390 * 10**9, 0.8, "counters", "rule")
    many = [RegionChange(f"region {i}", "GPU-a", change) for i in range(3)]
    monkeypatch.setattr(RegionWatch, "take", lambda *_: many)
    caplog.set_level(logging.INFO, "gpu_profile")
    clock = FakeClock()
    changes = Changes(DEFAULT_THRESHOLDS, clock)
    heard: list[RegionChange] = []
    changes.on_change.append(heard.append)
    take = changes.watch(Timeline(Device("GPU-a")))
    for _ in range(10):
        take(Period(0, 0, {}, {}))
        clock.advance(1)
    assert len(caplog.records) == len(heard) == MOST_A_MINUTE
    assert caplog.records[0].getMessage() == (
        "gpu-profile: region 0 on device GPU-a: IDLE until 12:03:10 UTC, then HOST_BOUND: rule, confidence 80 %"
    )
    clock.advance(60)
    take(Period(0, 0, {}, {}))
    assert caplog.records[MOST_A_MINUTE].getMessage().endswith(" (20 more changes were not logged)")
    assert not caplog.records[-1].getMessage().endswith("logged)")
