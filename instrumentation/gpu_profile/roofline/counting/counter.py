"""Counts the operations that PyTorch dispatches in a run of the user's callable, and measures the cost of counting."""

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

#: Types of tensors to count. Operations on other types arrive again with their inner tensors.
_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})

#: Whether PyTorch can keep compiled code compiled while a mode is active.
_LEAVES_COMPILED: Final = hasattr(TorchDispatchMode, "ignore_compile_internals")

#: The additional ns of an operation under a mode, until they can be measured.
USUAL_NS: Final = 4000
_passing_ns: int | None = None

#: Kinds of operations. `_STILL`: views and the like, not counted. `_COMPOSED`: composed of others; in inference mode
#: they arrive whole and have to be decomposed, in other modes PyTorch does that. `_NOTED`: all others, counted.
_STILL: Final = "still"
_COMPOSED: Final = "composed"
_NOTED: Final = "noted"
_kinds: Final[dict[Any, str]] = {}

#: Calls between two checks of the cost of counting.
_LOOK: Final = 64


class Mode(TorchDispatchMode):  # type: ignore[misc]
    """Records each operation on tensors of these types in `record`. Does nothing if `record` is None."""

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
        """PyTorch asks whether compiled code stays compiled: yes."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # With True, PyTorch would wrap `__torch_dispatch__`. Its first call would import the compiler, which takes
        # seconds, and code that operations call would not run compiled. `_pass_over` suffices.
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
        # The cost is in part an estimate, which may exceed the time that has passed.
        if self.share < inf and own > max(self.grace_ns, self.share * (now - self.began_ns - own)):
            self.record = None


def _dispatches(kind: type) -> bool:
    """Whether tensors of this type handle operations themselves. Other subclasses, such as the parameters of lazy
    modules, count as plain tensors."""
    return kind not in _PLAIN and kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]


def _kind(function: Any) -> str:
    try:
        kind = _classify(function)
    except Exception:  # noqa: BLE001 - C++ code that calls this cannot handle exceptions: the process would end
        kind = _NOTED
    return _kinds.setdefault(function, kind)


def _classify(function: Any) -> str:
    if not isinstance(function, torch._ops.OpOverload):
        return _NOTED
    # The dispatcher does not have all operations of `prim` and `profiler`.
    if function.namespace in ("prim", "profiler") or operation_name(function) in STILL:
        return _STILL
    if torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd"):
        return _COMPOSED  # also `reshape` and the like: their schema declares views, but they may copy
    return _STILL if _is_view(function) else _NOTED


def _is_view(function: Any) -> bool:
    """Whether the function is a view, also in place: it moves no byte and launches nothing."""
    if torch.Tag.inplace_view in function.tags:
        return True
    returned = [each.alias_info for each in function._schema.returns]
    return any(each is not None and not each.is_write for each in returned)


class Counting:
    """`with Counting() as counting: function(...)`, then `counting.work()`.

    Counts the operations that the calling thread dispatches to PyTorch, with its backward passes, which run on threads
    of the autograd engine. Other threads of the user's are not counted. Counting stops when it has taken more than
    `grace_s` seconds and more than `share` of the time of the run without it. The work is then unknown, with the
    reason. Compiled code stays compiled and is not counted. Memory is bounded for any number of operations.

    Custom tensors (DTensor and other subclasses) count as the plain tensors that they consist of.
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
        """Seconds that counting took within the run: its own code, measured, and the calls to it, estimated."""
        return 0.0 if self._mode is None else (self._mode.own_ns + self._mode.calls * passing_ns()) / NS_PER_S

    def __enter__(self) -> Self:
        passing_ns()  # measured before the run, not in it
        # Older PyTorch compiles compiled code again under a mode, and so counting notices it. That is too expensive,
        # except in a run that only counts.
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
        """Record into `record` from now on. Returns why the previous record is incomplete, or None."""
        if self._mode is not None:
            self._mode.record = record
        return self._undispatched.taken()

    def work(self) -> Work:
        """The counted work. FLOPs and bytes are unknown, with the reason, if operations were missed."""
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
    """The additional ns of one operation under a mode that does nothing.

    The mean of an addition, a view and a normalisation, which differ by a factor of two. In a large model, whose code
    exceeds the caches, up to twice as much was observed. Measured once, in about 5 ms.
    """
    global _passing_ns  # noqa: PLW0603 - one number for the process
    if _passing_ns is None:
        if _observed():
            return USUAL_NS
        _passing_ns = _measured()
    return _passing_ns


def _observed() -> bool:
    """Whether a mode, a trace or a profiler is active, which would observe or disturb the measurement."""
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
    """Keep the compiler from compiling this function when it runs within compiled code. Uses private PyTorch API."""
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
