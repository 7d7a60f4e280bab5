"""Recordings of a program before and after a change, on a clock of its own, analysed and compared by the command."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.programs import ran
from support.regions import Stage

from gpu_profile import region
from gpu_profile.driver.simulated import Truth, Work
from gpu_profile.units import NS_PER_S


def record(place: Path, name: str, scale: float) -> None:
    """Loads, computes and streams memory on a simulated GPU and clock; `scale` is how much more it streams."""
    rng = random.Random(1)  # noqa: S311 - the same every time
    with (
        pytest.MonkeyPatch.context() as patch,
        Stage(place / f"node-{name}", patch, interval_s=0.02, record=place / name) as stage,
    ):
        queue = stage.queue
        for _ in range(240):
            with region("request"):
                with region("load"):
                    stage.run(rng.uniform(0.02, 0.06))
                with region("prefill"):
                    queue.launch(Work(flops=rng.uniform(10, 30) * 1e12, bytes=1e8), tag="prefill")
                for _ in range(rng.randint(3, 9)):
                    with region("decode", items=4):
                        queue.launch(Work(flops=1e9, bytes=rng.uniform(20, 40) * 1e9 * scale), tag="decode")
                stage.run(max(0.0, (queue.record().passed_ns - stage.clock.now_ns()) / NS_PER_S))
        stage.flush()


def gpu_profile(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpu_profile.cli", *arguments]
    return ran(command)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("analysis")
    record(place, "a", 1.0)
    record(place, "b", 1.5)
    return place


def test_an_analysis_of_a_recorded_program_is_near_the_truth(recorded: Path) -> None:
    done = gpu_profile("analyze", str(recorded / "a"), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    regions: dict[str, dict[str, Any]] = {row["region"]: row for row in json.loads(done.stdout)["regions"]}
    truth = Truth(recorded / "node-a" / "node")
    assert set(regions) == {"request", "load", "prefill", "decode"}
    for name in ("prefill", "decode"):
        row, real = regions[name], truth.tag(0, name)
        assert (row["interval_source"], row["reasons"]) == ("device", [])
        assert row["busy_s"] == pytest.approx(real.busy_s, rel=0.1)
    assert regions["load"]["busy"] == pytest.approx(0.0, abs=0.05)
    assert regions["load"]["verdict"]["regime"] == "HOST_BOUND"
    assert regions["prefill"]["verdict"]["regime"] == "COMPUTE_BOUND"
    assert regions["decode"]["verdict"]["regime"] == "MEMORY_BOUND"
    assert regions["decode"]["items"] == 4 * regions["decode"]["calls"]


def test_a_change_that_makes_decode_dearer_fails_the_gate_and_only_that_one(recorded: Path) -> None:
    a, b = str(recorded / "a"), str(recorded / "b")
    worse = gpu_profile("compare", a, b, "--fail-on", "decode.energy/item > +20%", "--fail-on", "decode.busy > +1 ms")
    assert worse.returncode == 1
    assert (worse.stdout.count("\nholds: decode."), worse.stderr) == (2, "")
    better = gpu_profile("compare", b, a, "--fail-on", "decode.energy > +5%", "--fail-on", "decode.busy > +5%")
    assert (better.returncode, better.stderr) == (0, "")
    assert gpu_profile("compare", a, a, "--fail-on", "decode.energy > +0%").returncode == 0
