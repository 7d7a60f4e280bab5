"""Jobs of several processes under `gpu-profile`: one report of all of them."""

import shutil
import sys
from pathlib import Path

import pytest
from integration.running import last_line, profile
from support.nodes import node_of

from gpu_profile.driver import simulated
from gpu_profile.recording import read_recording

NODE = node_of("H200 SXM", "H200 SXM")

#: What each rank does: waits longer the higher it is, then works on its own GPU.
WORK = """
import os, time
from gpu_profile import region, use_stream
from gpu_profile.driver.simulated import SimulatedQueue, Work

rank = int(os.environ["RANK"])
queue = SimulatedQueue(os.environ["GPU_PROFILE_BACKEND"].partition(":")[2], device=rank)
use_stream(queue)
for _ in range(8):
    with region("step", span=False, items=4):
        with region("load", span=False):
            time.sleep(0.02 + 0.06 * rank)
        with region("forward", span=False):
            queue.launch(Work(seconds=0.05))
            queue.synchronize()
"""

#: A launcher in a shell: two ranks side by side.
LAUNCHER = """
for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 "$@" & done
wait
"""


@pytest.fixture
def node(tmp_path: Path) -> str:
    return f"simulated:{simulated.create(tmp_path / 'node', NODE)}"


@pytest.fixture
def work(tmp_path: Path) -> str:
    (tmp_path / "work.py").write_text(WORK)
    return str(tmp_path / "work.py")


def test_regions_of_all_ranks_are_one_report_with_the_slowest_named(node: str, work: str, tmp_path: Path) -> None:
    words = ["sh", "-c", LAUNCHER, "sh", sys.executable, work]
    path = tmp_path / "result.json"
    directory = tmp_path / "recording"
    done = profile("--backend", node, "--json-file", str(path), "--record", str(directory), "--", *words)
    assert (done.returncode, done.stdout) == (0, "")
    assert "2 ranks, mean time per call of " in done.stderr
    assert any(line.startswith("load ") and " rank 1 " in line for line in done.stderr.splitlines())
    found = last_line(path.read_text())
    ranks = {each["region"]: each for each in found["ranks"]}
    assert set(ranks) == {"step", "load", "forward"}
    assert (ranks["load"]["differ"], ranks["load"]["slowest"]) == (True, 1)
    assert 2 < ranks["load"]["most_s"] / ranks["load"]["least_s"] < 5
    assert [use["calls"] for use in ranks["step"]["ranks"]] == [8, 8]
    devices = {(region["region"], region["device"]) for region in found["regions"]}
    assert devices == {(name, device["uuid"]) for name in ranks for device in found["devices"]}

    recording = read_recording(directory)
    assert sorted((p.rank is None, p.rank, p.world_size) for p in recording.processes if p.rank is not None) == [
        (False, 0, 2),
        (False, 1, 2),
    ]
    files = {int(path.name.split("-")[-2]): path.stat().st_size for path in directory.glob("*.gpr")}
    (watcher,) = (process.pid for process in recording.processes if process.rank is None)
    assert all(size < files[watcher] for pid, size in files.items() if pid != watcher), "samples are recorded once"


def test_a_device_counts_once_whoever_samples_it_too(node: str, work: str, tmp_path: Path) -> None:
    directory = tmp_path / "recording"
    # The command reads the same devices by itself, and records them into the same place.
    words = ["env", "-u", "GPU_PROFILE_SAMPLED", sys.executable, work]
    done = profile("--backend", node, "--record", str(directory), "--", *words, RANK="0", WORLD_SIZE="1")
    assert done.returncode == 0
    sources = []
    for number, path in enumerate(directory.glob("*.gpr")):
        (tmp_path / str(number)).mkdir()
        shutil.copy(path, tmp_path / str(number))
        sources.append(read_recording(tmp_path / str(number)).samples)
    assert len(sources) == 2
    both = sources[0].keys() & sources[1].keys()
    assert both, "the command reads the device that its child is on"
    for uuid, columns in read_recording(directory).samples.items():
        if uuid not in both:
            continue
        for key in ("power", "energy"):
            one, other = (len(source[uuid][key].value) for source in sources)
            merged = len(columns[key].value)
            assert max(one, other) - 20 < merged < one + other, (key, one, other, merged)


def test_torchrun_gives_one_merged_report(node: str, work: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    path = tmp_path / "result.json"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0"]
    words = [*launcher, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", work]
    done = profile("--backend", node, "--json-file", str(path), "--", *words, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    found = last_line(path.read_text())
    assert {each["region"]: each["slowest"] for each in found["ranks"]}["load"] == 1
    assert "rank 1" in done.stderr


def test_a_rank_that_fails_does_not_hide_what_the_others_did(node: str, work: str) -> None:
    script = f'RANK=0 WORLD_SIZE=2 "$@"; RANK=1 WORLD_SIZE=2 {sys.executable} -c "raise SystemExit(3)"'
    done = profile("--backend", node, "--json", "--", "sh", "-c", script, "sh", sys.executable, work)
    found = last_line(done.stdout)
    assert (done.returncode, found["ranks"]) == (3, [])
    assert {region["region"] for region in found["regions"]} == {"step", "load", "forward"}
    assert found["command"][-1] == work
