"""`profile_model`: ranks the modules of a PyTorch model by their time, each with its regime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_profile.errors import UsageError
from gpu_profile.roofline.machines.devices import devices_of
from gpu_profile.roofline.machines.torch_machine import load_torch
from gpu_profile.roofline.measurement import RunCount
from gpu_profile.roofline.models.profile import ModelProfile
from gpu_profile.roofline.profiler import GPUProfiler


def profile_model(
    model: Any,
    inputs: Any,
    *,
    profiler: GPUProfiler | None = None,
    device: Any = None,
    repeats: int = 1,
    warmup: int = 0,
    passes: int = 1,
    quiet: bool = True,
) -> ModelProfile:
    """Run `model` on `inputs` once, and rank its modules by their own time, each with its regime.

    `inputs`: a tuple of positional arguments, a dictionary of keyword arguments, or one argument. Options for more
    runs: `repeats` timed runs after `warmup` untimed ones; medians count, and the last output is kept. `passes=2` adds
    a run that counts FLOPs and bytes that are unknown without it. The work of PyTorch's own modules follows from the
    shapes of their arguments. Modules that run other code are counted in the last of several warm-up runs, or with
    `passes=2` in a run after the timed ones; otherwise their work is unknown.

    Hooks time the modules and are removed afterwards. On GPUs they record events in the current stream, and the host
    waits only after the model has run. A compiled, scripted or data parallel module is one row. Grad mode, train and
    eval mode, and PyTorch's choice of fused paths do not change. A function that calls modules, and is compiled for the
    first time in the profiled run, is compiled again afterwards: a warm-up avoids that.

    `profiler` supplies the machine and its ceilings. Without it, one is created for `device`, by default the model's;
    `quiet` suppresses its output. Each timed run is an execution of a region that is named after the model's class.

    Exceptions of the model propagate. Raises TypeError if `model` is no module, and ValueError for an invalid number of
    runs. UsageError: the model is on another device than the profiler's, or its modules cannot be timed there.
    """
    torch = load_torch("profile_model")
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"profile_model takes a torch.nn.Module, not {_described(model)}")
    if profiler is not None and device is not None:
        raise UsageError("profile_model takes a profiler, which is for one device, or a device, not both")
    runs = RunCount(repeats=repeats, warmup=warmup, passes=passes)
    args, kwargs = _arguments(inputs)
    on_devices = devices_of((model, args, kwargs))
    if profiler is None:
        profiler = GPUProfiler(_device(model, on_devices) if device is None else device, quiet=quiet)
    from gpu_profile.roofline.models.run import ModelRun

    return ModelRun(model, args, kwargs, profiler, on_devices).profile(runs)


def _described(model: Any) -> str:
    return f"the class {model.__name__}: make one" if isinstance(model, type) else f"a {type(model).__name__}"


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    # A named tuple, such as a packed sequence, is one argument.
    if type(inputs) is tuple:
        return inputs, {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs,), {}


def _device(model: Any, on_devices: set[str]) -> str:
    first = next((str(each.device) for each in (*model.parameters(), *model.buffers())), None)
    return first or min(on_devices, default="cpu")
