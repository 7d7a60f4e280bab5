"""A source that had answered and stops: another one steps in, it is told, and the source is asked anew."""

import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pynvml
import pytest

from gpu_profile.catalogue import Tier, signal
from gpu_profile.catalogue.samples import Device
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.testing import START_NS, FakeClock

SM = pynvml.NVML_GPM_METRIC_SM_UTIL
UTIL, MEM = pynvml.NVML_GPU_UTILIZATION_SAMPLES, pynvml.NVML_MEMORY_UTILIZATION_SAMPLES
CODES = [
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_UNKNOWN,
    pynvml.NVML_ERROR_NOT_FOUND,
]


@pytest.fixture
def told(driver: NvmlDriver, clock: FakeClock, stub: Any) -> Callable[[], set[str]]:
    """What a tenth of a second of reading brings."""
    stub.gpus[0].metrics = {SM: (0, 41.0)}
    stub.gpus[0].buffers = {UTIL: [], MEM: []}

    def keys() -> set[str]:
        clock.advance(0.105)
        device = Device(stub.gpus[0].uuid, index=0)
        stub.gpus[0].buffers = {
            kind: rows if isinstance(rows, int) else [*rows, (clock.now_ns() // 1000, 30)][-9:]
            for kind, rows in stub.gpus[0].buffers.items()
        }
        got = [*driver.boundary(device), *driver.drain(device)]
        for tier in (Tier.FAST, Tier.SLOW):
            got += driver.read(device, tier)
        return {one.signal.key for one in got}

    driver.devices()
    keys()
    assert {"sm", "utilization", "memory_used"} <= keys()
    return keys


def _until(told: Callable[[], set[str]], clock: FakeClock, key: str, most_s: float) -> float:
    """Seconds until a key is told again."""
    began = clock.now_ns()
    while key not in told():
        assert clock.now_ns() - began < most_s * 1e9
    return (clock.now_ns() - began) / 1e9


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("function", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_one_bad_answer_of_gpm_costs_seconds_not_the_rest_of_the_run(
    stub: Any, clock: FakeClock, told: Callable[[], set[str]], function: str, code: int
) -> None:
    stub.code[function] = code
    assert "sm" not in told()
    del stub.code[function]
    assert _until(told, clock, "sm", 6) <= 5.5


@pytest.mark.parametrize("code", CODES)
def test_a_metric_that_fails_once_comes_back(
    stub: Any, clock: FakeClock, told: Callable[[], set[str]], code: int
) -> None:
    stub.gpus[0].metrics = {SM: (code, 0.0)}
    assert "sm" not in told()
    stub.gpus[0].metrics = {SM: (0, 41.0)}
    assert _until(told, clock, "sm", 6) <= 5.5


@pytest.mark.parametrize("code", CODES[:3])
def test_a_buffer_that_fails_is_polled_for_until_it_answers_again(
    stub: Any, driver: NvmlDriver, clock: FakeClock, told: Callable[[], set[str]], code: int
) -> None:
    stub.gpus[0].buffers = {UTIL: code, MEM: code}
    told()
    polled = stub.count["nvmlDeviceGetUtilizationRates"]
    assert {"utilization", "memory_controller"} <= told()
    assert stub.count["nvmlDeviceGetUtilizationRates"] > polled
    stub.gpus[0].buffers = {UTIL: [], MEM: []}
    for _ in range(60):
        assert "utilization" in told()
    polled = stub.count["nvmlDeviceGetUtilizationRates"]
    told()
    assert stub.count["nvmlDeviceGetUtilizationRates"] == polled


@pytest.mark.parametrize("code", CODES[:3])
@pytest.mark.parametrize(
    ("function", "key"),
    [
        ("nvmlDeviceGetTemperature", "temperature"),
        ("nvmlDeviceGetClockInfo", "clock_sm"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit"),
    ],
)
def test_a_function_that_fails_once_is_asked_again(
    stub: Any, clock: FakeClock, told: Callable[[], set[str]], function: str, key: str, code: int
) -> None:
    stub.gpus[0].calls[function] = code
    assert key not in told()
    del stub.gpus[0].calls[function]
    assert _until(told, clock, key, 6) <= 5.5


def test_it_is_told_once_and_counted(
    stub: Any, driver: NvmlDriver, told: Callable[[], set[str]], caplog: pytest.LogCaptureFixture
) -> None:
    stub.code["nvmlGpmSampleGet"] = pynvml.NVML_ERROR_INVALID_ARGUMENT
    with caplog.at_level(logging.WARNING):
        for _ in range(600):
            told()
    (line,) = [record.getMessage() for record in caplog.records if "GPM" in record.getMessage()]
    assert "worked before, fails with INVALID_ARGUMENT now" in line
    assert driver.errors["SOURCE_LOST"] >= 1
    device = Device(stub.gpus[0].uuid, index=0)
    assert not driver.capabilities(device)[signal("sm")].available


def test_a_source_that_stays_away_is_asked_ever_more_seldom(
    stub: Any, clock: FakeClock, told: Callable[[], set[str]]
) -> None:
    opened: list[float] = []
    probes, known = stub.count, stub.count["nvmlGpmQueryDeviceSupport"]
    for _ in range(9000):
        if probes["nvmlGpmQueryDeviceSupport"] != known:  # after each opening it answers once, and then fails
            known = probes["nvmlGpmQueryDeviceSupport"]
            opened.append(clock.now_ns() / 1e9)
            stub.code.pop("nvmlGpmMetricsGet", None)
        if "sm" in told():
            stub.code["nvmlGpmMetricsGet"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    gaps = [b - a for a, b in pairwise(opened)]
    assert 5 <= len(opened) < 12
    assert gaps == sorted(gaps)


def test_what_a_gpu_never_had_is_not_asked_for_again(
    stub: Any, driver: NvmlDriver, clock: FakeClock, told: Callable[[], set[str]]
) -> None:
    asked = stub.count["nvmlGpmQueryDeviceSupport"]
    for _ in range(4000):
        told()
    assert stub.count["nvmlGpmQueryDeviceSupport"] == asked
    assert clock.now_ns() - START_NS > 400e9
    assert driver.errors["SOURCE_LOST"] == 0


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    ],
)
def test_memory_is_told_by_the_older_call_where_there_is_no_newer_one(stub: Any, clock: FakeClock, code: int) -> None:
    stub.gpus[0].calls["nvmlDeviceGetMemoryInfo_v2"] = code
    driver = NvmlDriver(clock=clock)
    (device, *_) = driver.devices()
    values = {one.signal.key: one.value for one in driver.read(device, Tier.SLOW)}
    assert values["memory_used"] == 5600
    assert "memory_reserved" not in values


@pytest.mark.parametrize("code", CODES[:3])
@pytest.mark.parametrize("lasts_s", [9, 60])
def test_a_source_that_is_away_while_its_device_is_opened_anew_comes_back_all_the_same(
    stub: Any, clock: FakeClock, told: Callable[[], set[str]], code: int, lasts_s: int
) -> None:
    stub.code |= dict.fromkeys(("nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlGpmQueryDeviceSupport"), code)
    for _ in range(lasts_s * 10):
        told()
    stub.code.clear()
    assert _until(told, clock, "sm", 3 * lasts_s) <= 2 * lasts_s


def test_what_was_never_there_is_not_looked_for_again(stub: Any, clock: FakeClock, driver: NvmlDriver) -> None:
    stub.code["nvmlGpmQueryDeviceSupport"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    device = driver.devices()[0]
    driver.read(device, Tier.FAST)
    asked = stub.count["nvmlGpmQueryDeviceSupport"]
    for _ in range(600):
        clock.advance(1.0)
        driver.read(device, Tier.FAST)
    assert stub.count["nvmlGpmQueryDeviceSupport"] == asked
