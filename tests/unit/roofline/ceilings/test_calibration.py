"""Ceilings are what a device can do, and measuring them leaves no trace."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest
from unit.roofline.ceilings.calibration import GIB, MIB, SlowDevice, use

from gpu_profile.errors import UsageError
from gpu_profile.roofline.ceilings import calibration
from gpu_profile.roofline.ceilings.array_benchmarks import ArrayBenchmarks
from gpu_profile.roofline.ceilings.calibration import NO_MEMORY, benchmarks_for, calibrate
from gpu_profile.roofline.ceilings.ceilings import IMPOSSIBLE
from gpu_profile.roofline.machines.host_machine import Host
from gpu_profile.roofline.precision import Precision
from gpu_profile.testing import FakeClock

A100 = "NVIDIA A100-SXM4-40GB"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SlowDevice:
    return use(SlowDevice(), monkeypatch)


def test_each_ceiling_is_the_rate_of_the_device(device: SlowDevice, clock: FakeClock) -> None:
    found = calibrate(device, clock=clock)
    assert [(level.name, level.up_to) for level in found.levels] == [("L2", 40 * MIB), ("memory", None)]
    assert found.levels[0].bandwidth.value == pytest.approx(4e12)
    assert found.memory is not None
    assert found.memory.value == pytest.approx(1.4e12)
    assert set(found.compute) == set(Precision)
    # Of 14 ms for 4096 rows and columns, 0.1 ms are not arithmetic.
    assert all(ceiling.value == pytest.approx(10e12, rel=0.02) for ceiling in found.compute.values())
    assert found.launch_s == pytest.approx(5e-6)
    assert found.cold_launch_s == pytest.approx(70e-6), "that of the small operation which takes longest"
    assert found.fault_s is None, "a GPU's memory has no first touch that the host would count"
    assert found.missing == {}
    assert (found.machine, found.key, found.calibrated_ns) == (device.name, device.key, clock.now_ns())


def test_one_run_that_the_clock_gets_wrong_is_no_ceiling(device: SlowDevice) -> None:
    device.glitch = 40
    device.rates = dict.fromkeys(Precision, 1e14)
    found = calibrate(device)
    assert found.memory is not None
    assert found.memory.value == pytest.approx(1.4e12)
    assert found.compute[Precision.BF16].value < 1.01e14


def test_a_size_that_would_take_longer_than_its_share_is_not_run(device: SlowDevice) -> None:
    device.rates = dict.fromkeys(Precision, 10e12) | {Precision.FP16: 20e9}
    found = calibrate(device, budget_s=3.0)
    assert {n for precision, n in device.products if precision is Precision.FP16} == {1024}
    assert found.compute[Precision.FP16].value == pytest.approx(20e9, rel=0.01)


def test_products_grow_no_more_once_they_get_no_faster(device: SlowDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "GPU_SIZES", tuple(256 * 2**i for i in range(12)))
    device.ramp_s = 0.0
    calibrate(device, budget_s=1e9)
    assert max(n for _, n in device.products) == 1024


def test_the_memory_is_measured_beyond_the_last_cache(device: SlowDevice) -> None:
    device.cache_bytes = GIB
    device.bandwidth = {GIB: 4e12, float("inf"): 1.4e12}
    calibrate(device)
    assert max(device.allocated) >= 4 * GIB


def test_no_more_than_a_quarter_of_the_free_memory_is_taken(device: SlowDevice) -> None:
    device.free = 2 * GIB
    found = calibrate(device, budget_s=30.0)
    assert max(device.allocated) == GIB // 2
    assert found.memory is not None
    assert max(n for precision, n in device.products if precision is Precision.FP64) == 4096
    assert max(n for precision, n in device.products if precision is Precision.FP16) == 8192


def test_with_too_little_memory_to_leave_the_cache_the_memory_is_missing(device: SlowDevice) -> None:
    device.free = 200 * MIB
    found = calibrate(device)
    assert found.memory is None
    assert found.missing["memory"].startswith(NO_MEMORY)
    assert [level.name for level in found.levels] == ["L2"]


def test_a_cache_that_is_no_faster_is_no_level(device: SlowDevice) -> None:
    device.bandwidth = {float("inf"): 1.4e12}
    found = calibrate(device)
    assert [level.name for level in found.levels] == ["memory"]
    assert "no faster" in found.missing["L2"]


def test_on_a_host_the_first_touch_of_a_page_has_a_price_beside_what_is_written(device: SlowDevice) -> None:
    device.kind = "cpu"
    assert calibrate(device).fault_s == pytest.approx(device.fault_s, rel=0.05)


def test_memory_that_was_touched_before_tells_no_price(device: SlowDevice) -> None:
    device.kind, device.fresh = "cpu", lambda size: device._takes(size / 1e12)  # type: ignore[method-assign]
    found = calibrate(device)
    assert found.fault_s is None
    assert "touched before" in found.missing["first touch"]


def test_a_part_that_fails_is_missing_with_its_reason_and_the_rest_goes_on(device: SlowDevice) -> None:
    device.breaks = {"fp64": RuntimeError("no kernel for fp64\nat some line"), "nothing": ValueError("nothing")}
    device.reasons = {Precision.FP8: "needs compute capability 8.9"}
    found = calibrate(device)
    assert found.missing["fp64"] == "RuntimeError: no kernel for fp64; unknown GPU a device of a test"
    assert found.missing["launch"] == "ValueError: nothing"
    assert found.missing["fp8"] == "needs compute capability 8.9; unknown GPU a device of a test"
    assert set(found.compute) == set(Precision) - {Precision.FP64, Precision.FP8}


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 1 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_memory_that_runs_out_is_a_reason_in_words(device: SlowDevice, error: Exception) -> None:
    device.breaks = {"bf16": error}
    assert calibrate(device).missing["bf16"].startswith(NO_MEMORY)


def test_what_a_user_interrupts_ends(device: SlowDevice) -> None:
    device.breaks = {"bf16": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        calibrate(device)


def test_a_device_that_cannot_be_timed_now_is_the_callers_error(device: SlowDevice) -> None:
    device.breaks = {"traffic": UsageError("the stream is being captured")}
    with pytest.raises(UsageError, match="captured"):
        calibrate(device)


def test_the_data_sheet_stands_in_for_what_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    device = use(SlowDevice(A100), monkeypatch)
    device.breaks = {"traffic": MemoryError(), "bf16": RuntimeError("no kernel")}
    found = calibrate(device)
    assert found.memory is not None
    assert (found.memory.value, found.memory.source) == (1555e9, "datasheet")
    assert NO_MEMORY in found.memory.note
    assert (found.compute[Precision.BF16].value, found.compute[Precision.BF16].source) == (312e12, "datasheet")
    assert "no kernel" in found.compute[Precision.BF16].note
    assert not {"memory", "bf16"} & set(found.missing)


def test_more_than_the_data_sheet_allows_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    device = use(SlowDevice(A100), monkeypatch)
    device.bandwidth = {40 * MIB: 9e12, float("inf"): 1555e9 * IMPOSSIBLE * 1.01}
    device.rates = dict.fromkeys(Precision, 17e12) | {Precision.FP32: 19.5e12 * 1.1}
    found = calibrate(device)
    assert found.memory is not None
    assert (found.memory.value, found.memory.source) == (1555e9, "datasheet")
    assert "which is impossible" in found.memory.note
    assert found.compute[Precision.FP32].source == "measured"


def test_far_less_than_the_data_sheet_says_is_remarked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    device = use(SlowDevice(A100), monkeypatch)
    device.rates = dict.fromkeys(Precision, 17e12) | {Precision.TF32: 0.41 * 156e12}
    found = calibrate(device)
    assert "reaches 41 % of the data sheet's 156 TFLOP/s" in found.compute[Precision.TF32].note.replace(
        "156000 G", "156 T"
    )
    assert found.compute[Precision.FP32].note == ""


def test_a_figure_that_is_unsure_corrects_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    device = use(SlowDevice("NVIDIA A10G"), monkeypatch)
    device.rates = dict.fromkeys(Precision, 120e12)
    ceiling = calibrate(device).compute[Precision.BF16]
    assert (ceiling.source, ceiling.note) == ("measured", "")


def test_without_its_library_everything_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr("gpu_profile.roofline.ceilings.calibration.benchmarks_for", missing)
    found = calibrate(Host())
    assert set(found.missing) == {"memory", "launch", *map(str, Precision)}
    assert set(found.missing.values()) == {"needs numpy to be measured"}
    assert (found.compute, found.levels, found.calibrated_ns) == ({}, (), 0)


def test_it_says_what_it_measures(device: SlowDevice) -> None:
    heard: list[str] = []
    calibrate(device, say=heard.append)
    assert heard[0] == "measuring the memory's bandwidth"
    assert "measuring bf16 arithmetic" in heard


def test_the_host_alone_is_measured_with_numpy() -> None:
    found = calibrate(Host(), budget_s=0.1)
    assert found.memory is not None
    # No processor of any year does less, or as much.
    assert 1e8 < found.memory.value < 1e13
    assert {Precision.FP64, Precision.FP32} <= set(found.compute)
    assert found.missing["bf16"] == "numpy has no such products"


def test_cupy_has_the_same_benchmarks_under_its_own_names() -> None:
    numpy = pytest.importorskip("numpy")
    device = SlowDevice()
    device.kind = "cupy"
    benchmarks = ArrayBenchmarks(device, numpy)
    assert benchmarks.caches() == [("L2", 40 * MIB)]
    assert benchmarks.precisions()[Precision.TF32] == "CuPy chooses tf32 by the variable CUPY_TF32 alone"
    for way in benchmarks.traffic(1200):
        way.call()
    assert [way.bytes for way in benchmarks.traffic(1200)] == [800, 1200]
    product: Any = benchmarks.product(Precision.FP32, 512)()
    assert product.shape == (512, 512)
    assert product.dtype == numpy.float32


def test_cupys_pool_gives_back_what_a_calibration_took() -> None:
    device, freed = SlowDevice(), list[str]()
    device.kind = "cupy"
    pool = SimpleNamespace(free_all_blocks=lambda: freed.append("pool"))
    with ArrayBenchmarks(device, SimpleNamespace(get_default_memory_pool=lambda: pool)).undisturbed():
        assert not freed
    assert freed == ["pool"]


def test_random_numbers_of_numpy_go_on_as_if_nothing_had_been() -> None:
    numpy = pytest.importorskip("numpy")
    numpy.random.seed(1)
    expected = numpy.random.random(4)
    numpy.random.seed(1)
    benchmarks_for(Host()).product(Precision.FP32, 256)()
    assert (numpy.random.random(4) == expected).all()


def test_nothing_is_left_behind(device: SlowDevice) -> None:
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(3):
        calibrate(device, budget_s=0.01)
    device.products.clear()
    gc.collect()
    assert len(gc.get_objects()) - before < 200
