"""What a real GPU recorded, analysed: see `tests/data/hardware/h200/README.md`.

The truth is that of each kernel alone (`solo`). Products of matrices draw more in bursts than the 700 W that the board
holds them to when they run alone, so that their power in other programs has no truth here.
"""

import pytest
from support.hardware import H200, kernels_of

from gpu_profile.analysis import analyse
from gpu_profile.join.summary import RegionSummary
from gpu_profile.recording import read_recording
from gpu_profile.regimes import Regime

LONG = ("gemm_bf16", "gemm_fp32", "copy", "reduce", "gather")
#: Those that the board's limit does not slow down.
STEADY = ("copy", "reduce", "gather")
#: A board is warmer in one program than in another.
WARMTH = 0.04


def regions(program: str) -> dict[str, tuple[RegionSummary, Regime]]:
    """What is said of each kernel of a program."""
    return kernels_of(H200 / program)


def alone_w(kernel: str) -> float:
    summary, _ = regions("solo")[kernel]
    assert summary.power_w is not None
    return summary.power_w


REGIMES = {
    "gemm_bf16": Regime.COMPUTE_BOUND,
    "gemm_fp32": Regime.COMPUTE_BOUND,
    "copy": Regime.MEMORY_BOUND,
    "reduce": Regime.MEMORY_BOUND,
    "gather": Regime.LATENCY_BOUND,
    "tiny": Regime.HOST_BOUND,
}


def test_kernels_alone_have_the_regime_that_bounds_them() -> None:
    assert {kernel: regime for kernel, (_, regime) in regions("solo").items()} == REGIMES


@pytest.mark.parametrize(("program", "least"), [("shuffled", 5), ("starved", 3)])
def test_regions_of_milliseconds_have_that_regime_or_none(program: str, least: int) -> None:
    """GPM's timing is open in both, so it is told by what GPUs without such counters have."""
    told = {kernel: regime for kernel, (_, regime) in regions(program).items() if regime is not Regime.UNKNOWN}
    assert len(told) >= least
    assert told.items() <= REGIMES.items()


@pytest.mark.parametrize("program", ["solo", "shuffled", "starved"])
def test_regions_of_long_kernels_are_busy_all_the_time_and_those_of_tiny_ones_are_not(program: str) -> None:
    for kernel in LONG:
        summary, _ = regions(program)[kernel]
        assert summary.busy is not None, (kernel, summary.reason)
        assert summary.busy_half_width is not None
        assert summary.busy_half_width <= 0.11, kernel
        assert summary.busy + summary.busy_half_width >= 0.99, kernel
        assert summary.busy_s is not None
        assert summary.busy_s_half_width is not None, f"{kernel}: its busy time is shared out by its rate"
    tiny, _ = regions(program)["tiny"]
    assert tiny.busy is None or tiny.busy + (tiny.busy_half_width or 0) < 0.6


@pytest.mark.parametrize("program", ["shuffled", "starved"])
def test_power_of_regions_of_milliseconds_is_that_of_their_kernels_alone(program: str) -> None:
    for kernel in STEADY:
        summary, _ = regions(program)[kernel]
        if (program, kernel) != ("starved", "gather"):  # 10 s are too few for it
            assert summary.power_w is not None, (kernel, summary.energy_reason)
            assert summary.power_half_width is not None
            assert abs(summary.power_w - alone_w(kernel)) <= summary.power_half_width + WARMTH * alone_w(kernel), kernel


def test_a_program_that_repeats_with_the_sensors_is_refused_rather_than_wrong() -> None:
    for kernel in STEADY:
        summary, _ = regions("locked")[kernel]
        if summary.power_w is not None:
            assert summary.power_half_width is not None
            assert abs(summary.power_w - alone_w(kernel)) <= 3 * summary.power_half_width, kernel
        else:
            assert summary.energy_reason.startswith("not identifiable"), kernel
    for kernel in LONG:
        summary, _ = regions("locked")[kernel]
        if summary.busy is not None:
            assert summary.busy_half_width is not None
            assert summary.busy + 3 * summary.busy_half_width >= 1.0, kernel


def test_energy_of_a_device_is_its_counters_and_what_the_regions_use_is_part_of_it() -> None:
    analysis = analyse(read_recording(H200 / "solo"))
    (use,) = analysis.devices
    assert use.energy_j is not None
    assert use.energy_j == pytest.approx(9540, rel=0.01)
    used = sum(summary.energy_j or 0.0 for summary, _ in regions("solo").values())
    assert used == pytest.approx(use.energy_j - 941, rel=0.01), "941 J are of idle seconds between them"


def test_phases_of_training_that_keeps_the_gpu_busy_have_their_power() -> None:
    """The first few executions have no marks, and in its first seconds the board still draws more: neither makes the
    driver's power samples contradict what is known of them."""
    told = {phase: summary for phase, (summary, _) in kernels_of(H200 / "phases").items()}
    for phase in ("forward", "backward"):
        own, alone = told[phase], told[f"alone_{phase}"]
        assert own.power_w is not None and own.power_half_width is not None, own.energy_reason  # noqa: PT018
        assert alone.power_w is not None and alone.power_half_width is not None  # noqa: PT018
        # Alone the board's limit slows it down; beside an optimizer that draws less, it does not.
        slack = own.power_half_width + alone.power_half_width + WARMTH * alone.power_w
        assert abs(own.power_w - alone.power_w) <= slack, phase
