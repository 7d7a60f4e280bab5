"""The workloads of `make bench ONLY=regimes` state consistent physics, and ask for every verdict that there is."""

import pytest
from benchmarks.regime_kernels import product, spin, stream
from benchmarks.regime_machines import H100, H200, MACHINES, SHARES, LaunchedKernel, blend, execute, wait
from benchmarks.regime_recordings import RecordedWorkload, interval_of, recorded_workloads, recording_of
from benchmarks.regime_sensors import watched
from benchmarks.regime_workloads import AWAITED, PublishedWorkload, workloads

from gpu_profile.catalogue import signals as rows
from gpu_profile.regimes import Regime

WORKLOADS = workloads()
EVERY: tuple[PublishedWorkload | RecordedWorkload, ...] = (*WORKLOADS, *recorded_workloads())


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.name)
def test_every_phase_keeps_within_its_machine(work: PublishedWorkload) -> None:
    for phase in work.phases:
        assert phase.seconds > 0
        assert set(phase.shares) <= set(SHARES)
        assert all(0.0 <= share <= 1.0 for share in phase.shares.values()), phase.shares
        assert work.machine.asleep_w <= phase.watts <= work.limit_w * 1.0001
        assert 0.1 * work.machine.clock_hz <= phase.clock_hz <= work.machine.clock_max_hz * 1.0001
        assert phase.shares.get("occupancy", 0.0) <= phase.shares.get("sm", 0.0) + 1e-9
        assert phase.shares.get("graphics", 0.0) <= phase.shares.get("busy", 0.0) + 1e-9


def test_there_are_enough_of_all_kinds_on_all_machines() -> None:
    assert len(WORKLOADS) >= 80
    assert len({work.name for work in EVERY}) == len(EVERY)
    assert {work.machine.name for work in WORKLOADS} >= {machine.name for machine in MACHINES}
    assert {work.kind for work in WORKLOADS} >= {
        "integer", "fp64", "fp32", "tensor", "l2", "shared", "occupancy", "latency", "zero-copy", "uvm", "pageable",
        "pinned", "decode", "prefill", "video", "spinning", "nccl", "straggler", "mps", "mig", "throttled", "capped",
        "mixture", "tiny", "graph", "host", "idle",
    }  # fmt: skip


def test_every_regime_is_expected_somewhere_and_no_word_is_unknown() -> None:
    words = frozenset().union(*(work.accepted for work in EVERY))
    assert {str(regime) for regime in Regime} <= words
    assert words <= {str(regime) for regime in Regime} | AWAITED
    assert all(work.why for work in EVERY)


def test_the_model_keeps_to_the_recordings_that_it_was_fitted_to() -> None:
    """Power and clock of `solo` (tests/data/hardware); a product had short gaps there."""
    triad, gemm = execute(H100, stream(1.0)), execute(H100, product(4096))
    assert triad.watts == pytest.approx(523, rel=0.05)
    assert gemm.clock_hz == pytest.approx(1.47e9, rel=0.03)
    assert gemm.shares["dram"] == pytest.approx(0.25 / 0.885, rel=0.15)
    assert execute(H200, stream(1.0)).watts == pytest.approx(577, rel=0.08)
    assert execute(H100, spin(H100, 1.0, sms=1 / H100.sms)).watts == pytest.approx(125.5, abs=3)


def test_the_slowest_resource_limits_a_kernel_and_few_warps_the_bandwidth() -> None:
    size = 1e9
    wide = execute(H100, LaunchedKernel({"dram": size}, warps=52))
    narrow = execute(H100, LaunchedKernel({"dram": size}, warps=2, flight=512))
    assert wide.shares["dram"] == pytest.approx(0.9)
    assert narrow.shares["dram"] == pytest.approx(132 * 2 * 512 / H100.dram_latency_s / H100.dram, rel=1e-6)


def test_a_power_limit_lowers_the_clock_until_it_holds() -> None:
    free, capped = execute(H100, product(8192)), execute(H100, product(8192), limit_w=400)
    assert capped.watts == pytest.approx(400, abs=1)
    assert capped.clock_hz < free.clock_hz
    assert capped.shares["tensor"] == pytest.approx(free.shares["tensor"])


def test_a_blend_is_the_mean_over_time() -> None:
    both = blend(execute(H100, stream(1.0)).over(0.3), wait(H100, 0.1))
    assert both.seconds == pytest.approx(0.4)
    assert both.shares["dram"] == pytest.approx(0.9 * 0.75)


def test_sensors_show_what_runs() -> None:
    work = next(each for each in WORKLOADS if each.name == "H100 triad")
    timeline, interval = watched(work, "counters", 0)
    column = timeline.column(rows.DRAM)
    assert column is not None
    assert rows.DRAM.base(int(column.rows(interval.start_ns, interval.end_ns).values.mean())) == pytest.approx(
        0.9, rel=0.08
    )
    coarse, _ = watched(work, "coarse", 0)
    assert coarse.column(rows.DRAM) is None
    assert coarse.column(rows.UTILIZATION) is not None


def test_sensors_of_one_seed_say_the_same_twice() -> None:
    one, other = (watched(WORKLOADS[0], "counters", 3)[0].column(rows.TENSOR) for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.total_mass == other.total_mass


def test_recordings_have_the_regions_that_are_judged() -> None:
    work = next(each for each in recorded_workloads() if each.region == "others.spinning")
    timeline, recording = recording_of(work.recording, "coarse")
    interval = interval_of(work, recording)
    assert interval.end_ns - interval.start_ns > 2_000_000_000
    assert timeline.column(rows.DRAM) is None
