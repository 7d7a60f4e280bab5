"""A GPU that is busy without movement: when it is reported, and which loads and gaps are no evidence of it."""

from collections.abc import Mapping

import pytest
from unit.join.boards import AMPERE, OLD, PRODUCT, SPIN, WAITING, Board

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device
from gpu_profile.units import NS_PER_S


def only(means: Mapping[Signal, float], signals: tuple[Signal, ...]) -> dict[Signal, float]:
    return {row: mean for row, mean in means.items() if row in signals}


@pytest.mark.parametrize("timeline", [False, True])
def test_spinning_is_reported_within_twenty_seconds_with_its_onset_and_ends_with_work(timeline: bool) -> None:
    board = Board(timeline=timeline)
    assert board.run(WAITING, 5) is None
    assert board.run(PRODUCT, 20) is None
    assert board.detector.idle_w == pytest.approx(124, abs=1)
    onset = board.now_ns
    found = board.run(SPIN, 60)
    assert found is not None
    assert 15 <= found <= 20
    spin = board.detector.spin
    assert spin is not None
    assert abs(spin.onset_ns - onset) <= 2 * NS_PER_S
    assert spin.evidence["power"] == pytest.approx(128 / 700, abs=0.01)
    assert spin.evidence["idle_power"] == pytest.approx(124 / 700, abs=0.01)
    assert spin.evidence["busy"] == pytest.approx(0.995, abs=0.01)
    assert len(spin.text(board.now_ns)) <= 200
    board.run(PRODUCT, 5)
    assert board.detector.spin is None
    assert board.detector.total_ns == pytest.approx(60 * NS_PER_S, abs=3 * NS_PER_S)


@pytest.mark.parametrize(
    "other",
    [
        PRODUCT,
        WAITING,
        {**SPIN, rows.DRAM: 0.05},
        {**SPIN, rows.INTEGER: 0.05},
        {**SPIN, rows.PCIE_RX: 5e9},
        {**SPIN, rows.NVLINK_TX: 3e10},
        {**SPIN, rows.ENERGY: 180},
        {**SPIN, rows.GRAPHICS: 0.85},
    ],
    ids=["product", "idle", "memory", "integer", "pcie", "nvlink", "power", "gaps"],
)
def test_a_load_that_moves_something_is_no_spinning(other: Mapping[Signal, float]) -> None:
    board = Board()
    board.run(WAITING, 5)
    assert board.run(other, 60) is None
    assert board.detector.total_ns == 0


@pytest.mark.parametrize(
    "missing", [(rows.ENERGY,), (rows.POWER_LIMIT,), (rows.DRAM, rows.MEMORY_CONTROLLER), (rows.PCIE_RX,)]
)
def test_a_missing_signal_is_never_taken_for_zero(missing: tuple[Signal, ...]) -> None:
    board = Board()
    board.run(WAITING, 5, without=missing)
    assert board.run(SPIN, 60, without=missing) is None
    assert board.detector.total_ns is None


def test_without_ever_having_been_idle_a_share_of_the_power_limit_decides() -> None:
    board = Board()
    assert board.run({**SPIN, rows.ENERGY: 160}, 30) is not None
    assert board.detector.idle_w is None
    assert Board().run({**SPIN, rows.ENERGY: 225}, 30) is None


def test_an_older_board_needs_a_silent_memory_controller_a_known_idle_power_and_a_fast_link() -> None:
    spin, waiting = only(SPIN, OLD), only(WAITING, OLD)
    board = Board(AMPERE)
    board.run(waiting, 5)
    assert board.run(spin, 30) is not None
    # A pinned copy has the utilisation and nearly the power of spinning, and touches memory for 2 % of the time.
    copies = Board(AMPERE)
    copies.run(waiting, 5)
    assert copies.run({**spin, rows.MEMORY_CONTROLLER: 0.02}, 60) is None
    assert Board(AMPERE).run(spin, 60) is None
    slow = Board(Device("GPU-v", clock_max_hz=1_410_000_000, pcie_bytes_per_s=15_750_000_000))
    slow.run(waiting, 5)
    assert slow.run(spin, 60) is None


def test_regions_without_progress_are_evidence_where_the_sensors_alone_are_not_and_progress_is_counter_evidence() -> (
    None
):
    spin, waiting = only(SPIN, OLD), only(WAITING, OLD)
    slow = Device("GPU-v", clock_max_hz=1_410_000_000, pcie_bytes_per_s=15_750_000_000)
    board = Board(slow)
    board.run(waiting, 5)
    assert board.run(spin, 30, ended_s=0) is not None
    late = Board()
    late.run(WAITING, 5)
    found = late.run(SPIN, 40, ended_s=20)
    assert found is not None
    assert 35 <= found <= 37


def test_a_gap_in_the_samples_starts_anew() -> None:
    board = Board()
    board.run(WAITING, 5)
    board.run(SPIN, 12)
    board.now_ns += 20 * NS_PER_S
    assert board.run(SPIN, 10) is None


def test_the_clock_that_is_set_back_starts_anew_and_does_not_count() -> None:
    board = Board()
    board.run(WAITING, 5)
    board.run(SPIN, 30)
    total = board.detector.total_ns
    board.now_ns -= 3600 * NS_PER_S
    assert board.detector.advance(board.now_ns) is None
    assert board.detector.total_ns == total
