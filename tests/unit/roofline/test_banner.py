"""What the profiler prints when it is made."""

from dataclasses import replace

import pytest
from support.roofline import CEILINGS, FakeMachine

from gpu_profile.regimes import DEFAULT_THRESHOLDS
from gpu_profile.roofline import banner
from gpu_profile.roofline.ceilings.ceilings import Ceiling, Level
from gpu_profile.roofline.precision import Precision


def heading(kind: str, *, chosen: bool) -> str:
    machine = FakeMachine()
    machine.kind = kind
    return "\n".join(banner.heading(machine, chosen=chosen))


def test_a_gpu_is_detected_and_the_three_regimes_of_the_seed_are_named() -> None:
    text = heading("cuda", chosen=False)
    assert "GPU Detected: a test's machine\n" in text
    for regime in ("OVERHEAD_BOUND", "MEMORY_BOUND", "COMPUTE_BOUND"):
        assert f"   • {regime}: " in text


@pytest.mark.parametrize(("kind", "why"), [("cpu", "no GPU was found"), ("host", "finding GPUs needs PyTorch")])
def test_a_processor_that_nobody_has_chosen_says_why_it_is_measured(kind: str, why: str) -> None:
    assert f"CPU: a test's machine ({why}" in heading(kind, chosen=False)
    assert "CPU: a test's machine\n" in heading(kind, chosen=True)


def test_every_ceiling_is_told_with_its_source_and_what_is_missing_with_its_reason() -> None:
    ceilings = replace(
        CEILINGS,
        compute={Precision.FP16: Ceiling(990e12, "datasheet", "not measured")},
        levels=(*CEILINGS.levels[:1], Level("memory", None, Ceiling(20e9, "measured"))),
        cold_launch_s=20e-6,
        missing={"fp8": "too old"},
    )
    assert list(banner.summary(ceilings, DEFAULT_THRESHOLDS, "measured now"))[1:-1] == [
        "Calibration Complete! (measured now)",
        "   Max Memory Bandwidth: 20.0 GB/s",
        "      in L3, up to 32 MiB: 100 GB/s",
        "   Max Compute FLOPS, fp16: 990 TFLOP/s (datasheet) (not measured), ridge 4.95e+04 FLOP/B",
        "   Empty launch: 2.00 µs, 20.0 µs with cold caches",
        "   fp8: not known: too old",
        "   Memory Threshold: 60.0 % of the bandwidth",
        "   Compute Threshold: 60.0 % of the precision's FLOP/s",
    ]


def test_where_nothing_could_be_measured_the_panel_has_the_reasons_alone() -> None:
    nothing = replace(CEILINGS, compute={}, levels=(), launch_s=None, missing={"memory": "needs numpy"})
    text = "\n".join(banner.summary(nothing, DEFAULT_THRESHOLDS, ""))
    assert "   memory: not known: needs numpy" in text
    assert "Max" not in text
    assert "Calibration Complete!\n" in text
