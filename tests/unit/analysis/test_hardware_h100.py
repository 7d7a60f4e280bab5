"""What `make gpu` recorded on a second real GPU, analysed: see `tests/data/hardware/h100/README.md`."""

import gzip
import json

import numpy as np
import pytest
from support.hardware import H100, kernels_of

from gpu_profile.join.summary import RegionSummary
from gpu_profile.recording import read_recording
from gpu_profile.regimes import Regime

#: Those that the board's limit does not slow down, and that are never idle.
STEADY = ("copy", "reduce", "gather")
KERNELS = ("gemm_bf16", "gemm_fp32", *STEADY, "tiny")
#: A board is warmer in one program than in another.
WARMTH = 0.04


def regions(program: str) -> dict[str, tuple[RegionSummary, Regime]]:
    """What is said of each kernel of a program."""
    return kernels_of(H100 / program)


def alone_w(kernel: str) -> float:
    """By the energy counter's growth over three seconds."""
    summary, _ = regions("solo")[kernel]
    assert summary.metered is not None
    return summary.metered.power_w


@pytest.mark.parametrize("program", ["shuffled", "fixed", "locked"])
def test_power_of_all_six_kernels_is_told_in_any_order(program: str) -> None:
    """The driver's power samples tell them apart where the counter, every 100 ms, leaves most of them open."""
    for kernel in KERNELS:
        summary, _ = regions(program)[kernel]
        assert summary.power_w is not None, (kernel, summary.energy_reason)
        assert summary.power_half_width is not None
        if kernel in STEADY:
            off = abs(summary.power_w - alone_w(kernel)) - WARMTH * alone_w(kernel)
            assert off <= summary.power_half_width * (2 if program == "fixed" else 1), kernel


@pytest.mark.parametrize("program", ["node/nvml", "node/node"])
def test_eight_seconds_tell_the_power_of_all_six_kernels(program: str) -> None:
    """On a third board. Marks of one kernel's end and the next one's start are rounded, so that some overlap."""
    for kernel, (summary, _) in regions(program).items():
        assert summary.power_w is not None, (kernel, summary.energy_reason)
        assert summary.power_half_width is not None
        if kernel in STEADY:
            off = abs(summary.power_w - alone_w(kernel)) - WARMTH * alone_w(kernel)
            assert off <= summary.power_half_width, kernel


def test_power_of_starved_regions_is_told_or_refused() -> None:
    told = 0
    for kernel in STEADY:
        summary, _ = regions("starved")[kernel]
        if summary.power_w is not None:
            told += 1
            assert summary.power_half_width is not None
            assert abs(summary.power_w - alone_w(kernel)) <= summary.power_half_width + WARMTH * alone_w(kernel), kernel
    assert told >= 2


def test_regimes_are_those_that_bound_the_kernels_or_unknown() -> None:
    wanted = {
        "gemm_bf16": Regime.COMPUTE_BOUND,
        "gemm_fp32": Regime.COMPUTE_BOUND,
        "copy": Regime.MEMORY_BOUND,
        "reduce": Regime.MEMORY_BOUND,
        "gather": Regime.LATENCY_BOUND,
        "tiny": Regime.HOST_BOUND,
    }
    assert {kernel: regime for kernel, (_, regime) in regions("solo").items()} == wanted
    for program in ("shuffled", "fixed", "locked", "starved"):
        told = {kernel: regime for kernel, (_, regime) in regions(program).items() if regime is not Regime.UNKNOWN}
        assert told.items() <= wanted.items(), program


def test_work_that_is_no_kernels_has_its_own_regime() -> None:
    told = {name: regime for name, (_, regime) in regions("others").items()}
    assert told["from_host"] is Regime.TRANSFER_BOUND
    assert told["idle"] is told["starved"] is Regime.HOST_BOUND
    busy, _ = regions("others")["from_host"]
    assert busy.busy == pytest.approx(0, abs=0.04), "copies from the host keep no multiprocessor busy"


@pytest.mark.parametrize("workload", ["products", "memory", "mixed", "starved", "tiny", "transfer"])
def test_device_marks_end_with_the_last_kernel_that_the_profiler_saw(workload: str) -> None:
    """CUDA events, brought to the host's clock by gpu-profile, beside CUPTI's own times of the same kernels."""
    directory = H100 / "joint" / workload
    trace = json.loads(gzip.decompress((directory / "trace.json.gz").read_bytes()))
    base = trace["baseTimeNanoseconds"]
    work = sorted(
        (base + round(each["ts"] * 1e3), base + round((each["ts"] + each["dur"]) * 1e3))
        for each in trace["traceEvents"]
        if each.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}
    )
    starts, ends = np.array(work, np.int64).T
    off = []
    for span in read_recording(directory).spans:
        for mark in span.device_intervals:
            inside = np.flatnonzero((ends > mark.start_ns + 1000) & (starts < mark.end_ns - 1000))
            if mark.start_ns > starts[0] and mark.end_ns < ends[-1] and len(inside):
                off.append((mark.end_ns - ends[inside[-1]]) / 1e3)
    assert len(off) >= 4
    assert abs(float(np.median(off))) <= 100, "µs"
