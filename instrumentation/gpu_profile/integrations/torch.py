"""PyTorch: `instrument(model, optimizer=…, loader=…)` makes a training loop's parts regions, without a change to it.

Regions begin and end where the program calls PyTorch, in its own thread, so that device intervals and parents are
right: a module's forward, the whole of `backward`, `optimizer.step`, and the wait for a batch. Nothing is changed in
what PyTorch computes, and nothing in what `torch.compile` traces.
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

#: The regions' names; a module's is its model's class and its path, such as `ResNet.layer1`.
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer.step"
DATA_WAIT: Final = "data_wait"

#: Before these, what an exception has left open is looked for.
_OUTERMOST: Final = frozenset({FORWARD, OPTIMIZER})

#: Of all models: one may run inside another.
_open: Final = OpenRegions()

#: Private, and made do without: whether calls that are made now are compiled.
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
    """Make each call of `model` a region `forward`, and those of its modules regions in it, until `remove()`.

    `modules`: which: patterns of their paths (`"encoder.layers.*"`) and classes; else all down to `depth` below the
    model, where lists and dictionaries of modules do not count. `backward`: `torch.autograd.backward` and with it
    `loss.backward()`, of any model. `optimizer`: one or several, whose `step` is a region. `loader`: one or several
    DataLoaders, or True for every one; what the loop waits for each batch is a region `data_wait`. `items` tells the
    units of work of a forward from its arguments. `span=False` emits no spans.

    A model that is compiled or wrapped (DistributedDataParallel) is to be given as it is called, so compiled first:
    inside what `torch.compile` has compiled there are no regions. Raises UsageError for a model that is instrumented
    already, and for a pattern or class that no module has; TypeError for what is no module, optimizer or DataLoader.
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
    """What `instrument` has added, until `remove()`. As a context manager it removes it at the end."""

    def __init__(self, model: str, names: list[str], span: bool) -> None:
        #: The regions of the model and its modules.
        self.names = names
        self.span = span
        self.removed = False
        self._model = model
        #: Whether a forward is still to be seen, and its absence to be told.
        self._awaited = FORWARD in names
        self._undo: list[Callable[[], object]] = []

    def remove(self) -> None:
        """Take all of it away again. Twice is fine. Copies that were made of the model fall silent too."""
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

    def _tell_absence(self) -> None:
        """What is compiled later takes the hooks with it, and they are mute there."""
        self._awaited = False
        _log.warning(
            "gpu-profile: no forward of %s before the first backward; if it was compiled after instrument(), "
            "give instrument() what torch.compile returned",
            self._model,
        )


class _RegionHooks:
    """Before and after one module's forward, or one optimizer's step. A pickled copy does nothing."""

    def __init__(self, name: str, handle: Instrumentation | None, items: Callable[..., float] | None) -> None:
        self.name = name
        self._handle = handle
        self._items = items

    def __deepcopy__(self, memo: object) -> _RegionHooks:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _RegionHooks, (self.name, None, None)

    def before(self, module: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - as PyTorch calls it
        # What is traced sees true here and nothing else of this.
        if torch.compiler.is_compiling() or (handle := self._handle) is None or handle.removed or _is_inside():
            return
        if self.name in _OUTERMOST:
            handle._awaited = handle._awaited and self.name != FORWARD
            _open.sweep()
        items = None if self._items is None else self._items(*args, **kwargs)
        _open.open(self.name, key=self, items=items, span=handle.span, callers=2)

    def after(self, module: Any, args: Any, result: Any) -> None:  # noqa: ARG002 - as PyTorch calls it
        if torch.compiler.is_compiling() or self._handle is None or _is_inside():
            return
        _open.close(self, sys.exc_info()[1])

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same for a module whose call has been compiled."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or (handle := self._handle) is None or handle.removed or _is_inside():
                return function(*args, **kwargs)
            handle._awaited = handle._awaited and self.name != FORWARD
            items = None if self._items is None else self._items(*args, **kwargs)
            with region(self.name, items=items, span=handle.span):
                return function(*args, **kwargs)

        call.__dict__["gpu_profile_hooks"] = self
        return call


def _is_inside() -> bool:
    """Whether this call belongs to `backward`, which computes forwards anew (checkpointing), or to compiled code."""
    return _compiler_now() is not None or torch._C._current_graph_task_id() != -1


def _leave_as_it_is(function: Any) -> None:
    """Have `torch.compile` run this function rather than compile it, where it is called and not traced."""
    try:
        skip = _eval_frame._FrameAction.SKIP, _eval_frame._FrameAction.DEFAULT
        _eval_frame.set_code_exec_strategy(function.__code__, _eval_frame._FrameExecStrategy(*skip))
    except (AttributeError, TypeError):  # another version's; to import torch._dynamo for its own way costs seconds
        return


def _is_hooked(module: Any) -> bool:
    hooks = [getattr(hook, "__self__", None) for hook in module._forward_pre_hooks.values()]
    hooks.append(getattr(getattr(module, "_compiled_call_impl", None), "gpu_profile_hooks", None))
    return any(isinstance(one, _RegionHooks) and one._handle is not None and not one._handle.removed for one in hooks)


def _several(given: Any, kind: type, argument: str) -> list[Any]:
    """One thing of a kind, or several of them, as a list."""
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
    """Paths, levels and modules below one, each once, and none inside what is compiled."""
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
    """What a module wraps that is called in its place: compiled, or in parallel."""
    if "_orig_mod" in module._modules:
        return module._modules["_orig_mod"]
    parallel = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    return module.module if isinstance(module, parallel) else None


def _fits(wanted: str | type, path: str, module: Any) -> bool:
    return fnmatchcase(path, wanted) if isinstance(wanted, str) else isinstance(module, wanted)


def _no_module(wanted: str | type, kind: str, paths: list[str]) -> str:
    if not paths:
        return f"modules: there are none to choose inside {kind}: it is compiled, or has none"
    name = wanted if isinstance(wanted, str) else wanted.__name__
    near = get_close_matches(name, paths, 3, 0.5) or paths[:3]
    return f"modules: {kind} has no {name!r}; it has {', '.join(near)}{' …' if len(paths) > len(near) else ''}"


# ---------------------------------------------------------------------- what PyTorch has no hooks for


class _User(NamedTuple):
    handle: Instrumentation
    watched: Any


class _Replaced:
    """A function of PyTorch's that is replaced while somebody uses the replacement."""

    def __init__(self, owner: Any, name: str, replace: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._owner, self._name, self._replace = owner, name, replace
        self._lock = threading.Lock()
        self._original: Any = None
        self._replacement: Any = None
        self.users: list[_User] = []

    def add(self, handle: Instrumentation, watched: Any) -> Callable[[], None]:
        """Use it; what is returned ends that."""
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
            # Who has replaced it since still calls ours, which does nothing then.
            if not self.users and getattr(self._owner, self._name) is self._replacement:
                setattr(self._owner, self._name, self._original)


def _timed_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        # No call of ours before it is known that nothing compiles: it would be compiled, too.
        if torch.compiler.is_compiling() or _compiler_now() is not None or _is_inside() or not _backward.users:
            return original(*args, **kwargs)
        _open.sweep()
        for user in _backward.users:
            if user.handle._awaited:
                user.handle._tell_absence()
        with region(BACKWARD, span=any(user.handle.span for user in _backward.users)):
            return original(*args, **kwargs)

    _leave_as_it_is(backward)
    return backward


def _timed_iteration(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __iter__(self: Any) -> Any:  # noqa: N807 - what it replaces
        users = [user for user in _iteration.users if user.watched is True or user.watched is self]
        if not users:
            return original(self)
        span = any(user.handle.span for user in users)
        with region(DATA_WAIT, span=span):  # workers start here
            batches = original(self)
        return waiting(batches, span=span)

    return __iter__


#: Not `Tensor.backward`, which calls it: a program may, too.
_backward: Final = _Replaced(torch.autograd, "backward", _timed_backward)
_iteration: Final = _Replaced(DataLoader, "__iter__", _timed_iteration)


class waiting:  # noqa: N801 - used as a function, like `iter`
    """Iterate over `batches`; each wait for the next one, and for the end, is a region `data_wait`.

    For input that comes from no DataLoader: `for batch in waiting(batches):`. `span=False` emits no spans.
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
