"""Which modules of a model are watched, and how: by hooks, without a change to what the model computes or compiles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import torch
from torch import nn

#: Modules that hold others and are never called themselves.
_HOLDERS: Final = (nn.ModuleList, nn.ModuleDict)
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True, eq=False)
class Submodule:
    """One module of a model. `path` is dotted, empty for the model itself; `how` it is watched."""

    path: str
    module: Any
    how: Literal["hooks", "forward", "call"]

    @property
    def kind(self) -> str:
        """The module's class, and whether it is compiled. Of a lazy module it is another one after its first call."""
        module = self.module
        if "_orig_mod" in module._modules:
            return f"{type(module._modules['_orig_mod']).__name__} (compiled)"
        if isinstance(module, torch.jit.ScriptModule):
            return f"{getattr(module, 'original_name', type(module).__name__)} (scripted)"
        return type(module).__name__ + (" (compiled)" if is_compiled(module) else "")


class Observer(Protocol):
    """Is told of each call of a submodule, in the thread that runs the model, innermost last."""

    def begin(self, submodule: Submodule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Its forward is about to run."""
        ...

    def finish(self, submodule: Submodule) -> None:
        """Its forward has run, or failed."""
        ...


def submodules(model: Any) -> list[Submodule]:
    """The model and the modules in it, each once.

    What is inside of a compiled, scripted or data parallel module is left out: to watch it would break the compiled
    graph, or it runs in other threads.
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
    """Whether calls of it are compiled: by `torch.compile(module)`, `module.compile()`, or its forward alone."""
    return (
        "_orig_mod" in module._modules
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(getattr(module, "forward", None), "_torchdynamo_orig_callable")
    )


def _way(module: Any, fused: bool) -> Literal["hooks", "forward", "call"]:
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "call"  # which would compile hooks of the module too
    return "forward" if fused or isinstance(module, torch.jit.ScriptModule) else "hooks"


def _may_fuse(module: Any) -> bool:
    """Whether it takes a fused path in eval mode unless a module in it has hooks: these must not have any."""
    layer = nn.TransformerEncoderLayer
    return isinstance(module, layer) and not module.training and type(module).forward is layer.forward


@contextmanager
def watched(chosen: Sequence[Submodule], observer: Observer) -> Iterator[None]:
    """Tell `observer` of the calls of these submodules that this thread makes. Nothing of it stays on the model."""
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
        # Around the user's own hooks, which are part of what the module costs.
        undo.append(module.register_forward_pre_hook(hooks.before, prepend=True, with_kwargs=True).remove)
        undo.append(module.register_forward_hook(hooks.after, always_call=True).remove)
        return
    name = "_compiled_call_impl" if submodule.how == "call" else "forward"
    attributes, own = module.__dict__, module.__dict__.get(name, _ABSENT)
    attributes[name] = hooks.around(getattr(module, name))
    undo.append(lambda: attributes.pop(name) if own is _ABSENT else attributes.update({name: own}))


class _Hooks:
    """What PyTorch calls before and after a forward. What is traced by a compiler sees none of it but one question.

    A copy of the module that is made meanwhile takes them along; they are mute once they are `off`.
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
        """The same for what cannot have hooks."""

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
