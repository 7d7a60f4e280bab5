"""Work that PyTorch's dispatcher does not see: compiled callables, TorchScript, replays of CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from gpu_profile.roofline.counting.dry_run import count_without_running, registered_work
from gpu_profile.roofline.counting.registry import registered_callable
from gpu_profile.roofline.work import Work, unknown_work

COMPILED: Final = "it is compiled: the work of its kernels is not known; register a formula for it"
SCRIPTED: Final = "it is TorchScript, which may fuse its operations: register a formula for it"
REPLAYED: Final = "a CUDA graph's replay does not report its kernels: register a formula for it"
FUSED: Final = "it is compiled: how many bytes its fused kernels move is not known; register a formula for it"


def compiled_part(function: Any) -> str | None:
    """Why counting in a run would miss work of this callable. None if there is no sign of that.

    Inspects the callable, the callable that it wraps, the object that it is bound to, and the submodules of modules.
    `Counting` detects compiled code that appears only in the run.
    """
    seen = 0
    while function is not None and seen < 16:  # wrappers may wrap each other endlessly
        seen += 1
        if (reason := _own_reason(function)) is not None:
            return reason
        if isinstance(function, torch.nn.Module):
            return next((why for each in function.modules() if (why := _own_reason(each)) is not None), None)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, (torch.nn.Module, torch.jit.ScriptFunction)):
            function = owner
        elif isinstance(function, partial):
            function = function.func
        else:
            function = getattr(function, "__wrapped__", None)
    return None


def _own_reason(function: Any) -> str | None:
    if getattr(function, "_torchdynamo_orig_callable", None) is not None:
        return COMPILED
    if getattr(function, "_compiled_call_impl", None) is not None:  # Module.compile()
        return COMPILED
    if isinstance(function, (torch.jit.ScriptFunction, torch.jit.ScriptModule, torch._C.ScriptMethod)):
        return SCRIPTED
    graph = getattr(torch.cuda, "CUDAGraph", None)
    if isinstance(graph, type) and (
        isinstance(function, graph) or isinstance(getattr(function, "__self__", None), graph)
    ):
        return REPLAYED
    # Exported and packaged programs run kernels of Inductor.
    if type(function).__module__.startswith("torch._inductor") or type(function).__name__ == "AOTICompiledModel":
        return COMPILED
    return None


def compiled_work(function: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Work:
    """The work of a compiled callable, determined without running, compiling or changing it.

    A registered formula of the compiled callable, or of the original one, gives the work. If the original is PyTorch's
    own (`torch.compile(nn.Linear(…))`), its FLOPs are the work's, because compiling does not change them. Fusion
    changes its bytes, so they are unknown: Inductor keeps no count of them for code that is already compiled. All other
    work is unknown, with the reason.
    """
    if (registered := registered_callable(function)) is not None:
        return registered_work(registered, args, kwargs or {})
    reason = compiled_part(function) or COMPILED
    original = _original(function)
    if reason is COMPILED and original is not None:
        if (registered := registered_callable(original)) is not None:
            return registered_work(registered, args, kwargs or {})
        if (work := count_without_running(original, args, kwargs)) is not None and work.flops is not None:
            return replace(
                work, bytes=None, working_set=None, largest=None, operations=0, reasons={**work.reasons, "bytes": FUSED}
            )
    return unknown_work(reason)


def _original(function: Any) -> Any:
    """The callable that was compiled, or None."""
    original = getattr(function, "_torchdynamo_orig_callable", None)
    module = getattr(function, "_orig_mod", None)  # OptimizedModule
    return module if module is not None else original
