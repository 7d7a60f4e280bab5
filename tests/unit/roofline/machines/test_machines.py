import sys
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
from support.cuda import FakeCuda
from support.programs import printed
from support.roofline import Accelerator, cupy_with, torch_with

from gpu_profile.errors import UsageError
from gpu_profile.roofline.machines import devices
from gpu_profile.roofline.machines.devices import devices_of, machine


@pytest.fixture(name="gpus")
def without_cupy(gpus: Accelerator, monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    monkeypatch.setattr(devices, "find_spec", lambda _: None)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    return gpus


def device(found: Any) -> str:
    return str(found.device)


# ---------------------------------------------------------------------- what is meant


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, "cuda:1"),
        ("cuda", "cuda:1"),
        (0, "cuda:0"),
        (1, "cuda:1"),
        ("cuda:0", "cuda:0"),
        (SimpleNamespace(type="cuda"), "cuda:1"),
        ("host", "host"),
    ],
)
def test_a_device_is_a_name_an_ordinal_or_torchs_own_and_without_a_number_the_current_one(
    asked: object, found: str, gpus: Accelerator
) -> None:
    gpus.current = 1
    if isinstance(asked, SimpleNamespace):
        asked = type("device", (), {"__str__": lambda _: "cuda"})()
    assert device(machine(asked)) == found


def test_the_processor_is_asked_for_by_name_or_by_torchs_device(torch: Any) -> None:
    for asked in ("cpu", "cpu:0", torch.device("cpu")):
        assert machine(asked).kind == "cpu"


def test_without_an_accelerator_it_is_the_processor(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert machine().kind == "cpu"


def test_without_torch_it_is_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert machine().kind == "host"


def test_intels_and_apples_come_after_cuda(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    both = torch_with(cuda=Accelerator(cuda), xpu=Accelerator(cuda))
    monkeypatch.setitem(sys.modules, "torch", both)
    assert machine().kind == "cuda"
    monkeypatch.setitem(sys.modules, "torch", torch_with(xpu=Accelerator(cuda), mps=True))
    assert machine().kind == "xpu"
    monkeypatch.setitem(sys.modules, "torch", torch_with(mps=True))
    assert machine().kind == machine("mps").kind == "mps"


def test_cupys_devices_are_asked_for_by_name(gpus: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy_with(gpus))
    gpus.current = 1
    assert device(machine("cupy")) == "cupy:1"
    assert device(machine("cupy:0")) == "cupy:0"
    with pytest.raises(UsageError, match="there are: cuda:0, cuda:1, cpu, cupy:0, cupy:1, host"):
        machine("cupy:2")


# ---------------------------------------------------------------------- what is not there


@pytest.mark.parametrize(
    "asked",
    ["cuda:2", 7, -1, True, "tpu", "", "cuda:", "CUDA", "cuda:x", "cpu:1", "host:0", "mps", "meta", 1.5, b"cpu"],
)
def test_what_is_not_there_is_refused_in_one_line_that_says_what_is(asked: object, gpus: Accelerator) -> None:
    with pytest.raises(UsageError, match=r"no such device; there are: cuda:0, cuda:1, cpu, host$") as met:
        machine(asked)
    assert "\n" not in str(met.value)


def test_a_torch_that_is_built_without_a_device_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_with())
    with pytest.raises(UsageError, match=r"device='cuda': this PyTorch \(2.9.0\) is built without it; install a build"):
        machine("cuda")
    with pytest.raises(UsageError, match=r"device='xpu:0': this PyTorch \(2.9.0\) is built without it"):
        machine("xpu:0")


def test_a_torch_that_finds_no_device_says_where_to_look(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_with(cuda=Accelerator(cuda, count=0)))
    with pytest.raises(UsageError, match=r"device=0: PyTorch finds no such device; check the driver.*there are: cpu"):
        machine(0)


def test_a_cupy_without_a_driver_says_so(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cupy", cupy_with(Accelerator(cuda, count=0)))
    with pytest.raises(UsageError, match=r"device='cupy': CuPy finds no device; .*there are: host"):
        machine("cupy")


@pytest.mark.parametrize("asked", ["cpu", "cuda", 0, "mps"])
def test_what_needs_torch_says_so_where_it_is_missing(asked: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=f"device={asked!r} needs PyTorch"):
        machine(asked)


# ---------------------------------------------------------------------- where tensors are


def test_tensors_are_found_however_deep_they_are_nested(torch: Any) -> None:
    pair = namedtuple("pair", "first second")
    here, nowhere = torch.ones(1), torch.ones(1, device="meta")
    assert devices_of(()) == devices_of({"a": 1, "b": "cuda:0"}) == devices_of(None) == set()
    assert devices_of(here) == {"cpu"}
    assert devices_of(((1, [here]), {"x": {"y": pair(1, nowhere)}})) == {"cpu", "meta"}
    assert devices_of(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1, device="meta"))) == {
        "cpu",
        "meta",
    }


def test_a_list_that_contains_itself_ends(torch: Any) -> None:
    endless: list[object] = [torch.ones(1)]
    endless.append(endless)
    assert devices_of(endless) == {"cpu"}


def test_cupys_arrays_are_found(gpus: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = cupy_with(gpus)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    array = cupy.ndarray()
    array.device = SimpleNamespace(id=1)
    assert devices_of([array]) == {"cupy:1"}


def test_looking_for_tensors_imports_no_framework() -> None:
    script = """
import sys
from gpu_profile.roofline.machines.devices import devices_of
print(devices_of(([1, object()], {"x": (2,)})))
print([name for name in ("torch", "cupy", "matplotlib", "pynvml") if name in sys.modules])
"""
    assert printed("-c", script).splitlines() == ["set()", "[]"]
