import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.programs import environment, ran

from gpu_profile.driver.simulated import Truth

#: Loads, computes and streams memory on a simulated GPU, equally often on a busy machine, where that takes longer than
#: 15 s; the last argument scales the streaming.
PROGRAM = """
import random, sys, time
from gpu_profile import configure, process, region
from gpu_profile.driver.simulated import SimulatedQueue, Work, create

node = create(sys.argv[1])
queue = SimulatedQueue(node, device=0)
configure(backend=f"simulated:{node}", stream=queue, interval_s=0.02, record=sys.argv[2])
rng, end = random.Random(1), time.monotonic() + 120
for _ in range(120):
    if time.monotonic() > end:
        break
    with region("request"):
        with region("load"):
            time.sleep(rng.uniform(0.02, 0.06))
        with region("prefill"):
            queue.launch(Work(flops=rng.uniform(10, 30) * 1e12, bytes=1e8), tag="prefill")
        for _ in range(rng.randint(3, 9)):
            with region("decode", items=4):
                queue.launch(Work(flops=1e9, bytes=rng.uniform(20, 40) * 1e9 * float(sys.argv[3])), tag="decode")
        queue.synchronize()
process.stop()
"""


def gpu_profile(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpu_profile.cli", *arguments]
    return ran(command)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("analysis")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, place / f"node-{name}", place / name, scale], env=environment()
        )
        for name, scale in (("a", "1.0"), ("b", "1.5"))
    ]
    assert [process.wait(180) for process in running] == [0, 0]
    return place


def test_an_analysis_of_a_recorded_program_is_near_the_truth(recorded: Path) -> None:
    done = gpu_profile("analyze", str(recorded / "a"), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    regions: dict[str, dict[str, Any]] = {row["region"]: row for row in json.loads(done.stdout)["regions"]}
    truth = Truth(recorded / "node-a")
    assert set(regions) == {"request", "load", "prefill", "decode"}
    for name in ("prefill", "decode"):
        row, real = regions[name], truth.tag(0, name)
        assert (row["interval_source"], row["reasons"]) == ("device", [])
        # Beside others the program has fewer executions in its time, and the interval is wider.
        doubt = 2 * row["busy_half_width"] * row["interval_s"]
        assert row["busy_s"] == pytest.approx(real.busy_s, abs=max(0.1 * real.busy_s, doubt))
    # Beside others its samples may come so late that several timings of the sensor fit: then it says so.
    load, right = regions["load"], {"load": "HOST_BOUND", "prefill": "COMPUTE_BOUND", "decode": "MEMORY_BOUND"}
    assert load["busy"] == pytest.approx(0.0, abs=0.05) if load["busy"] is not None else load["reasons"]
    for name, regime in right.items():
        verdict = regions[name]["verdict"]
        assert verdict["regime"] in {regime, "UNKNOWN"} or verdict["confidence"] < 0.5, name
    assert regions["decode"]["verdict"]["regime"] == "MEMORY_BOUND"
    assert regions["decode"]["items"] == 4 * regions["decode"]["calls"]


def test_a_change_that_makes_decode_dearer_fails_the_gate_and_only_that_one(recorded: Path) -> None:
    a, b = str(recorded / "a"), str(recorded / "b")
    worse = gpu_profile("compare", a, b, "--fail-on", "decode.energy/item > +20%", "--fail-on", "decode.busy > +1 ms")
    assert worse.returncode == 1
    assert worse.stderr.count("gpu-profile: holds: decode.") == 2
    assert worse.stdout.count("\nholds: ") == 2
    better = gpu_profile("compare", b, a, "--fail-on", "decode.energy > +5%", "--fail-on", "decode.busy > +5%")
    assert (better.returncode, better.stderr) == (0, "")
    assert gpu_profile("compare", a, a, "--fail-on", "decode.energy > +0%").returncode == 0
