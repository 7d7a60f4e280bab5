from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.kernel_energy import LOOP, RANDOM, REGION
from support.analysis import analysed, one
from support.pprof import total

from gpu_profile.analysis.account import Analysis
from gpu_profile.analysis.profile.kernel_energy import DeviceKernels, KernelEnergy, region_energy
from gpu_profile.analysis.profile.values import ENERGY, MIXED, OUTSIDE, UNCERTAIN, profile_of
from gpu_profile.join.unmixing.solving.unmix import LOCK_STEP
from gpu_profile.recording import KernelStamps, Recording
from gpu_profile.report.stacks import StackProfile


def profiled(recording: Recording) -> tuple[StackProfile, Analysis]:
    analysis = analysed(recording)
    found = profile_of(recording, analysis)
    assert ENERGY in found.kinds
    return found, analysis


def joules(found: StackProfile) -> Counter[str]:
    place = found.kinds.index(ENERGY)
    sums: Counter[str] = Counter()
    for each in found.samples:
        sums[each.stack[-1]] += each.values[place]
    return +sums


def test_kernels_have_their_joules_and_the_sums_stay_the_regions_and_the_devices() -> None:
    world = replace(RANDOM, seconds=30)
    found, analysis = profiled(world.recording())
    energy = joules(found)
    assert set(energy) - {OUTSIDE} == {"k0", "k1", "k2", "k3", REGION}
    truth = world.joules
    for kernel, each in truth.items():
        assert energy[kernel] / 1e3 == pytest.approx(each, rel=0.1)
    summary = one(analysis, REGION).summary
    assert summary.energy_j is not None
    assert sum(n for name, n in energy.items() if name != OUTSIDE) == pytest.approx(summary.energy_j * 1e3, abs=3)
    assert analysis.devices[0].energy_j is not None
    assert total(found.samples, found.kinds.index(ENERGY)) == round(analysis.devices[0].energy_j * 1e3)
    widths = {dict(each.labels)["half_width"] for each in found.samples if each.stack[-1] == "k0"}
    assert len(widths) == 1
    assert 0 < int(widths.pop().removesuffix(" %")) <= 25


def test_kernels_in_lock_step_stay_in_their_regions_frame_with_the_reason() -> None:
    found, analysis = profiled(replace(LOOP, seconds=20).recording())
    energy = joules(found)
    assert set(energy) <= {REGION, f"{REGION} {MIXED}", OUTSIDE}
    assert energy[f"{REGION} {MIXED}"] > 10 * energy[REGION]
    reasons = {dict(each.labels).get("reason") for each in found.samples if each.stack[-1].endswith(MIXED)}
    assert all(reason and reason.startswith("not identifiable") for reason in reasons)
    assert analysis.devices[0].energy_j is not None
    assert total(found.samples, found.kinds.index(ENERGY)) == round(analysis.devices[0].energy_j * 1e3)


def test_kernels_that_run_after_their_executions_have_no_energy_and_a_comment_says_so() -> None:
    """As where the host launches them and does not wait, without a stream's marks."""
    recording = replace(RANDOM, seconds=10).recording()
    spans = [
        each._replace(end_ns=(3 * each.start_ns + each.end_ns) // 4, device_intervals=()) for each in recording.spans
    ]
    found, analysis = profiled(replace(recording, spans=tuple(spans)))
    assert set(joules(found)) <= {REGION, OUTSIDE, f"{REGION} {UNCERTAIN}"}
    assert any(
        f"kernels of {len(spans):,} executions have no energy: they ran outside" in each for each in found.comments
    )
    assert analysis.devices[0].energy_j is not None
    assert total(found.samples, found.kinds.index(ENERGY)) == round(analysis.devices[0].energy_j * 1e3)


def test_kernels_draw_no_more_than_their_region() -> None:
    half = np.array([5.0, 5.0])
    every = [KernelEnergy("a", half, 60.0, 6.0, ""), KernelEnergy("b", half, None, 0.0, LOCK_STEP)]
    kernels = DeviceKernels(np.array([1.0, 1.0]), {"r": every})
    parts = region_energy(kernels, "r", np.arange(2), 100.0, 5.0)
    assert ([(each.name, each.joules) for each in parts.kernels], parts.rest_j, parts.reason) == (
        [("a", 60.0)],
        40.0,
        LOCK_STEP,
    )
    assert (parts.mixed_ns.tolist(), parts.rest_ns.tolist()) == ([5.0, 5.0], [6.0, 6.0])
    within = region_energy(kernels, "r", np.arange(2), 58.0, 5.0)
    assert ([each.joules for each in within.kernels], within.rest_j) == ([58.0], 0.0)
    beyond = region_energy(kernels, "r", np.arange(2), 30.0, 5.0)
    assert (beyond.kernels, beyond.rest_j) == ([], 30.0)
    assert "more than the 30 J of the region" in beyond.reason


@pytest.mark.parametrize(
    "value",
    [
        [["a"], [0], [1]],
        [["a"], [1], [1], [1]],
        [["a"], [0], [1], [-1]],
        [["a"], [0, 0], [1], [1]],
        [["a"], [0], [1.5], [1]],
        [[1], [0], [1], [1]],
        [["a"], [0, 0], [1 << 61, 1 << 61], [1, 1]],
    ],
)
def test_damaged_times_of_kernels_are_refused(value: list[list[object]]) -> None:
    with pytest.raises((TypeError, ValueError)):
        KernelStamps.read(value)
