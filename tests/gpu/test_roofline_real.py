"""The profiler of operations on a real GPU. Not run where there is none; its promises are tested on the CPU everywhere.

A process that has used CUDA cannot be forked or told to forget it, so each test has a process of its own.
"""

import os
import textwrap
from pathlib import Path

import pytest
from support.programs import python

pytestmark = pytest.mark.gpu

BEFORE = """
import torch
from gpu_profile import configure
from gpu_profile.roofline import GPUProfiler
from gpu_profile.roofline.ceilings.datasheet import sheet_for
from gpu_profile.roofline.precision import Precision
configure(backend="none")
profiler = GPUProfiler("cuda:0")
ceilings = profiler.ceilings
"""


def run(script: str, tmp_path: Path) -> str:
    """What it prints; skips where PyTorch is missing or has no GPU."""
    code = "import sys\ntry:\n    import torch\nexcept ImportError:\n    sys.exit(77)\n"
    code += "if not torch.cuda.is_available():\n    sys.exit(77)\n"
    done = python("-c", code + BEFORE + textwrap.dedent(script), GPU_PROFILE_CACHE=os.fspath(tmp_path))
    if done.returncode == 77:
        pytest.skip("PyTorch has no GPU here")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ceilings_are_measured_and_near_the_data_sheet(tmp_path: Path) -> None:
    run(
        """
        assert torch.backends.cuda.matmul.allow_tf32 is False, "the user's setting is as it was"
        needed = [Precision.FP64, Precision.FP32, Precision.FP16]
        if torch.cuda.get_device_capability() >= (8, 0):
            needed += [Precision.TF32, Precision.BF16]
        if torch.cuda.get_device_capability() >= (8, 9):
            needed += [Precision.FP8]
        for precision in needed:
            assert precision in ceilings.compute, (precision, ceilings.missing)
            assert ceilings.compute[precision].source == "measured", (precision, ceilings.compute[precision])
        sheet = sheet_for(torch.cuda.get_device_name(), memory_total=torch.cuda.get_device_properties(0).total_memory)
        assert sheet is not None, torch.cuda.get_device_name()
        assert 0.6 <= ceilings.memory.value / sheet.memory <= 1.05, (ceilings.memory, sheet.memory)
        for precision in needed:
            known = sheet.compute.get(precision)
            if known is not None:
                share = ceilings.compute[precision].value / known
                assert 0.4 <= share <= 1.15, (precision, share)
        assert 1e-6 <= ceilings.launch_s <= 1e-4, ceilings.launch_s
        """,
        tmp_path,
    )


def test_kept_ceilings_are_found_again(tmp_path: Path) -> None:
    out = run("GPUProfiler('cuda:0')", tmp_path)
    assert out.count("Calibration Complete!") == 2
    assert "kept from" in out


@pytest.mark.parametrize(
    ("regime", "make", "call"),
    [
        ("COMPUTE_BOUND", "torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16)", "torch.mm, a, a"),
        ("MEMORY_BOUND", "torch.randn(1 << 28, device='cuda')", "torch.cos, a"),
        ("OVERHEAD_BOUND", "torch.randn(64, device='cuda')", "torch.add, a, a"),
    ],
)
def test_a_clear_case_has_its_regime(regime: str, make: str, call: str, tmp_path: Path) -> None:
    run(
        f"""
        a = {make}
        found = profiler.profile_operation({call}, warmup=3, repeats=20)
        assert found["regime"] == {regime!r}, found
        light = profiler.profile_with_result({call}, lightweight=True)[1]
        assert light["regime"] == {regime!r}, light
        """,
        tmp_path,
    )


def test_one_run_is_timed_by_the_device_and_runs_once(tmp_path: Path) -> None:
    run(
        """
        a = torch.randn(8192, 8192, device="cuda")
        runs = []
        def step(a):
            runs.append(1)
            return a @ a
        profiler.profile_operation(step, a)
        result, found = profiler.profile_with_result(step, a)
        assert len(runs) == 2
        assert torch.equal(result, a @ a)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record(); a @ a; last.record(); last.synchronize()
        assert 0.7 <= found["runtime_ms"] / first.elapsed_time(last) <= 1.4, found
        assert found["memory"]["total_available_mb"] > 1000
        """,
        tmp_path,
    )


def test_attention_and_convolution_count_the_kernels_that_run_here(tmp_path: Path) -> None:
    run(
        """
        q = torch.randn(2, 16, 2048, 64, device="cuda", dtype=torch.float16)
        attention = torch.nn.functional.scaled_dot_product_attention
        found = profiler.profile_operation(attention, q, q, q)
        assert found["flops"] == 4 * 2 * 16 * 2048 * 2048 * 64, found
        assert found["precision"] == "fp16"
        x, w = torch.randn(8, 64, 56, 56, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
        found = profiler.profile_operation(torch.nn.functional.conv2d, x, w, None, 1, 1)
        assert found["flops"] == 8 * 231_211_008, found
        """,
        tmp_path,
    )


def test_a_model_s_modules_add_up_to_its_time(tmp_path: Path) -> None:
    run(
        """
        from gpu_profile.roofline import profile_model
        model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8))).cuda().half()
        x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
        found = profile_model(model, x, profiler=profiler, warmup=3, repeats=5)
        assert len(found.rows) >= 8
        assert 0.8 <= sum(row.own_s for row in found.rows) / found.whole.total_s <= 1.05
        assert {row.regime for row in found.rows[:8]} == {"COMPUTE_BOUND"}, found.text()
        """,
        tmp_path,
    )
