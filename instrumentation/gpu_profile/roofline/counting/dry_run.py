"""Counts PyTorch's own functions and modules on copies without data: nothing is computed or changed."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch.utils._device import DeviceContext

from gpu_profile.regions.session import process
from gpu_profile.roofline.counting.builtins import plain, tensors_of
from gpu_profile.roofline.counting.counter import Mode
from gpu_profile.roofline.counting.fake_tensors import WITHOUT_DATA, FakeTensors, unlogged
from gpu_profile.roofline.counting.recorder import OperationLog
from gpu_profile.roofline.counting.registry import Registered, checked, registered_callable, registrations
from gpu_profile.roofline.counting.signature import describe
from gpu_profile.roofline.work import Work

#: The largest number of cached signatures; the oldest is evicted first.
KEPT: Final = 1024

_Tensor: Final = torch.Tensor
_Module: Final = torch.nn.Module
_Kept = dict[Any, Work | None]
_functions: Final[_Kept] = {}
#: The cache of each module, which lives as long as the module.
_modules: Final[weakref.WeakKeyDictionary[Any, _Kept]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_copying = threading.Lock()
_missing: Final = object()
_function_modes: Final = torch._C._len_torch_function_stack


def _svd(input: Any, some: bool = True, compute_uv: bool = True) -> Any:  # noqa: A002 - the name in PyTorch
    return torch.ops.aten._linalg_svd(input, not some, compute_uv)


def _eigvals(input: Any) -> Any:  # noqa: A002 - the name in PyTorch
    return torch.ops.aten._linalg_eigvals(input)


#: Functions that compute no vectors, except for gradients or while PyTorch is observed -> the operation that they run
#: otherwise.
_WITHOUT_VECTORS: Final[Mapping[Any, Any]] = {
    torch.linalg.svdvals: partial(torch.ops.aten._linalg_svd, compute_uv=False),
    torch.linalg.eigvalsh: partial(torch.ops.aten._linalg_eigh, compute_v=False),
    torch.linalg.eigvals: _eigvals,
    torch.svd: _svd,
    torch.Tensor.svd: _svd,
}
#: These and functions that always compute vectors: their counts on copies are those of their runs.
_DECOMPOSITIONS: Final = frozenset({*_WITHOUT_VECTORS, torch.linalg.svd, torch.linalg.eigh, torch.linalg.eig})

#: Types of attributes that count as settings of a module.
_SETTINGS: Final = frozenset({bool, int, float, str, tuple})


def signature(args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Hashable | None:
    """The call's `Signature`. None if it has none, or if a mode of the user's would observe the inspection."""
    try:
        if _function_modes() and _modes_of_the_user():
            return None
        key = describe(args, kwargs or {})
        hash(key)
    except Exception:  # noqa: BLE001 - an argument without address, shape or hash has no key, and may raise anything
        return None
    return key


def count_without_running(
    function: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> Work | None:
    """The work of one call of `function`, without calling it: by a registered formula, or on copies without data.

    Runs on copies: PyTorch's own functions, methods of tensors, modules that consist only of PyTorch's own modules, and
    partials of these. If gradients are enabled, only the forward pass is counted. None of the user's code runs; data,
    gradients, buffers and random states do not change. The result is None for all other callables, for work that
    depends on data (`nonzero`), and for tensors without plain memory (sparse, nested, quantised, subclasses). These
    have to be counted in their run.

    Results are cached by function and `signature`. Memory that a real run reuses counts as new memory in `working_set`,
    so for a chain of operations it is an upper bound.
    """
    if (registered := registered_callable(function)) is not None:
        return registered_work(registered, args, kwargs or {})
    function, args, kwargs = _unbound(function, args, kwargs or {})
    # Before the cache: hooks may have been added since a module was counted, and the cache must not keep the user's
    # functions and their closures alive.
    if not plain(function) or (key := signature(args, kwargs)) is None:
        return None
    try:
        if isinstance(function, _Module):
            kept = _modules.setdefault(function, {})
            key = (registrations(), key, _state(function))
        else:
            kept, key = _functions, (registrations(), function, key)
        cached = kept.get(key, _missing)
    except TypeError:  # a callable that has no hash
        return None
    if cached is not _missing:
        return cached  # type: ignore[return-value]
    if _modes_of_the_user():
        return None
    work = _counted(function, args, kwargs)
    with _lock:
        while len(kept) >= KEPT:
            del kept[next(iter(kept))]
        kept[key] = work
    return work


def registered_work(registered: Registered, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Work:
    """The work of a callable by the user's formulas. A value without a working formula is None, with the reason."""
    counts: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for name, formula in zip(Registered._fields, registered, strict=True):
        if formula is None:
            reasons[name] = f"no formula for {name} is registered for this callable"
            continue
        try:
            counts[name] = checked(formula(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - a user's formula must not fail the user's call
            reasons[name] = f"the formula for {name} failed: {type(error).__name__}: {error}"
    return Work(flops=counts.get("flops"), bytes=counts.get("bytes"), method="formula", reasons=reasons)


def _state(module: Any) -> Hashable:
    """The properties of a module that determine its work: settings, parameters and buffers of all its submodules."""
    parts = list(module.modules())
    settings = tuple(
        (type(each), *(value for value in vars(each).values() if type(value) in _SETTINGS)) for each in parts
    )
    return settings, signature(tuple(tensors_of(module)))


def _unbound(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """The same call without partials and bound methods of tensors, because these two keep tensors alive."""
    while isinstance(function, partial):
        function, args, kwargs = function.func, (*function.args, *args), {**function.keywords, **kwargs}
    owner = getattr(function, "__self__", None)
    if isinstance(owner, _Tensor) and plain(function):
        return getattr(type(owner), function.__name__), (owner, *args), kwargs
    return function, args, kwargs


def _counted(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Work | None:
    fakes, record = FakeTensors(), OperationLog(fake=True, exact=function in _DECOMPOSITIONS)
    try:
        # Without warnings: the run itself gives them. Filters are global to the process, hence one thread at a time.
        with _copying, warnings.catch_warnings(), unlogged():
            warnings.simplefilter("ignore")
            given, named = fakes.value(tuple(args)), fakes.value(dict(kwargs))
            call = fakes.module(function) if isinstance(function, _Module) else function
            if function in _WITHOUT_VECTORS and not _wants_gradients(*given, *named.values()):
                call = _WITHOUT_VECTORS[function]
            with fakes.mode, Mode(record, types=WITHOUT_DATA):
                call(*given, **named)
    except Exception:  # noqa: BLE001 - a call that cannot run without data is counted in its run
        return None
    totals, touched = record.totals()
    return totals.work("meta", working_set=touched)


def _wants_gradients(*values: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(each, _Tensor) and each.requires_grad for each in values)


def _modes_of_the_user() -> bool:
    """Whether a mode of the user's would see the copies. `torch.device` and `set_default_device` do not count."""
    modes = (torch._C._get_function_stack_at(i) for i in range(_function_modes()))
    return bool(torch._C._len_torch_dispatch_stack()) or not all(isinstance(each, DeviceContext) for each in modes)


@process.in_child
def _forget() -> None:
    """After a fork: a lock that another thread of the parent held would stay locked in the child."""
    global _lock, _copying
    _lock, _copying = threading.Lock(), threading.Lock()
