"""PyTorch: `instrument(model, optimizer=…, loader=…)` makes a training loop's parts regions, without a change to it.

Regions begin and end where the program calls PyTorch, in its own thread, so that device intervals and parents are
right. They are a module's forward, the whole of `backward`, `optimizer.step`, and the wait for a batch. PyTorch's
results and the graphs that `torch.compile` traces do not change.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from gpu_profile.errors import UsageError
from gpu_profile.integrations.open_regions import OpenRegions
from gpu_profile.regions.region import region

try:
    import torch
    from torch.utils.data import DataLoader
except ImportError as missing:
    message = f"gpu_profile.integrations.torch needs PyTorch: pip install 'gpu-profile[torch]' ({missing})"
    raise ImportError(message) from missing

_log = logging.getLogger("gpu_profile")

#: Names of regions. The region of a module is named by its model's class and its path, such as `ResNet.layer1`.
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer.step"
DATA_WAIT: Final = "data_wait"

#: Before these regions begin, regions that an exception has left open are ended.
_OUTERMOST: Final = frozenset({FORWARD, OPTIMIZER})

#: Shared by all models, because one may run inside another.
_open: Final = OpenRegions()

#: PyTorch's private check whether calls are being compiled now. Optional: without it the answer is no.
_eval_frame: Final[Any] = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_compiler_now: Final[Callable[[], object]] = getattr(_eval_frame, "get_eval_frame_callback", lambda: None)


def instrument(
    model: Any,
    *,
    modules: str | type | Iterable[str | type] | None = None,
    depth: int = 1,
    forward: bool = True,
    backward: bool = True,
    optimizer: Any = None,
    loader: Any = None,
    items: Callable[..., float] | None = None,
    span: bool = True,
) -> Instrumentation:
    """Make each call of `model` a region `forward`, and the calls of its modules regions in it, until `remove()`.

    `modules`: patterns of the modules' paths (`"encoder.layers.*"`) and classes; by default all down to `depth` levels
    below the model, not counting lists and dictionaries of modules. `backward`: `torch.autograd.backward` and so
    `loss.backward()`, of any model. `optimizer`: one or several; each `step` is a region. `loader`: one or several
    DataLoaders, or True for all; the wait for each batch is a region `data_wait`. `items`: a function that returns the
    units of work of a forward, called with its arguments. `span=False` emits no spans.

    Pass a compiled or wrapped model (DistributedDataParallel) as the program calls it, so compile it first. There are
    no regions inside compiled code. Raises UsageError for a model that is instrumented already, and for a pattern or
    class without a module. Raises TypeError for an argument that is not a module, optimizer or DataLoader.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"instrument takes a torch.nn.Module, not {model!r}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"instrument takes no TorchScript, which has no hooks: {model.original_name}")
    optimizers = _several(optimizer, torch.optim.Optimizer, "optimizer")
    loaders = [True] if loader is True else _several(loader, DataLoader, "loader")
    chosen = list(_chosen(model, modules, depth))
    if forward:
        chosen.insert(0, (FORWARD, model))
    if any(_is_hooked(module) for _, module in chosen):
        raise UsageError(f"{type(model).__name__} is instrumented already: remove() that first")
    handle = Instrumentation(type(model).__name__, [name for name, _ in chosen], span)
    for name, module in chosen:
        handle._add_module(name, module, items if name == FORWARD else None)
    if backward:
        handle._undo.append(_backward.add(handle, None))
    for one in optimizers:
        handle._add_optimizer(one)
    for watched in loaders:
        handle._undo.append(_iteration.add(handle, watched))
    return handle


class Instrumentation:
    """The handle of `instrument`. `remove()`, or the end of a `with` block, removes the hooks."""

    def __init__(self, model: str, names: list[str], span: bool) -> None:
        #: The regions of the model and its modules.
        self.names = names
        self.span = span
        self.removed = False
        self._model = model
        #: Whether no forward has run yet: the first backward then logs a warning.
        self._awaits_forward = FORWARD in names
        self._undo: list[Callable[[], object]] = []

    def remove(self) -> None:
        """Remove the hooks. A second call does nothing. Copies of the model have no regions any more either."""
        _open.sweep()
        self.removed = True
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _add_module(self, name: str, module: Any, items: Callable[..., float] | None) -> None:
        hooks = _RegionHooks(name, self, items)
        called = getattr(module, "_compiled_call_impl", None)
        if called is not None:  # by module.compile(), which compiles the hooks of the module itself
            module._compiled_call_impl = hooks.around(called)
            self._undo.append(lambda: setattr(module, "_compiled_call_impl", called))
            return
        before = module.register_forward_pre_hook(hooks.before, with_kwargs=True)
        after = module.register_forward_hook(hooks.after, always_call=True)
        self._undo += [before.remove, after.remove]

    def _add_optimizer(self, optimizer: Any) -> None:
        hooks = _RegionHooks(OPTIMIZER, self, None)
        before = optimizer.register_step_pre_hook(hooks.before)
        after = optimizer.register_step_post_hook(hooks.after)
        self._undo += [before.remove, after.remove]

    def _warn_no_forward(self) -> None:
        """A model that is compiled after `instrument` contains the hooks, which do nothing in compiled code."""
        self._awaits_forward = False
        _log.warning(
            "gpu-profile: no forward of %s before the first backward; if it was compiled after instrument(), "
            "give instrument() what torch.compile returned",
            self._model,
        )


class _RegionHooks:
    """The hooks before and after a module's forward or an optimizer's step. A pickled copy does nothing."""

    def __init__(self, name: str, handle: Instrumentation | None, items: Callable[..., float] | None) -> None:
        self.name = name
        self._handle = handle
        self._items = items

    def __deepcopy__(self, memo: object) -> _RegionHooks:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _RegionHooks, (self.name, None, None)

    def before(self, module: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - as PyTorch calls it
        # A trace sees True here and records nothing else of this function.
        if torch.compiler.is_compiling() or (handle := self._handle) is None or handle.removed or _is_inside():
            return
        if self.name in _OUTERMOST:
            handle._awaits_forward = handle._awaits_forward and self.name != FORWARD
            _open.sweep()
        items = None if self._items is None else self._items(*args, **kwargs)
        _open.open(self.name, key=self, items=items, span=handle.span, callers=2)

    def after(self, module: Any, args: Any, result: Any) -> None:  # noqa: ARG002 - as PyTorch calls it
        if torch.compiler.is_compiling() or self._handle is None or _is_inside():
            return
        _open.close(self, sys.exc_info()[1])

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the compiled call of a module in its region."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or (handle := self._handle) is None or handle.removed or _is_inside():
                return function(*args, **kwargs)
            handle._awaits_forward = handle._awaits_forward and self.name != FORWARD
            items = None if self._items is None else self._items(*args, **kwargs)
            with region(self.name, items=items, span=handle.span):
                return function(*args, **kwargs)

        call.__dict__["gpu_profile_hooks"] = self
        return call


def _is_inside() -> bool:
    """Whether this call belongs to `backward`, which recomputes forwards (checkpointing), or to compiled code."""
    return _compiler_now() is not None or torch._C._current_graph_task_id() != -1


def _skip_compilation(function: Any) -> None:
    """Make `torch.compile` run this function uncompiled where it is called rather than traced."""
    try:
        skip = _eval_frame._FrameAction.SKIP, _eval_frame._FrameAction.DEFAULT
        _eval_frame.set_code_exec_strategy(function.__code__, _eval_frame._FrameExecStrategy(*skip))
    except (AttributeError, TypeError):  # another version; importing torch._dynamo for its public way takes seconds
        return


def _is_hooked(module: Any) -> bool:
    hooks = [getattr(hook, "__self__", None) for hook in module._forward_pre_hooks.values()]
    hooks.append(getattr(getattr(module, "_compiled_call_impl", None), "gpu_profile_hooks", None))
    return any(isinstance(one, _RegionHooks) and one._handle is not None and not one._handle.removed for one in hooks)


def _several(given: Any, kind: type, argument: str) -> list[Any]:
    """`given`, one object of `kind` or several, as a list. Raises TypeError for anything else."""
    things = () if given is None else (given,) if isinstance(given, kind) else given
    if not isinstance(things, Collection) or not all(isinstance(one, kind) for one in things):
        raise TypeError(f"{argument} takes one or several of {kind.__module__}.{kind.__name__}, not {given!r}")
    return list(things)


# ---------------------------------------------------------------------- which modules


def _chosen(model: Any, modules: str | type | Iterable[str | type] | None, depth: int) -> Iterator[tuple[str, Any]]:
    inner = model
    while (wrapped := _wrapped(inner)) is not None and not _is_compiled(inner):
        inner = wrapped
    inside = [] if _is_compiled(inner) else list(_below(inner, "", 1, {id(inner)}))
    kind = type(_wrapped(inner) or inner).__name__
    if modules is None:
        yield from ((f"{kind}.{path}", module) for path, level, module in inside if level <= depth)
        return
    wanted = [modules] if isinstance(modules, (str, type)) else list(modules)
    for one in wanted:
        if not any(_fits(one, path, module) for path, _, module in inside):
            raise UsageError(_no_module(one, kind, [path for path, _, _ in inside]))
    for path, _, module in inside:
        if any(_fits(one, path, module) for one in wanted):
            yield f"{kind}.{path}", module


def _below(module: Any, path: str, level: int, seen: set[int]) -> Iterator[tuple[str, int, Any]]:
    """`(path, level, module)` of the modules below `module`, each once, without the inside of compiled ones."""
    for name, child in module.named_children():
        if id(child) in seen or isinstance(child, torch.jit.ScriptModule):
            continue
        seen.add(id(child))
        own = f"{path}.{name}" if path else name
        if isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):  # never called
            yield from _below(child, own, level, seen)
            continue
        yield own, level, child
        if not _is_compiled(child):
            yield from _below(child, own, level + 1, seen)


def _is_compiled(module: Any) -> bool:
    return "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None


def _wrapped(module: Any) -> Any:
    """The module inside a compiled or parallel wrapper; None for a module without a wrapper."""
    if "_orig_mod" in module._modules:
        return module._modules["_orig_mod"]
    parallel = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    return module.module if isinstance(module, parallel) else None


def _fits(wanted: str | type, path: str, module: Any) -> bool:
    return fnmatchcase(path, wanted) if isinstance(wanted, str) else isinstance(module, wanted)


def _no_module(wanted: str | type, kind: str, paths: list[str]) -> str:
    if not paths:
        return f"modules: {kind} has no modules to choose from: it is compiled, or has none"
    name = wanted if isinstance(wanted, str) else wanted.__name__
    near = get_close_matches(name, paths, 3, 0.5) or paths[:3]
    return f"modules: {kind} has no {name!r}; it has {', '.join(near)}{' …' if len(paths) > len(near) else ''}"


# ---------------------------------------------------------------------- functions without hooks


class _User(NamedTuple):
    handle: Instrumentation
    watched: Any


class _Replaced:
    """A function of PyTorch that is replaced while an `Instrumentation` uses the replacement."""

    def __init__(self, owner: Any, name: str, replace: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._owner, self._name, self._replace = owner, name, replace
        self._lock = threading.Lock()
        self._original: Any = None
        self._replacement: Any = None
        self.users: list[_User] = []

    def add(self, handle: Instrumentation, watched: Any) -> Callable[[], None]:
        """Register a user. Returns the function that removes it."""
        user = _User(handle, watched)
        with self._lock:
            self.users = [*self.users, user]
            if getattr(self._owner, self._name) is not self._replacement:
                self._original = getattr(self._owner, self._name)
                self._replacement = self._replace(self._original)
                setattr(self._owner, self._name, self._replacement)
        return lambda: self._remove(user)

    def _remove(self, user: _User) -> None:
        with self._lock:
            self.users = [one for one in self.users if one is not user]
            # Other code that has replaced it since still calls this replacement, which then does nothing.
            if not self.users and getattr(self._owner, self._name) is self._replacement:
                setattr(self._owner, self._name, self._original)


def _timed_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        # Call no function of this library before this check: during a compilation it would be compiled too.
        if torch.compiler.is_compiling() or _compiler_now() is not None or _is_inside() or not _backward.users:
            return original(*args, **kwargs)
        _open.sweep()
        for user in _backward.users:
            if user.handle._awaits_forward:
                user.handle._warn_no_forward()
        with region(BACKWARD, span=any(user.handle.span for user in _backward.users)):
            return original(*args, **kwargs)

    _skip_compilation(backward)
    return backward


def _timed_iteration(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __iter__(self: Any) -> Any:  # noqa: N807 - replaces `DataLoader.__iter__`
        users = [user for user in _iteration.users if user.watched is True or user.watched is self]
        if not users:
            return original(self)
        span = any(user.handle.span for user in users)
        with region(DATA_WAIT, span=span):  # workers start here
            batches = original(self)
        return waiting(batches, span=span)

    return __iter__


#: Not `Tensor.backward`: it calls `torch.autograd.backward`, and a program may call the latter directly.
_backward: Final = _Replaced(torch.autograd, "backward", _timed_backward)
_iteration: Final = _Replaced(DataLoader, "__iter__", _timed_iteration)


class waiting:  # noqa: N801 - used as a function, like `iter`
    """Iterate over `batches`; each wait for the next one, and for the end, is a region `data_wait`.

    For input without a DataLoader: `for batch in waiting(batches):`. `span=False` emits no spans.
    """

    def __init__(self, batches: Iterable[Any], *, span: bool = True) -> None:
        self._batches = iter(batches)
        self._span = span

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        wait = region(DATA_WAIT, span=self._span).__enter__()
        try:
            batch = next(self._batches)
        except StopIteration:
            wait.end()
            raise
        except BaseException as error:
            wait.end(error)
            raise
        wait.end()
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":
            raise AttributeError(name)
        return getattr(self._batches, name)
