from dataclasses import dataclass

import pytest
from unit.driver.devices import GPUS, MIXED, MIXED_MODELS, UUIDS, visible

from gpu_profile.catalogue.samples import Device
from gpu_profile.driver.visible import Visible
from gpu_profile.errors import UsageError

# ---------------------------------------------------------------------- what a user means


@dataclass(frozen=True)
class TorchDevice:
    """As `torch.device` has it."""

    type: str
    index: int | None = None


class Number:
    def __index__(self) -> int:
        return 1


@pytest.mark.parametrize("spec", [1, "1", "cuda:1", TorchDevice("cuda", 1), Number(), [1], " 1 "])
def test_a_number_is_an_ordinal_of_this_process(spec: object) -> None:
    assert visible("3,2").resolve(spec) == [GPUS[2]]  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["cuda", TorchDevice("cuda")])
def test_cuda_without_a_number_is_the_current_device_or_the_first(spec: object) -> None:
    assert visible("3,2").resolve(spec) == [GPUS[3]]  # type: ignore[arg-type]
    assert visible("3,2").resolve(spec, current=1) == [GPUS[2]]  # type: ignore[arg-type]


def test_torchs_own_devices_are_understood() -> None:
    torch = pytest.importorskip("torch")
    assert visible("3,2").resolve(torch.device("cuda:1")) == [GPUS[2]]
    assert visible("3,2").resolve(torch.device("cuda")) == [GPUS[3]]
    with pytest.raises(UsageError, match=r"^device 'cpu': not a GPU of CUDA; CUDA shows this process 2 devices"):
        visible("3,2").resolve(torch.device("cpu"))


@pytest.mark.parametrize(
    "spec",
    [
        UUIDS[3],
        UUIDS[3].upper(),
        UUIDS[3].removeprefix("GPU-"),
        "GPU-44",
        "gpu-44",
        "nvml:3",
        "00000000:1B:00.0",
        "0000:1b:00.0",
        "1b:00.0",
        "1B:00",
        GPUS[3],
    ],
)
def test_a_name_finds_a_gpu_whether_cuda_shows_it_or_not(spec: str | Device) -> None:
    for value in ("3", "0", "", "9"):
        assert visible(value).resolve(spec) == [GPUS[3]]


def test_mig_instances_have_names_too() -> None:
    found = Visible(MIXED, {})
    assert found.resolve("nvml:1:1") == found.resolve("MIG-11") == [MIXED[3]]
    assert found.resolve("nvml:1") == found.resolve(UUIDS[1]) == [MIXED[1]]
    assert found.resolve("nvml:1:0") == found.resolve(0) == [MIXED[2]]


@pytest.mark.parametrize("spec", ["1,cuda:0,nvml:0", ["1", 0, "cuda:1"], ("1,0", "1"), [[1], [TorchDevice("cuda", 0)]]])
def test_several_are_found_in_order_and_each_once(spec: object) -> None:
    assert visible("0,2").resolve(spec) == [GPUS[2], GPUS[0]]  # type: ignore[arg-type]


def test_all_is_what_cuda_shows() -> None:
    assert visible("2,0").resolve("all") == [GPUS[2], GPUS[0]]


@pytest.mark.parametrize(
    ("value", "spec", "message"),
    [
        ("2,0", 2, "device 2: CUDA shows this process 2 devices, 0 to 1 (CUDA_VISIBLE_DEVICES='2,0')"),
        ("2", "cuda:1", "device 'cuda:1': CUDA shows this process 1 device, 0 (CUDA_VISIBLE_DEVICES='2')"),
        ("2", -1, "device -1: CUDA shows this process 1 device, 0 (CUDA_VISIBLE_DEVICES='2')"),
        ("", 0, "device 0: CUDA shows this process no device: CUDA_VISIBLE_DEVICES is empty; there are GPU-9e8d35e3-"),
        ("", "all", "device 'all': CUDA shows this process no device: CUDA_VISIBLE_DEVICES is empty"),
        ("7", "cuda", "device 'cuda': CUDA shows this process no device: CUDA_VISIBLE_DEVICES='7': CUDA stops at '7'"),
        ("bogus", 0, "device 0: CUDA shows this process no device: CUDA_VISIBLE_DEVICES='bogus': CUDA stops at "),
        ("0", "nvml:9", "device 'nvml:9': there are nvml:0, nvml:1, nvml:2, nvml:3"),
        ("0", "nvml:1:0", "device 'nvml:1:0': nvml:1 is not cut into MIG instances"),
        ("0", "GPU-9e", f"device 'GPU-9e': several devices begin so, give more of it; there are {UUIDS[0]}, GPU-"),
        ("0", "GPU-77", f"device 'GPU-77': no device has this UUID; there are {UUIDS[0]}, "),
        ("0", "77:00.0", "device '77:00.0': no GPU on this bus; there are 00000000:18:00.0, "),
        ("0", "gpu0", "device 'gpu0': not a device; write a number of CUDA's (0 or 'cuda:0'), a UUID"),
        ("0", "-1", "device '-1': not a device; write a number"),
        ("0", "9" * 5000, "device '9999"),
        ("0", "cpu", "device 'cpu': not a device; write a number"),
        ("0", "", "no device is named: write a number"),
        ("0", " , ", "no device is named: write a number"),
        ("0", [], "no device is named: write a number"),
        ("0", None, "device None: not a device; write a number"),
        ("0", True, "device True: not a device; write a number"),
        ("0", 1.0, "device 1.0: not a device; write a number"),
        ("0", b"0", "device b'0': not a device; write a number"),
        ("0", TorchDevice("mps"), "device 'mps': not a GPU of CUDA; CUDA shows this process 1 device"),
        ("0", [0, "nvml:8"], "device 'nvml:8': there are nvml:0"),
    ],
)  # fmt: skip
def test_what_names_no_device_is_refused_in_one_line_that_says_what_there_is(
    value: str, spec: object, message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        visible(value).resolve(spec)  # type: ignore[arg-type]
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_an_instance_beyond_the_last_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^device 'nvml:1:2': nvml:1 has 2 MIG instances, counted from 0$"):
        Visible(MIXED, {}).resolve("nvml:1:2")


@pytest.mark.parametrize("spec", [0, "cuda", "nvml:0", "GPU-1", "all", "18:00.0"])
def test_where_the_driver_lists_nothing_that_is_what_is_said(spec: object) -> None:
    with pytest.raises(UsageError, match=r"the driver lists no GPU$"):
        Visible([], {"CUDA_VISIBLE_DEVICES": "0"}).resolve(spec)  # type: ignore[arg-type]


def test_an_error_names_a_few_devices_of_many() -> None:
    many = [Device(f"GPU-{number:08x}", index=number) for number in range(20)]
    with pytest.raises(UsageError, match=r"GPU-00000006 and 13 more$"):
        Visible(many, {}).resolve("GPU-ff")


# ---------------------------------------------------------------------- without a name


def test_the_driver_knows_best_which_devices_a_process_uses() -> None:
    both = [UUIDS[0], UUIDS[2], "GPU-elsewhere"]
    found, known = visible("2,1,0").defaults(both, current=1, local_rank=1)
    assert (found, known) == ([GPUS[2], GPUS[0]], "the driver lists this process")
    # Also where the variable was changed after CUDA had read it.
    assert visible("").defaults([UUIDS[3]]) == ([GPUS[3]], "the driver lists this process on it")


def test_a_process_on_a_mig_instance_does_not_use_the_whole_gpu() -> None:
    found, _ = visible("0", MIXED).defaults([MIXED[1].uuid, MIXED[3].uuid])
    assert found == [MIXED[3]]


def test_else_the_current_device_then_the_local_rank_then_the_first() -> None:
    some = visible("3,2,1")
    assert some.defaults(current=2, local_rank=1) == ([GPUS[1]], "CUDA's current device, 2")
    assert some.defaults(local_rank=1) == ([GPUS[2]], "assumed from the local rank, 1")
    assert some.defaults() == ([GPUS[3]], "CUDA's device 0")
    assert some.defaults(["GPU-elsewhere"], current=9, local_rank=3) == ([GPUS[3]], "CUDA's device 0")


def test_a_launcher_that_shows_each_process_one_gpu_needs_no_local_rank() -> None:
    assert visible("2").defaults(local_rank=2) == ([GPUS[2]], "CUDA's device 0")
    assert visible("2").defaults(local_rank=0) == ([GPUS[2]], "CUDA's device 0")


def test_a_guessed_order_is_part_of_how_a_default_is_known() -> None:
    found, known = Visible(MIXED_MODELS, {}).defaults()
    assert found == [MIXED_MODELS[1]]
    assert known.startswith("CUDA's device 0; with several models CUDA's order is assumed")


@pytest.mark.parametrize("value", ["", "bogus", "0,0", "-1"])
def test_where_cuda_sees_nothing_there_is_no_default_and_the_variable_is_named(value: str) -> None:
    found, known = visible(value).defaults(current=0, local_rank=0)
    assert found == []
    assert "CUDA shows this process no device: CUDA_VISIBLE_DEVICES" in known
    assert Visible([], {}).defaults() == ([], "the driver lists no GPU")
