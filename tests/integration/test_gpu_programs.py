"""The programs that record a real GPU, rehearsed on a simulated one."""

import sys
from pathlib import Path

from support.programs import ROOT, ran

from gpu_profile.analysis import analyse
from gpu_profile.driver import simulated
from gpu_profile.recording import read_recording

KERNELS = {"gemm_bf16", "gemm_fp32", "copy", "reduce", "tiny", "gather"}


def test_each_program_leaves_a_recording_of_its_regions(tmp_path: Path) -> None:
    node = simulated.create(tmp_path / "node")
    script, out = ROOT / "tests" / "gpu" / "programs.py", tmp_path / "out"
    words = ["--only", "solo,locked", "--scale", "0.05", "--backend", f"simulated:{node}"]
    done = ran([sys.executable, script, out, *words])
    assert (done.returncode, done.stderr) == (0, "")
    for program in ("solo", "locked"):
        analysis = analyse(read_recording(out / program))
        named = {use.summary.region.removeprefix(f"{program}.") for use in analysis.regions}
        assert named - {"warm"} <= KERNELS
        assert len(named) >= 4, program
        assert all(use.summary.interval_source == "device" for use in analysis.regions), program
        assert analysis.devices[0].energy_j, program


def test_a_program_that_there_is_not_is_named(tmp_path: Path) -> None:
    script = ROOT / "tests" / "gpu" / "programs.py"
    done = ran([sys.executable, script, tmp_path, "--only", "solo,shuffle"])
    assert done.returncode == 2
    assert "no program shuffle: there are solo, shuffled, fixed, locked, starved" in done.stderr
    assert ran([sys.executable, script, tmp_path, "--scale", "0"]).returncode == 2
