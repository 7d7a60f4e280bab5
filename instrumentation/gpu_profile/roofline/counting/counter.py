"""Counts what is dispatched while the user's callable runs once, and says what that cost."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from time import perf_counter_ns
from typing import Any, Final, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_profile.roofline.counting.recorder import OperationLog, operation_name
from gpu_profile.roofline.counting.traffic import STILL
from gpu_profile.roofline.counting.undispatched import Undispatched, compilations
from gpu_profile.roofline.work import Work, unknown_work
from gpu_profile.units import NS_PER_S

TOO_DEAR: Final = "needs passes=2: counting would have taken too large a share of the run"
TOO_OLD: Final = "needs passes=2: with this version of PyTorch counting would keep compiled code from running compiled"

#: Types that the tensors of a run may have; the inner tensors of others come through by themselves.
_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})

#: PyTorch's own way to leave compiled code compiled while a mode is on.
_LEAVES_COMPILED: Final = hasattr(TorchDispatchMode, "ignore_compile_internals")

#: What an operation takes longer under a mode, as long as it could not be measured.
USUAL_NS: Final = 4000
_passing_ns: int | None = None

#: How operations are dealt with: views and the like pass by; in inference mode what is composed of others arrives whole
#: and is taken apart, as it is by itself elsewhere; all else is noted.
_STILL: Final = "still"
_COMPOSED: Final = "composed"
_NOTED: Final = "noted"
_kinds: Final[dict[Any, str]] = {}

#: Calls between two looks at what counting has cost so far.
_LOOK: Final = 64


class Mode(TorchDispatchMode):  # type: ignore[misc]
    """Notes in `record` each operation on tensors of these types; passes everything by when it is None."""

    supports_higher_order_operators = True

    def __init__(self, record: OperationLog | None, *, types: frozenset[type] = _PLAIN) -> None:
        super().__init__()
        self.record = record
        self._types = types
        self.calls = 0
        self.own_ns = 0
        self.began_ns = 0
        self.share = inf
        self.grace_ns = 0.0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """PyTorch's question: compiled code stays compiled."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch would wrap `__torch_dispatch__`: its first call would import the compiler, which takes seconds, and
        # what operations call would not run compiled. `_pass_over` is enough.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if types and not self._types.issuperset(types) and any(_dispatches(each) for each in types):
            return NotImplemented
        self.calls += 1
        if (record := self.record) is None or (kind := _kinds.get(func) or _kind(func)) is _STILL:
            return func(*args, **kwargs) if kwargs else func(*args)
        if kind is _COMPOSED:
            with self:
                return func.decompose(*args, **(kwargs or {}))
        out = func(*args, **kwargs) if kwargs else func(*args)
        start = perf_counter_ns()
        record.note(func, args, kwargs, out)
        self.own_ns += (now := perf_counter_ns()) - start
        if not self.calls % _LOOK:
            self._look(now)
        return out

    def _look(self, now: int) -> None:
        own = self.own_ns + self.calls * passing_ns()
        # Its own cost is in part an estimate, which may come to more than all the time that has passed.
        if self.share < inf and own > max(self.grace_ns, self.share * (now - self.began_ns - own)):
            self.record = None


def _dispatches(kind: type) -> bool:
    """Whether tensors of this type deal with operations themselves; those that do not, such as the parameters of lazy
    modules, are plain ones here."""
    return kind not in _PLAIN and kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]


def _kind(function: Any) -> str:
    try:
        kind = _found_kind(function)
    except Exception:  # noqa: BLE001 - some are asked from C++ that lets nothing through: raising would end the process
        kind = _NOTED
    return _kinds.setdefault(function, kind)


def _found_kind(function: Any) -> str:
    if not isinstance(function, torch._ops.OpOverload):
        return _NOTED
    # Those of `prim` and `profiler` are not all known to the dispatcher.
    if function.namespace in ("prim", "profiler") or operation_name(function) in STILL:
        return _STILL
    if torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd"):
        return _COMPOSED  # also `reshape` and its like, whose schema says that they are views: they may copy
    return _STILL if _is_view(function) else _NOTED


def _is_view(function: Any) -> bool:
    """Whether it moves no byte and launches nothing: views, also in place."""
    if torch.Tag.inplace_view in function.tags:
        return True
    returned = [each.alias_info for each in function._schema.returns]
    return any(each is not None and not each.is_write for each in returned)


class Counting:
    """`with Counting() as counting: function(...)`, then `counting.work()`.

    Counts what the calling thread dispatches to PyTorch, its backward passes included, on whatever threads the autograd
    engine runs them; not what other threads of the user's dispatch. Once counting has cost more than `share` of the
    rest and more than `grace_s` seconds, it stops for the rest of the run, and the work is absent with the reason.
    Compiled code stays compiled and is not counted. Memory is bounded, however many operations run.

    Custom tensors (DTensor and other subclasses) are counted by the plain tensors that they are made of.
    """

    def __init__(self, *, share: float = 0.05, grace_s: float = 0.002) -> None:
        self._share = share
        self._grace_s = grace_s
        self._mode: Mode | None = None
        self._record = OperationLog()
        self._undispatched = Undispatched()
        self._work: Work | None = None

    @property
    def counting_s(self) -> float:
        """What counting has cost within the run, in seconds: its own code, measured, and being called, estimated."""
        return 0.0 if self._mode is None else (self._mode.own_ns + self._mode.calls * passing_ns()) / NS_PER_S

    def __enter__(self) -> Self:
        passing_ns()  # measured before the run, not in it
        # There, what was compiled before is compiled once more, and so noticed: too dear but in a run for counting.
        if not _LEAVES_COMPILED and compilations() and self._share < inf:
            self._work = unknown_work(TOO_OLD)
            return self
        mode = Mode(self._record)
        mode.share, mode.grace_ns = self._share, self._grace_s * NS_PER_S
        self._undispatched.__enter__()
        mode.began_ns = perf_counter_ns()
        mode.__enter__()
        self._mode = mode
        return self

    def __exit__(self, *exc: object) -> None:
        if self._mode is not None:
            self._mode.__exit__(*exc)
            self._undispatched.__exit__(*exc)

    def into(self, record: OperationLog) -> str | None:
        """Note in this record from now on. Why the one before has not all of it; None if it has."""
        if self._mode is not None:
            self._mode.record = record
        return self._undispatched.taken()

    def work(self) -> Work:
        """What was counted. FLOPs and bytes are absent, with the reason, where not all of it was."""
        if self._work is None:
            mode = self._mode
            why = self._undispatched.reason or (TOO_DEAR if mode is not None and mode.record is None else None)
            if why is not None:
                self._work = replace(unknown_work(why, method="counted"), counting_s=self.counting_s)
            else:
                totals, touched = self._record.totals()
                self._work = totals.work("counted", working_set=touched, counting_s=self.counting_s)
        return self._work


def passing_ns() -> int:
    """What one operation takes longer when it passes a mode that does nothing.

    The mean of an addition, a view and a normalisation, which differ by a factor of two; within a large model, whose
    code leaves the caches, up to twice as much was seen. Measured once, ~5 ms.
    """
    global _passing_ns  # noqa: PLW0603 - one number for the process
    if _passing_ns is None:
        if _watched():
            return USUAL_NS
        _passing_ns = _measured()
    return _passing_ns


def _watched() -> bool:
    """Whether someone would see, or change, what is measured here: modes, a trace, a profiler."""
    stacks = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
    return bool(stacks or torch.jit.is_tracing() or torch.autograd._profiler_enabled())


def _measured() -> int:
    number = torch.zeros(1, device="cpu")

    def best() -> int:
        times = []
        for _ in range(5):
            start = perf_counter_ns()
            for _ in range(_LOOK):
                torch.add(number, number)
                number.view(1)
                torch.layer_norm(number, (1,))
            times.append(perf_counter_ns() - start)
        return sorted(times)[2] // (3 * _LOOK)

    bare = best()
    with Mode(None):
        passing = best()
    return max(0, passing - bare)


def _pass_over(function: Any, *, callees: bool) -> None:
    """Keep the compiler from compiling this function, where it runs among compiled code; private to PyTorch."""
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    try:
        action = frames._FrameAction
        strategy = frames._FrameExecStrategy(action.SKIP, action.SKIP if callees else action.DEFAULT)
        frames.set_code_exec_strategy(function.__code__, strategy)
    except (AttributeError, TypeError):
        getattr(frames, "skip_code", lambda _: None)(function.__code__)


_pass_over(Mode.__torch_dispatch__, callees=False)
_pass_over(Mode._look, callees=True)
_pass_over(_kind, callees=True)
_pass_over(OperationLog.note, callees=True)
