"""Counters of 32 bits: a fast link restarts them more than once between two rounds, and no byte may be lost."""

from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.exporter import step_for
from unit.driver.nvml.conftest import GROUPS

from gpu_profile.catalogue.signals import PCIE_RX, PCIE_TX
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.driver.nvml.wrapping import ExtendedCount
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import START_NS, FakeClock

RX, TX = pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES
WIDE = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
#: Bytes per second that a link of 16 lanes of PCIe 5.0 carries in practice.
FULL = 55e9


class Links(dict[int, Any]):
    """The fields of a GPU whose PCIe counters are functions of the seconds since the start."""

    def __init__(self, fields: dict[int, Any], clock: FakeClock, bits: int = 32, **bytes_at: Any) -> None:
        super().__init__(fields)
        self.clock, self.bits = clock, bits
        self.bytes_at: dict[int, Callable[[float], float]] = {RX: bytes_at["rx"], TX: bytes_at.get("tx", lambda _: 0)}
        self.reads = 0

    def get(self, key: Any, default: Any = None) -> Any:
        if key not in self.bytes_at:
            return super().get(key, default)
        self.reads += key == RX
        return 0, WIDE, round(self.bytes_at[key]((self.clock.now_ns() - START_NS) / 1e9)) % (1 << self.bits), 0


def sampled(stub: Any, clock: FakeClock, links: Links, interval_s: float, seconds: float) -> Sampler:
    stub.gpus[0].fields = links
    sampler = Sampler(lambda: NvmlDriver(clock=clock, groups=GROUPS), clock=clock, interval_s=interval_s)
    step_for(sampler, clock, seconds)
    return sampler


def growth(sampler: Sampler, signal: Any) -> int:
    """The bytes that the first GPU's history has counted."""
    history = next(iter(sampler.states.values())).timeline
    total: int = history.columns[signal].total_mass
    return total


@pytest.mark.parametrize("interval_s", [0.05, 0.1, 0.25, 1.0])
@pytest.mark.parametrize(
    "bytes_at",
    [lambda t: FULL * t, lambda t: FULL * (t // 0.4 * 0.2 + min(t % 0.4, 0.2)), lambda t: 0.7 * FULL * t],
    ids=["full", "bursts", "most of it"],
)
def test_a_full_link_of_generation_5_loses_only_its_first_round(
    stub: Any, clock: FakeClock, interval_s: float, bytes_at: Callable[[float], float]
) -> None:
    links = Links(stub.gpus[0].fields, clock, rx=bytes_at, tx=lambda t: bytes_at(t) / 3)
    sampler = sampled(stub, clock, links, interval_s, 10)
    for signal, share in ((PCIE_RX, 1.0), (PCIE_TX, 1 / 3)):
        true = share * bytes_at(10)
        # Nothing shows the speed of the first round before it has passed.
        assert true - share * FULL * 3.1 * interval_s <= growth(sampler, signal) <= true + 1
        assert growth(sampler, signal) > 0.6 * true


def test_a_link_at_rest_is_read_once_a_round(stub: Any, clock: FakeClock) -> None:
    links = Links(stub.gpus[0].fields, clock, rx=lambda t: 40e6 * t)
    sampler = sampled(stub, clock, links, 0.1, 5)
    assert links.reads - 1 <= sampler.stats.rounds
    assert growth(sampler, PCIE_RX) == pytest.approx(40e6 * 4.9, rel=0.03)


def test_the_extra_reads_end_a_second_after_the_transfer(stub: Any, clock: FakeClock) -> None:
    links = Links(stub.gpus[0].fields, clock, rx=lambda t: FULL * min(t, 5))
    sampler = sampled(stub, clock, links, 0.1, 5)
    assert links.reads > 90
    step_for(sampler, clock, 1.2)
    before = links.reads
    step_for(sampler, clock, 10)
    assert links.reads - before <= 101


def test_a_counter_of_64_bits_is_taken_as_it_is(stub: Any, clock: FakeClock) -> None:
    links = Links(stub.gpus[0].fields, clock, bits=64, rx=lambda t: 7e12 + FULL * t)
    sampler = sampled(stub, clock, links, 0.1, 5)
    assert growth(sampler, PCIE_RX) == pytest.approx(FULL * 5, rel=0.03)
    assert links.reads <= sampler.stats.rounds + 1


def test_a_device_that_was_reset_begins_anew(stub: Any, clock: FakeClock) -> None:
    links = Links(stub.gpus[0].fields, clock, rx=lambda t: FULL * t)
    sampler = sampled(stub, clock, links, 0.1, 3)
    before = growth(sampler, PCIE_RX)
    stub.gpus[0].code = pynvml.NVML_ERROR_GPU_IS_LOST
    step_for(sampler, clock, 2)
    stub.gpus[0].code = 0
    links.bytes_at[RX] = lambda t: 1e9 + 1e6 * (t - 5)
    step_for(sampler, clock, 5)
    assert growth(sampler, PCIE_RX) - before < 2e7


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30), st.integers(0, 2**32 - 1))
def test_readings_often_enough_give_the_true_count(steps: list[int], start: int) -> None:
    count, true = ExtendedCount(start, start), start
    for step in steps:
        true += step
        assert count.extend(true % 2**32, 2**32) == step
        assert count.total == true
