"""A group that is off is not read at all."""

from collections.abc import Collection
from typing import Any

import pynvml
import pytest
from unit.driver.nvml.conftest import GROUPS

from gpu_profile.catalogue import ALL_GROUPS, SIGNALS, Group, Tier
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.driver.nvml.readers import READERS
from gpu_profile.testing import FakeClock

#: What the core calls, beside looking for devices.
CORE_CALLS = {
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetClockInfo",
}


def read_all(stub: Any, clock: FakeClock, groups: Collection[Group]) -> set[str]:
    """The keys of everything that is read in a second, and with `stub` what was called for it."""
    driver = NvmlDriver(clock=clock, groups=groups)
    device = driver.devices()[0]
    stub.count.clear()
    stub.asked.clear()
    stub.asked_metrics.clear()
    driver.capabilities(device)
    samples = list(driver.boundary(device))
    clock.advance(1)
    samples += [one for tier in (Tier.FAST, Tier.SLOW, Tier.RARE) for one in driver.read(device, tier)]
    samples += [*driver.drain(device), *driver.boundary(device)]
    driver.close()
    return {one.signal.key for one in samples}


def test_the_core_alone_calls_nothing_but_what_it_needs(stub: Any, clock: FakeClock) -> None:
    keys = read_all(stub, clock, [])
    assert keys == {row.key for row in SIGNALS if row.group is Group.CORE and "seen" not in row.key}
    called = {name for name, n in stub.count.items() if n and name.startswith("nvmlDeviceGet")}
    assert called == CORE_CALLS
    assert stub.count["nvmlGpmSampleGet"] == 0
    fields = {field for call in stub.asked for field, _ in call}
    core = {reader.field for reader in READERS.values() if reader.signal.group is Group.CORE and reader.field}
    assert fields == {getattr(pynvml, name) for name in core}


@pytest.mark.parametrize("group", [group for group in Group if group is not Group.CORE])
def test_a_group_that_is_on_brings_its_signals_and_no_others(stub: Any, clock: FakeClock, group: Group) -> None:
    core = read_all(stub, clock, [])
    with_it = read_all(stub, clock, [group])
    assert with_it - core == {row.key for row in SIGNALS if row.group is group and "seen" not in row.key}


def test_what_is_off_says_which_group_would_bring_it(driver: NvmlDriver) -> None:
    capabilities = driver.capabilities(driver.devices()[0])
    for row, capability in capabilities.items():
        if row.group not in GROUPS:
            assert capability.reason == f"not read: the group {row.group} is off"


def test_everything_can_be_on_at_once(stub: Any, clock: FakeClock) -> None:
    keys = read_all(stub, clock, ALL_GROUPS)
    assert keys == {row.key for row in SIGNALS if "seen" not in row.key}
    assert stub.count["nvmlDeviceGetPcieThroughput"] == 0
