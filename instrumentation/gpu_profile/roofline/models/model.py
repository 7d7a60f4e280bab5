"""`profile_model`: which modules of a PyTorch model take its time, and what bounds each."""

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
    """Run `model` on `inputs` once, and rank its modules by their own time, each with what bounds it.

    `inputs`: a tuple of positional arguments, a dictionary of keyword ones, or one argument. The forward runs more
    often only if asked to: `repeats` timed runs (medians count, the last output is kept) after `warmup` untimed ones,
    and `passes=2` for one more in which the FLOPs and bytes are counted that are not known without it. Those of
    PyTorch's own modules are known, from the shapes that they were called with; those of modules that run code of the
    user's are absent in a single pass.

    Modules are timed by hooks, which are gone afterwards, and on GPUs by events in the current stream; the host does
    not wait for them before the model has run. What is compiled, scripted or data parallel is one row. Grad mode,
    train and eval mode, and PyTorch's choice of fused paths stay as they are. A function that is compiled for the first
    time meanwhile, and calls modules, is compiled once more afterwards: a warm-up avoids that.

    `profiler` gives the machine and its ceilings, else one is made for `device`, by default the model's, silently if
    `quiet`. Each timed run is an execution of a region that is named after the model's class.

    What the model raises passes through. TypeError for what is no module, ValueError for a number of runs that is none,
    UsageError if the model is on another device than the profiler's, or on one whose modules cannot be timed.
    """
    torch = load_torch("profile_model")
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"profile_model takes a torch.nn.Module, not {_what(model)}")
    if profiler is not None and device is not None:
        raise UsageError("profile_model takes a profiler, which is for one device, or a device, not both")
    runs = RunCount(repeats=repeats, warmup=warmup, passes=passes)
    args, kwargs = _arguments(inputs)
    found = devices_of((model, args, kwargs))
    if profiler is None:
        profiler = GPUProfiler(_device(model, found) if device is None else device, quiet=quiet)
    from gpu_profile.roofline.models.run import ModelRun

    return ModelRun(model, args, kwargs, profiler, found).profile(runs)


def _what(model: Any) -> str:
    return f"the class {model.__name__}: make one" if isinstance(model, type) else f"a {type(model).__name__}"


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    # A named tuple, such as a packed sequence, is one argument.
    if type(inputs) is tuple:
        return inputs, {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs,), {}


def _device(model: Any, found: set[str]) -> str:
    first = next((str(each.device) for each in (*model.parameters(), *model.buffers())), None)
    return first or min(found, default="cpu")
