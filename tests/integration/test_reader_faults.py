"""Some of the faults in `benchmarks.fault_scripts` under the real exporter; `exporter_faults.py` runs them all."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.fault_runs import bench, judge, run
from benchmarks.fault_scripts import FAULTS, GPUS, Fault
from support.exporter import series
from support.nvml_stub.build import CannotBuildError, build
from support.programs import until

CHOSEN = (
    "a GPU is lost, and comes back",
    "a GPU hangs in its field values",
    "an XID comes while its GPU hangs",
    "a call outlasts what made it hang",
    "the driver is replaced by another version",
    "the first GPU is taken out: indices shift",
    "two GPUs are taken out for good while the reader dies",
    "a GPU is put back that only a new start of NVML lists",
    "a GPU's call crashes the reader",
    "garbage in the reader's pipe",
    "the GPUs are released twice",
)
#: Told of how a fault went, and judged by the benchmark alone: a loaded machine takes its time.
TIMES = ("took", "had no samples for", "was told after", "was told as down")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("stub"))
    except CannotBuildError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in CHOSEN], ids=lambda fault: fault.name)
def test_an_exporter_outlives_its_driver_s_fault_and_recovers(fault: Fault, library: Path, tmp_path: Path) -> None:
    short = replace(fault, seconds=min(fault.seconds, 3.0))
    outcome = judge(short, run(short, library, tmp_path / "node"))
    assert [problem for problem in outcome.problems if not any(words in problem for words in TIMES)] == []


def test_the_faults_chosen_are_in_the_table_and_the_table_has_each_once() -> None:
    names = [fault.name for fault in FAULTS]
    assert set(CHOSEN) <= set(names)
    assert len(names) == len(set(names)) >= 30


def test_a_gpu_that_hangs_hides_no_other_and_neither_stops_scrapes_nor_fails_liveness_nor_delays_the_end(
    library: Path, tmp_path: Path
) -> None:
    with bench(library, tmp_path / "node", Fault(name="a GPU hangs")) as node:
        running = node.exporter

        def up() -> list[float]:
            found = series(running.get("/metrics")[2].decode())
            return sorted(value for name, value in found.items() if name.startswith("gpu_profile_device_up{"))

        # NVML does not tell the UUID of a GPU that hangs before it has been listed.
        until(lambda: up() == [1] * GPUS, "all GPUs up")
        node.control("hang 1 * 600")
        until(lambda: up() == [0] + [1] * (GPUS - 1), "one GPU down and the others up")
        assert running.get("/-/healthy")[0] == running.get("/-/ready")[0] == 200
        devices = json.loads(running.get("/api/devices")[2])["devices"]
        (down,) = [device for device in devices if device["reason"]]
        assert "hangs" in down["reason"]
        found = series(running.get("/metrics")[2].decode())
        assert found["gpu_profile_driver_up"] == 1
        for device in devices:
            told = any(name.startswith("hw_power_watts{") and device["uuid"] in name for name in found)
            assert told is (device is not down)
        assert running.end()[0] == 0
