"""`make gpu` rehearsed on a simulated node: what it leaves, also when a part is killed, hangs or is refused."""

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from gpu.folder import Folder
from support.hardware import KERNELS, KIT

from gpu_profile.analysis import analyse
from gpu_profile.driver import simulated
from gpu_profile.recording import read_recording

MOST_FILES, LARGEST = 8, 16 << 20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("node")
    simulated.create(directory)
    return f"simulated:{directory}"


def kit(out: Path, backend: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(KIT), str(out), "--backend", backend, "--scale", "0.02", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def parts(out: Path, stage: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "record.json").read_text())["stages"][stage]
    return found


def test_figures_recordings_and_a_table_are_left(tmp_path: Path, node: str) -> None:
    names = "machine,signals,release,solo,locked,told,pm_sampling"
    process = kit(tmp_path, node, "--stages", "sensors,truth,counters", "--parts", names)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    files = list(tmp_path.iterdir())
    assert len(files) <= MOST_FILES
    assert all(path.stat().st_size < LARGEST for path in files)
    sensors, truth = parts(tmp_path, "sensors"), parts(tmp_path, "truth")
    assert sensors["machine"]["figures"]["device"] == "NVIDIA H200"
    signals = sensors["signals"]["figures"]
    assert signals["available_without_a_sample"] == []
    assert signals["beyond_their_limits"] == []
    assert signals["signals"]["utilization"]["busy"][2] > signals["signals"]["utilization"]["idle"][2]
    assert signals["call_us_busy"]["nvmlDeviceGetFieldValues"]["n"] >= 1
    assert sensors["release"]["figures"]["said"] == "released for 5 s"
    assert truth["told"]["figures"]["locked"]["copy"]["executions"] > 1
    assert "simulated" in parts(tmp_path, "counters")["pm_sampling"]["skipped"]
    table = (tmp_path / "table.md").read_text()
    assert "# NVIDIA H200" in table
    assert "### locked" in table
    with tarfile.open(tmp_path / "truth.tar.xz") as archive:
        assert not any(socket.gethostname() in name for name in archive.getnames())
        archive.extractall(tmp_path / "truth", filter="data")
    analysis = analyse(read_recording(tmp_path / "truth" / "truth" / "solo"))
    assert {use.summary.region.removeprefix("solo.") for use in analysis.regions} == {"warm", *KERNELS}
    assert all(use.summary.interval_source == "device" for use in analysis.regions)
    recording = read_recording(tmp_path / "truth" / "truth" / "locked")
    assert not recording.problems
    assert all(uuid.startswith("GPU-00000000-0000-4000-8000-") for uuid in recording.samples)
    assert {process.host for process in recording.processes} == {"host"}


# The grace of the part that hangs is long enough for any to start beside two busy loops.
def test_a_part_that_is_killed_or_hangs_costs_no_other(tmp_path: Path, node: str) -> None:
    names = "machine,signals,plain_user,release"
    with kit(tmp_path, node, "--stages", "sensors", "--parts", names, "--grace-s", "6") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("sensors: signals"):
                os.kill(stage_of(process.pid), signal.SIGKILL)
            elif line.startswith("sensors: plain_user"):
                os.kill(stage_of(process.pid), signal.SIGSTOP)
    assert process.returncode == 0
    found = parts(tmp_path, "sensors")
    assert found["machine"]["figures"]["device"]
    assert "ended with -9" in found["signals"]["failed"]
    assert "no answer" in found["plain_user"]["failed"]
    assert found["release"]["figures"]["said"] == "released for 5 s"
    assert "**failed**" in (tmp_path / "table.md").read_text()


def stage_of(pid: int) -> int:
    """The process of the stage that the kit has started last."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[-1])


def test_an_end_from_outside_keeps_what_there_is(tmp_path: Path, node: str) -> None:
    child = 0
    with kit(tmp_path, node, "--stages", "sensors", "--parts", "machine,signals", "--scale", "1") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("sensors: signals"):
                child = stage_of(process.pid)
                process.terminate()
    assert process.returncode == 143
    assert child
    found = parts(tmp_path, "sensors")
    assert found["machine"]["figures"]["device"]
    assert found["signals"]["skipped"] == "no time was left"
    assert (tmp_path / "sensors.tar.xz").exists()
    assert not Path(f"/proc/{child}").exists()


def test_a_machine_without_a_driver_says_so_in_every_part(tmp_path: Path) -> None:
    process = kit(tmp_path, "nvml", "--stages", "sensors,counters")
    process.communicate(timeout=120)
    assert process.returncode == 0
    for stage in ("sensors", "counters"):
        for name, part in parts(tmp_path, stage).items():
            reason = part.get("failed") or part.get("skipped")
            assert reason, name
            assert "figures" not in part


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--stages", "sensors,nonsense"), "no stage nonsense: there are sensors, truth, cost, counters, joint, node"),
        (("--parts", "nonsense"), "no part nonsense in "),
        (("--scale", "0"), "--scale must be above 0, not 0"),
    ],
)
def test_wrong_options_are_refused_in_a_line(tmp_path: Path, options: tuple[str, ...], complaint: str) -> None:
    process = kit(tmp_path / "out", "nvml", *options)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert complaint in said
    assert not (tmp_path / "out").exists()


def test_no_name_of_the_machine_and_no_uuid_is_left_and_a_file_that_is_cut_off_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node17.example.org")
    uuid = "9f0a1b2c-1111-2222-3333-444455556666"
    stage, out = tmp_path / "stage", Folder(tmp_path / "out")
    stage.mkdir()
    (stage / "log.txt").write_text(f"node17 said: cannot reach node17:9400, GPU-{uuid.upper()}, {uuid}, mynode17")
    (stage / "trace.json.gz").write_bytes(gzip.compress(b'{"host": "node17.example.org"}'))
    (stage / "cut.json.gz").write_bytes(gzip.compress(b"node17" * 1000)[:-9])
    assert [name.partition(":")[0] for name in out.pack("truth", stage)] == ["cut.json.gz"]
    out.write({"device": f"GPU-{uuid}", "stages": {"truth": {"a": {"failed": "on node17", "about": ""}}}})
    with tarfile.open(tmp_path / "out" / "truth.tar.xz") as archive:
        archive.extractall(tmp_path / "x", filter="data")
    text = (tmp_path / "x" / "truth" / "log.txt").read_text()
    stand_in = "00000000-0000-4000-8000-000000000000"
    assert text == f"host said: cannot reach host:9400, GPU-{stand_in}, {stand_in}, mynode17"
    assert gzip.decompress((tmp_path / "x" / "truth" / "trace.json.gz").read_bytes()) == b'{"host": "host"}'
    record = (tmp_path / "out" / "record.json").read_text()
    assert "node17" not in record + (tmp_path / "out" / "table.md").read_text()
    assert out.read()["device"] == f"GPU-{stand_in}"
