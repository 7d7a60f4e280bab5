"""Calibrating with PyTorch changes nothing of the user's."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest
from unit.roofline.ceilings.calibration import SlowDevice

from gpu_profile.roofline.ceilings.calibration import calibrate
from gpu_profile.roofline.ceilings.torch_benchmarks import TorchBenchmarks, _float32, _float32_sums
from gpu_profile.roofline.machines.torch_machine import TorchCpu
from gpu_profile.roofline.precision import Precision

torch: Any = pytest.importorskip("torch")


def test_the_processor_has_a_ceiling_for_all_that_it_multiplies() -> None:
    found = calibrate(TorchCpu(), budget_s=0.2)
    assert found.memory is not None
    assert 1e8 < found.memory.value < 1e13
    assert {Precision.FP64, Precision.FP32, Precision.BF16} <= set(found.compute)
    assert found.missing["tf32"] == "only NVIDIA GPUs multiply in tf32"
    assert found.launch_s is not None
    assert 0 < found.launch_s < 1e-2


def settings() -> tuple[Any, ...]:
    return (
        torch.get_rng_state().tolist(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.get_num_threads(),
    )


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_a_calibration_leaves_every_setting_as_it_was(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision(precision)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = settings()
            calibrate(TorchCpu(), budget_s=0.02)
            assert settings() == expected
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision(before)


def test_a_calibration_leaves_no_tensor_behind() -> None:
    def tensors() -> int:
        gc.collect()
        return sum(type(each) is torch.Tensor for each in gc.get_objects())

    before = tensors()
    calibrate(TorchCpu(), budget_s=0.02)
    assert tensors() == before


def test_a_users_default_device_does_not_move_the_benchmarks() -> None:
    with torch.device("meta"):
        benchmarks = TorchBenchmarks(TorchCpu())
        result: Any = benchmarks.product(Precision.FP32, 256)()
    assert result.device.type == "cpu"


@pytest.mark.parametrize("precision", [Precision.FP64, Precision.FP32, Precision.BF16, Precision.FP16, Precision.INT8])
def test_a_product_is_computed_in_its_own_format(precision: Precision) -> None:
    result: Any = TorchBenchmarks(TorchCpu()).product(precision, 512)()
    assert result.shape == (512, 512)
    names = {Precision.INT8: "int32", Precision.BF16: "bfloat16"}
    assert str(result.dtype) == "torch." + names.get(precision, str(precision).replace("fp", "float"))


def test_traffic_counts_two_elements_for_a_copy_and_three_for_a_triad() -> None:
    assert [way.bytes for way in TorchBenchmarks(TorchCpu()).traffic(1200)] == [800, 1200]


def on(capability: tuple[int, int], *, hip: str | None = None) -> TorchBenchmarks:
    """Benchmarks for a CUDA device that is not there."""
    benchmarks = TorchBenchmarks(SlowDevice())
    cuda = SimpleNamespace(get_device_capability={"cuda:0": capability}.__getitem__)
    benchmarks._torch = SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip))
    return benchmarks


def test_a_gpu_is_asked_only_for_what_it_has_units_for() -> None:
    lacks = {str(p) for p, reason in on((7, 5)).precisions().items() if reason}
    assert lacks == {"tf32", "bf16", "fp8"}
    assert on((8, 6)).precisions()[Precision.FP8] == "needs compute capability 8.9, this GPU has 8.6"
    assert not any(on((9, 0)).precisions().values())
    assert on((9, 4), hip="6.2").precisions()[Precision.TF32] == "only NVIDIA GPUs multiply in tf32"


def test_a_calibration_gives_a_gpus_memory_back_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("cuda"))
    with TorchBenchmarks(SlowDevice()).undisturbed():
        assert not emptied
    assert emptied == ["cuda"]


class Matmul:
    """`torch.backends.cuda.matmul` from 2.9 on: what is not set is inherited."""

    def __init__(self, own: str, inherited: str) -> None:
        self.own, self.inherited = own, inherited

    @property
    def fp32_precision(self) -> str:
        return self.inherited if self.own == "none" else self.own

    @fp32_precision.setter
    def fp32_precision(self, value: str) -> None:
        self.own = value


@pytest.mark.parametrize(
    ("own", "inherited"),
    [("none", "none"), ("none", "tf32"), ("none", "ieee"), ("ieee", "none"), ("tf32", "none"), ("ieee", "tf32")],
)
@pytest.mark.parametrize("wanted", ["ieee", "tf32"])
def test_the_format_of_float32_products_is_restored_even_if_they_fail(own: str, inherited: str, wanted: str) -> None:
    matmul = Matmul(own, inherited)
    fake = SimpleNamespace(backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul)))

    def fail() -> None:
        with _float32(fake, "cuda", wanted):
            assert matmul.fp32_precision == wanted or (matmul.fp32_precision, wanted) == ("none", "ieee")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (matmul.own, matmul.inherited) == (own, inherited)


@pytest.mark.parametrize("before", ["highest", "high", "medium"])
def test_before_2_9_the_global_setting_is_used_and_restored(before: str) -> None:
    chosen = [before]
    fake = SimpleNamespace(
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace()), mkldnn=SimpleNamespace()),
        get_float32_matmul_precision=lambda: chosen[-1],
        set_float32_matmul_precision=chosen.append,
    )
    with _float32(fake, "cuda", "tf32"):
        assert chosen[-1] == "high"
    assert chosen[-1] == before

    def fail() -> None:
        with _float32(fake, "cpu", "ieee"):
            assert chosen[-1] == "highest"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert chosen[-1] == before


def test_float16_products_are_summed_in_float32_and_the_setting_is_restored() -> None:
    matmul = SimpleNamespace(allow_fp16_accumulation=True)
    with _float32_sums(matmul):
        assert matmul.allow_fp16_accumulation is False
    assert matmul.allow_fp16_accumulation is True
    older = SimpleNamespace()
    with _float32_sums(older):
        assert vars(older) == {}
