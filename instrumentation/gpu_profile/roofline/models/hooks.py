"""Selects the modules of a model to observe, and hooks them without changing the model's results or compilation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import torch
from torch import nn

#: Containers of modules that are never called themselves.
_HOLDERS: Final = (nn.ModuleList, nn.ModuleDict)
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True, eq=False)
class Submodule:
    """One module of a model. `path`: dotted, empty for the model itself. `how`: the kind of interception."""

    path: str
    module: Any
    how: Literal["hooks", "forward", "call"]

    @property
    def kind(self) -> str:
        """The module's class, with a mark if it is compiled or scripted. A lazy module changes it in its first call."""
        module = self.module
        if "_orig_mod" in module._modules:
            return f"{type(module._modules['_orig_mod']).__name__} (compiled)"
        if isinstance(module, torch.jit.ScriptModule):
            return f"{getattr(module, 'original_name', type(module).__name__)} (scripted)"
        return type(module).__name__ + (" (compiled)" if is_compiled(module) else "")


class Observer(Protocol):
    """Receives the begin and end of each call of a submodule, in the thread that runs the model. Calls may nest."""

    def begin(self, submodule: Submodule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The submodule's forward is about to run."""
        ...

    def finish(self, submodule: Submodule) -> None:
        """The submodule's forward has returned or raised."""
        ...


def submodules(model: Any) -> list[Submodule]:
    """The model and the modules in it, each once.

    Modules inside of a compiled, scripted or data parallel module are absent: hooks would break the compiled graph, or
    the modules run in other threads.
    """
    return list(_submodules("", model, False, set()))


def _submodules(path: str, module: Any, fused: bool, seen: set[int]) -> Iterator[Submodule]:
    if id(module) in seen:
        return
    seen.add(id(module))
    closed = is_compiled(module) or isinstance(module, torch.jit.ScriptModule | nn.DataParallel)
    fused = fused or _may_fuse(module)
    if not isinstance(module, _HOLDERS):
        yield Submodule(path, module, _way(module, fused))
    if closed:
        return
    for name, child in module.named_children():
        yield from _submodules(f"{path}.{name}" if path else name, child, fused, seen)


def is_compiled(module: Any) -> bool:
    """Whether calls of the module are compiled: by `torch.compile(module)`, `module.compile()`, or in its forward."""
    return (
        "_orig_mod" in module._modules
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(getattr(module, "forward", None), "_torchdynamo_orig_callable")
    )


def _way(module: Any, fused: bool) -> Literal["hooks", "forward", "call"]:
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "call"  # hooks of the module would be compiled too
    return "forward" if fused or isinstance(module, torch.jit.ScriptModule) else "hooks"


def _may_fuse(module: Any) -> bool:
    """Whether the module has a fused path in eval mode, which hooks on its inner modules would disable."""
    layer = nn.TransformerEncoderLayer
    return isinstance(module, layer) and not module.training and type(module).forward is layer.forward


@contextmanager
def watched(chosen: Sequence[Submodule], observer: Observer) -> Iterator[None]:
    """Notify `observer` of this thread's calls of these submodules. On exit, the model is as before."""
    undo: list[Callable[[], object]] = []
    try:
        for submodule in chosen:
            _attach(submodule, observer, undo)
        yield
    finally:
        while undo:
            undo.pop()()


def _attach(submodule: Submodule, observer: Observer, undo: list[Callable[[], object]]) -> None:
    module, hooks = submodule.module, _Hooks(submodule, observer)
    undo.append(hooks.off)
    if submodule.how == "hooks":
        # Outside of the user's own hooks, which are part of the module's cost.
        undo.append(module.register_forward_pre_hook(hooks.before, prepend=True, with_kwargs=True).remove)
        undo.append(module.register_forward_hook(hooks.after, always_call=True).remove)
        return
    name = "_compiled_call_impl" if submodule.how == "call" else "forward"
    attributes, own = module.__dict__, module.__dict__.get(name, _ABSENT)
    attributes[name] = hooks.around(getattr(module, name))
    undo.append(lambda: attributes.pop(name) if own is _ABSENT else attributes.update({name: own}))


class _Hooks:
    """PyTorch calls these before and after a forward. A compiler that traces them sees only the test for compiling.

    A copy of the module made at that time keeps the hooks, but `off` disables these as well.
    """

    def __init__(self, submodule: Submodule, observer: Observer) -> None:
        self._submodule: Submodule | None = submodule
        self._observer = observer
        self._thread = threading.get_ident()

    def __deepcopy__(self, memo: object) -> _Hooks:
        return self

    def off(self) -> None:
        self._submodule = None

    def before(self, module: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - as PyTorch calls it
        if torch.compiler.is_compiling() or (submodule := self._here()) is None:
            return
        self._observer.begin(submodule, args, kwargs)

    def after(self, module: Any, args: Any, result: Any) -> None:  # noqa: ARG002 - as PyTorch calls it
        if torch.compiler.is_compiling() or (submodule := self._here()) is None:
            return
        self._observer.finish(submodule)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A wrapper of `function` with the same notifications, for modules that cannot have hooks."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or (submodule := self._here()) is None:
                return function(*args, **kwargs)
            self._observer.begin(submodule, args, kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                self._observer.finish(submodule)

        return call

    def _here(self) -> Submodule | None:
        return self._submodule if threading.get_ident() == self._thread else None
