"""An exporter that keeps the node's timeline, and programs that are joined from it, as processes of their own."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from integration.node.exporters import Exporter
from support.programs import printed

from gpu_profile.driver.node.table import TableFile
from gpu_profile.recording import read_recording

#: Works on the simulated GPU for a while and tells what its regions cost, and of what. NVML is never loaded: a process
#: that imports the binding fails.
SERVICE = """
import builtins, json, sys, time
from pathlib import Path
from gpu_profile import configure, region
from gpu_profile.driver.simulated import SimulatedQueue, Work
from gpu_profile.regions.session import process

queue = SimulatedQueue(Path(sys.argv[1]))
configure(stream=queue, devices=queue.device_uuid)
sys.modules["pynvml"] = None
ends = time.monotonic() + 6
while time.monotonic() < ends:
    with region("step", span=False):
        queue.launch(Work(seconds=0.4, flops=1e12))
        queue.synchronize()
    time.sleep(0.1)
session = process.session()
session.flush()
session.settle(final=True)
pooled = session.joiner.pools[queue.device_uuid].pooled("step")
timeline = session.sampler.timeline(queue.device_uuid)
print(json.dumps({
    "driver": session.sampler.driver.name,
    "busy_s": pooled.busy.value,
    "energy_j": pooled.energy.value,
    "active_s": pooled.active_s,
    "samples": {row.key: len(column) for row, column in timeline.columns.items()},
    "implausible": sum(column.dropped["implausible"] for column in timeline.columns.values()),
}))
"""


@pytest.mark.parametrize("named", [True, False], ids=["node:DIR", "auto"])
def test_a_program_is_joined_from_the_node_s_timeline_without_nvml(exporter: Exporter, named: bool) -> None:
    variables = {"GPU_PROFILE_TIMELINE": str(exporter.timeline)}
    if named:
        variables["GPU_PROFILE_BACKEND"] = f"node:{exporter.timeline}"
    found = json.loads(printed("-c", SERVICE, str(exporter.node), **variables))
    assert found["driver"] == f"node:{exporter.timeline}"
    assert found["active_s"] >= 3
    assert found["busy_s"] == pytest.approx(found["active_s"], rel=0.15)
    assert found["energy_j"] / found["active_s"] > 150
    assert {key for key, n in found["samples"].items() if n} >= {"energy", "power", "graphics", "memory_used"}
    assert not found["implausible"]


def test_a_recording_through_the_timeline_waits_for_its_last_samples(exporter: Exporter, tmp_path: Path) -> None:
    """They are a second behind."""
    out = tmp_path / "out"
    printed("-m", "gpu_profile.cli", "record", str(out), "--driver", f"node:{exporter.timeline}", "--seconds", "3")
    (found,) = read_recording(out).samples.values()
    for key in ("energy", "power", "graphics"):
        assert found[key].t_end[-1] - found[key].t_end[0] >= 3e9, key


def test_a_killed_exporter_leaves_a_history_that_the_next_one_goes_on_with(tmp_path: Path) -> None:
    first = Exporter(tmp_path, scenario='[[device]]\nmodel = "A10G"\n')
    first.wait()
    time.sleep(0.5)
    first.process.kill()
    first.process.communicate()
    second = Exporter(tmp_path)
    second.wait(files=2)
    (one,) = TableFile(second.timeline).read().devices
    assert len(set(one.files)) == 2
    second.stop()
    assert TableFile(second.timeline).read().ended


def test_a_second_exporter_does_not_keep_the_same_folder(exporter: Exporter, tmp_path: Path) -> None:
    again = Exporter(tmp_path)
    _, said = again.process.communicate(timeout=30)
    assert again.process.returncode == 2
    assert said.strip() == f"gpu-profile-exporter: --timeline: another exporter keeps {exporter.timeline}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system")
def test_a_full_file_system_costs_the_timeline_its_samples_and_the_exporter_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "timeline"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (folder / "filler").write_bytes(b"x" * 40_000)
        made = Exporter(tmp_path, scenario='[[device]]\nmodel = "H100 SXM"\n' * 3)
        said = ""
        assert made.process.stderr is not None
        for line in made.process.stderr:
            said += line
            if "No space left" in line:
                break
        assert "the timeline in" in said
        time.sleep(1)
        assert made.process.poll() is None
        made.process.send_signal(signal.SIGTERM)
        made.process.communicate(timeout=20)
        assert made.process.returncode == 0
    finally:
        subprocess.run(["umount", str(folder)], check=True)
