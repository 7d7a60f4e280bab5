"""Creates the machine of a device by PyTorch's name for it, and finds the devices of a call's tensors."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from typing import Any, Final

from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile.roofline.machines.cupy_machine import CupyDevice, load_cupy
from gpu_profile.roofline.machines.host_machine import Host
from gpu_profile.roofline.machines.machine import Machine
from gpu_profile.roofline.machines.torch_machine import TorchAccelerator, TorchCpu, TorchMps, load_torch

#: Types of devices that PyTorch drives with streams and events, in the order of preference.
_ACCELERATORS: Final = ("cuda", "xpu")
_CONTAINERS: Final = (tuple, list, set, frozenset, dict)
_DEVICE: Final = re.compile(r"(?P<kind>[a-z][a-z0-9_]*)(?::(?P<ordinal>[0-9]{1,9}))?")
_HOW: Final = {
    "cuda": "install a build for CUDA or ROCm (https://pytorch.org/get-started/locally)",
    "xpu": "install a build for Intel GPUs (https://pytorch.org/get-started/locally)",
}


def machine(device: object = None) -> Machine:
    """The machine of `device`: `"cpu"`, `"cuda"`, `"cuda:1"`, `"xpu"`, `"mps"`, `"cupy"`, `"cupy:0"`, `"host"`, a
    CUDA ordinal, or a `torch.device`. A kind without a number means its current device.

    None selects PyTorch's first available accelerator (CUDA, Intel, Apple), else the processor through PyTorch, else
    the plain host if PyTorch is not installed. `"host"` is for plain callables and needs no framework. Raises
    UsageError, with the available devices, if there is no such device.
    """
    if device is None:
        return _best()
    text = f"cuda:{device}" if isinstance(device, int) and not isinstance(device, bool) else str(device)
    asked = f"device={device!r}" if isinstance(device, str | int) else f"device={text}"
    match = _DEVICE.fullmatch(text)
    if match is None:
        raise _unknown(asked)
    ordinal = None if match["ordinal"] is None else int(match["ordinal"])
    match match["kind"]:
        case "host" if ordinal is None:
            return Host()
        case "cpu" if not ordinal:
            load_torch(asked)
            return TorchCpu()
        case "mps" if not ordinal and _has_mps(load_torch(asked)):
            return TorchMps()
        case "cupy":
            return _cupy(asked, ordinal)
        case "cuda" | "xpu" as kind:
            return _accelerator(asked, kind, ordinal)
    raise _unknown(asked)


def devices_of(values: object) -> set[str]:
    """The devices of PyTorch's tensors and CuPy's arrays in `values`, such as `{"cuda:0", "cpu"}` or `{"cupy:0"}`.

    Searches tuples, lists, sets, dictionaries, and the parameters and buffers of modules. NumPy's arrays are ignored.
    Imports neither framework: values cannot contain arrays of one that is not loaded.
    """
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    # While a framework is being imported, its classes may not exist yet.
    tensor: Any = getattr(torch, "Tensor", ())
    module: Any = getattr(getattr(torch, "nn", None), "Module", ())
    array: Any = getattr(cupy, "ndarray", ())
    names: set[str] = set()
    left, seen = [values], set[int]()
    while left:
        value = left.pop()
        if isinstance(value, tensor):
            names.add(str(value.device))
        elif isinstance(value, array):
            names.add(f"cupy:{int(value.device.id)}")
        elif isinstance(value, (*_CONTAINERS, module)) and id(value) not in seen:
            # A list may contain itself.
            seen.add(id(value))
            left.extend(_inside(value))
    return names


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, _CONTAINERS) else [*value.parameters(), *value.buffers()]


def _best() -> Machine:
    try:
        torch = load_torch("")
    except UsageError:
        return Host()
    for kind in _ACCELERATORS:
        if _count(torch, kind):
            return TorchAccelerator(kind)
    return TorchMps() if _has_mps(torch) else TorchCpu()


def _accelerator(asked: str, kind: str, ordinal: int | None) -> Machine:
    torch = load_torch(asked)
    count = _count(torch, kind)
    if not count:
        if not _built_for(torch, kind):
            raise UsageError(
                f"{asked}: this PyTorch ({torch.__version__}) is built without it; {_HOW[kind]}; {_available()}"
            )
        raise UsageError(f"{asked}: PyTorch finds no such device; check the driver and what is visible; {_available()}")
    if ordinal is not None and ordinal >= count:
        raise _unknown(asked)
    return TorchAccelerator(kind, ordinal)


def _cupy(asked: str, ordinal: int | None) -> Machine:
    count = _cupy_count(load_cupy(asked))
    if not count:
        raise UsageError(f"{asked}: CuPy finds no device; check the driver and CUDA_VISIBLE_DEVICES; {_available()}")
    if ordinal is not None and ordinal >= count:
        raise _unknown(asked)
    return CupyDevice(ordinal)


def _count(torch: Any, kind: str) -> int:
    module = getattr(torch, kind, None)
    return int(module.device_count()) if module is not None and module.is_available() else 0


def _cupy_count(cupy: Any) -> int:
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:  # no driver, or too old a driver
        return 0


def _has_mps(torch: Any) -> bool:
    mps = getattr(torch.backends, "mps", None)
    return mps is not None and bool(mps.is_available())


def _built_for(torch: Any, kind: str) -> bool:
    names = ("cuda", "hip") if kind == "cuda" else (kind,)
    return any(getattr(torch.version, name, None) for name in names)


def _unknown(asked: str) -> UsageError:
    return UsageError(f"{asked}: there is no such device; {_available()}")


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # an importer forbids it, or `sys.modules` has None for it
        return False


def _available() -> str:
    """The available devices, as text for an error. Does not import CuPy."""
    names = []
    try:
        torch = load_torch("")
    except GpuProfileError:
        pass
    else:
        names += [f"{kind}:{each}" for kind in _ACCELERATORS for each in range(_count(torch, kind))]
        names += [*(["mps"] if _has_mps(torch) else []), "cpu"]
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        names += [f"cupy:{each}" for each in range(_cupy_count(cupy))]
    elif _installed("cupy"):
        names.append("cupy")
    return f"there are: {', '.join([*names, 'host'])}"
