"""GPM windows: two buffers in turn, at least a refresh apart."""

import ctypes
import math
import sys
from itertools import pairwise
from typing import Any

import pynvml
import pytest
from unit.driver.nvml.conftest import GROUPS

from gpu_profile.catalogue import SIGNALS, Group, Tier, signal
from gpu_profile.driver.nvml import NvmlDriver, gpm
from gpu_profile.testing import START_NS, FakeClock

MS = 1_000_000
SM = pynvml.NVML_GPM_METRIC_SM_UTIL
ROWS = [row for row in SIGNALS if row.tier is Tier.GPM and row.group in GROUPS]


def test_a_window_runs_from_one_boundary_to_the_next(stub: Any, clock: FakeClock, driver: NvmlDriver) -> None:
    stub.gpus[0].metrics = {SM: (0, 41.237)}
    device = driver.devices()[0]
    assert driver.boundary(device) == []
    clock.advance(0.25)
    samples = driver.boundary(device)
    assert {one.signal for one in samples} == set(ROWS)
    assert {(one.t_start_ns, one.t_end_ns) for one in samples} == {(START_NS, START_NS + 250 * MS)}
    assert next(one.value for one in samples if one.signal is signal("sm")) == 4124
    clock.advance(0.1)
    assert {one.t_start_ns for one in driver.boundary(device)} == {START_NS + 250 * MS}


def test_metrics_are_read_without_the_attributes_of_nvidia_ml_py_which_cost_more_than_all_the_rest(
    clock: FakeClock, driver: NvmlDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, readers = driver.devices()[0], list[str]()
    driver.boundary(device)
    clock.advance(0.25)

    def seen(cell: Any, name: str) -> Any:
        readers.append(sys._getframe(1).f_globals["__name__"])
        return ctypes.Structure.__getattribute__(cell, name)

    monkeypatch.setattr(pynvml.c_nvmlGpmMetric_t, "__getattribute__", seen)
    assert driver.boundary(device)
    assert gpm.__name__ not in readers


def test_a_window_younger_than_the_refresh_stays_open(stub: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    driver.boundary(device)
    taken = stub.count["nvmlGpmSampleGet"]
    for _ in range(3):
        clock.advance(0.033)
        assert driver.boundary(device) == []
    assert stub.count["nvmlGpmSampleGet"] == taken
    clock.advance(0.001)
    assert {one.t_start_ns for one in driver.boundary(device)} == {START_NS}


def test_the_older_buffer_comes_first_and_only_two_are_ever_allocated(stub: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    for _ in range(5):
        driver.boundary(device)
        clock.advance(0.1)
    assert stub.gpm_pairs == [(1, 2), (2, 1), (1, 2), (2, 1)]
    assert stub.gpm_buffers == {1, 2}
    driver.close()
    assert stub.gpm_buffers == set()


@pytest.mark.parametrize(("slow", "calls"), [([], 1), ([5.0], 2), ([5.0, 5.0], 3), ([5.0, 5.0, 5.0], 3), ([0.15], 1)])
def test_a_sample_that_had_to_wait_is_taken_again_for_its_moment_is_not_known(
    stub: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, slow: list[float], calls: int
) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    for _ in range(3):
        driver.boundary(device)
        clock.advance(0.105)
    taken, left, get = stub.count["nvmlGpmSampleGet"], list(slow), pynvml.nvmlGpmSampleGet

    def late(*arguments: Any) -> None:
        get(*arguments)
        clock.advance(left.pop(0) / 1000 if left else 0.0)

    monkeypatch.setattr(pynvml, "nvmlGpmSampleGet", late)
    began = clock.now_ns()
    samples = driver.boundary(device)
    assert stub.count["nvmlGpmSampleGet"] - taken == calls
    last_ms = slow[-1] if len(slow) == calls else 0.0
    moment = began + round((sum(slow) - last_ms + last_ms / 2) * MS)
    assert {one.t_end_ns for one in samples} == {moment}


@pytest.mark.parametrize(
    ("value", "quanta"), [(0.0, 0), (100.0, 10_000), (100.4, 10_000), (-0.5, None), (250.0, None), (math.nan, None)]
)
def test_a_value_beyond_100_is_clamped_if_it_is_rounding_and_dropped_if_it_is_not(
    stub: Any, clock: FakeClock, value: float, quanta: int | None, driver: NvmlDriver
) -> None:
    stub.gpus[0].metrics = {SM: (0, value)}
    device = driver.devices()[0]
    driver.boundary(device)
    clock.advance(0.1)
    got = {one.signal.key: one.value for one in driver.boundary(device)}
    assert got.get("sm") == quanta
    assert got["graphics"] == 5000
    assert driver.errors["IMPLAUSIBLE_VALUE"] == (quanta is None)


def test_a_metric_that_the_gpu_lacks_is_absent_and_not_asked_for_again(stub: Any, clock: FakeClock) -> None:
    stub.gpus[0].metrics = {SM: (pynvml.NVML_ERROR_NOT_SUPPORTED, 0.0)}
    driver = NvmlDriver(clock=clock, groups=GROUPS)
    device = driver.devices()[0]
    for _ in range(3):
        got = driver.boundary(device)
        clock.advance(0.1)
    assert len(got) == len(ROWS) - 1
    assert driver.capabilities(device)[signal("sm")].reason == "not supported by this GPU"
    assert [SM in asked for asked in stub.asked_metrics] == [True, False]


def test_an_older_gpu_has_no_gpm_and_says_so(stub: Any, clock: FakeClock, driver: NvmlDriver) -> None:
    stub.gpus[0].gpm = False
    device = driver.devices()[0]
    driver.boundary(device)
    clock.advance(1)
    assert driver.boundary(device) == []
    capabilities = driver.capabilities(device)
    assert {capabilities[row].reason for row in ROWS} == {"needs Hopper or newer"}
    assert stub.count["nvmlGpmSampleGet"] == 0


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "needs Hopper or newer"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "not permitted for this user"),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "not known to this driver"),
    ],
)
def test_a_gpm_query_that_fails_gives_its_reason(stub: Any, code: int, reason: str, driver: NvmlDriver) -> None:
    stub.gpus[0].calls = {"nvmlGpmQueryDeviceSupport": code}
    capabilities = driver.capabilities(driver.devices()[0])
    assert {capabilities[row].reason for row in ROWS} == {reason}


def test_a_sample_that_fails_for_now_lengthens_the_window(stub: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    driver.boundary(device)
    clock.advance(0.1)
    stub.gpus[0].calls = {"nvmlGpmSampleGet": pynvml.NVML_ERROR_UNKNOWN}
    assert driver.boundary(device) == []
    stub.gpus[0].calls = {}
    clock.advance(0.1)
    assert {(one.t_start_ns, one.t_end_ns) for one in driver.boundary(device)} == {(START_NS, START_NS + 200 * MS)}
    assert driver.errors == {"UNKNOWN": 1}


def test_a_sample_that_is_denied_ends_gpm_with_a_reason(stub: Any, clock: FakeClock, driver: NvmlDriver) -> None:
    stub.gpus[0].calls = {"nvmlGpmSampleGet": pynvml.NVML_ERROR_NO_PERMISSION}
    device = driver.devices()[0]
    for _ in range(3):
        assert driver.boundary(device) == []
        clock.advance(0.1)
    assert stub.count["nvmlGpmSampleGet"] == 1
    assert driver.capabilities(device)[signal("dram")].reason == "not permitted for this user"


def test_a_mig_instance_is_sampled_through_its_parent(stub: Any, clock: FakeClock, new_gpu: Any) -> None:
    stub.gpus[0].mig = [new_gpu("MIG-1", instance=5)]
    driver = NvmlDriver(clock=clock, groups=GROUPS)
    gpu, mig = driver.devices()
    driver.boundary(mig)
    clock.advance(0.1)
    assert {one.signal for one in driver.boundary(mig)} == {row for row in ROWS if row.mig}
    assert stub.gpm_slices == [(gpu.uuid, 5)] * 2
    assert stub.count["nvmlGpmSampleGet"] == 0


def test_rates_are_in_mebibytes_a_second_and_have_no_ceiling_of_100(stub: Any, clock: FakeClock) -> None:
    metrics = {pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 27_000.5, pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: 3e5}
    stub.gpus[0].metrics = {metric: (0, value) for metric, value in metrics.items()}
    driver = NvmlDriver(clock=clock, groups=[Group.GPM, Group.GPM_DETAIL])
    device = driver.devices()[0]
    driver.boundary(device)
    clock.advance(0.1)
    got = {one.signal.key: one.signal.base(one.value) for one in driver.boundary(device)}
    assert got["pcie_rx_rate"] == 27_000.5 * 2**20
    assert got["nvlink_tx_rate"] == 3e5 * 2**20


@pytest.mark.parametrize("value", [-1.0, 1e9, math.inf])
def test_a_rate_that_no_link_has_is_left_out(stub: Any, clock: FakeClock, value: float, driver: NvmlDriver) -> None:
    stub.gpus[0].metrics = {pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: (0, value)}
    device = driver.devices()[0]
    driver.boundary(device)
    clock.advance(0.1)
    assert "pcie_rx_rate" not in {one.signal.key for one in driver.boundary(device)}
    assert driver.errors == {"IMPLAUSIBLE_VALUE": 1}


@pytest.mark.parametrize("seconds", [3600.0, 10.0, 864_000.0, -3600.0, -10.0])
def test_a_clock_that_is_set_makes_no_window_longer_than_it_was(
    stub: Any, clock: FakeClock, driver: NvmlDriver, seconds: float
) -> None:
    stub.gpus[0].metrics = {SM: (0, 50.0)}
    device = driver.devices()[0]
    covered = 0
    for k in range(20):
        if k == 10:
            clock.set_forward(seconds)
        clock.advance(0.1)
        covered += sum(one.t_end_ns - one.t_start_ns for one in driver.boundary(device) if one.signal is signal("sm"))
    assert covered == 19 * 100 * MS


def test_a_clock_that_is_slewed_leaves_no_gap_between_windows(stub: Any, clock: FakeClock, driver: NvmlDriver) -> None:
    stub.gpus[0].metrics = {SM: (0, 50.0)}
    device = driver.devices()[0]
    rows = []
    for k in range(20):
        clock.set_forward((-1) ** k * 50e-6)  # 500 ppm, as much as a system slews by
        clock.advance(0.1)
        rows += [one for one in driver.boundary(device) if one.signal is signal("sm")]
    assert all(b.t_start_ns == a.t_end_ns for a, b in pairwise(rows))


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_clock_that_is_set_while_a_sample_is_taken_costs_nothing_after_it(
    stub: Any, clock: FakeClock, driver: NvmlDriver, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    stub.gpus[0].metrics = {SM: (0, 50.0)}
    device = driver.devices()[0]
    get, steps = pynvml.nvmlGpmSampleGet, [0.0] * 10 + [seconds]

    def taken(*arguments: Any) -> None:
        clock.set_forward(steps.pop(0) if steps else 0.0)
        get(*arguments)

    monkeypatch.setattr(pynvml, "nvmlGpmSampleGet", taken)
    covered = 0
    for _ in range(40):
        clock.advance(0.1)
        covered += sum(one.t_end_ns - one.t_start_ns for one in driver.boundary(device) if one.signal is signal("sm"))
    assert covered == 39 * 100 * MS
