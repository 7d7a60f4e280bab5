"""Adds up dispatched operations to `Work`, applying formulas and traffic after the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from gpu_profile.roofline.counting.decompositions import perhaps_without_vectors
from gpu_profile.roofline.counting.operands import OperatorCall
from gpu_profile.roofline.counting.products import CONVOLUTIONS, PRODUCTS, factor
from gpu_profile.roofline.counting.registry import Count, Registered, asked, checked, formula, registered_operation
from gpu_profile.roofline.counting.sparse import SPARSE
from gpu_profile.roofline.counting.traffic import traffic
from gpu_profile.roofline.precision import Precision, precision_of
from gpu_profile.roofline.work import Method, Work
from gpu_profile.units import si

NOTHING_SEEN: Final = "no operation of PyTorch was seen: give flops= and bytes=, or register a formula for the callable"

_UNSURE: Final = "{} may compute vectors only because of the counting: register a formula for it"

#: How many names of operations a reason lists.
_NAMED: Final = 3


class Tf32(NamedTuple):
    """Whether float32 arithmetic on CUDA may use TF32, in matrix products, and in convolutions and recurrent layers."""

    products: bool = False
    convolutions: bool = False


class Totals:
    """Adds up operations. Not thread-safe.

    `exact`: without counting, the same operations would run. Otherwise decompositions that may compute vectors only
    because counting observes them have unknown FLOPs and bytes.
    """

    def __init__(self, tf32: Tf32, *, exact: bool = False) -> None:
        self._tf32 = tf32
        self._exact = exact
        self._flops = 0
        self._bytes = 0
        self._by_precision: Counter[Precision] = Counter()
        self._unknown: Counter[str] = Counter()
        #: Names in `_unknown` for which a formula of the user's failed.
        self._failing: set[str] = set()
        #: Names of decompositions that may compute vectors only because counting observes them.
        self._unsure: set[str] = set()
        self._opaque: Counter[str] = Counter()
        self._operations = 0
        self._largest = 0
        self._unknown_bytes = 0

    def add(self, call: OperatorCall, count: int) -> None:
        """Add an operation that ran `count` times."""
        self._operations += count
        given = registered_operation(call.name, call.overload) or Registered(None, None)
        unsure = not self._exact and perhaps_without_vectors(call)
        if unsure:
            self._unsure.add(call.name)

        def counted(own: Count | None, formula: Callable[[], int | None]) -> int | None:
            if own is not None:
                return asked(own, call.values, call.name)
            return None if unsure else _checked(formula)

        flops = counted(given.flops, lambda: _flops(call))
        if flops is None:
            self._unknown[call.name] += count
            if given.flops is not None:
                self._failing.add(call.name)
        elif flops:
            self._flops += flops * count
            if (precision := self._precision(call)) is not None:
                self._by_precision[precision] += flops * count
        moved = counted(given.bytes, lambda: traffic(call).moved)
        if moved is None:
            self._opaque[call.name] += count
        else:
            self._bytes += moved * count
            self._unknown_bytes += moved * count if flops is None else 0
            self._largest = max(self._largest, moved)

    def add_opaque(self, name: str, count: int) -> None:
        """Add an operation on tensors without plain memory. Its FLOPs and bytes are unknown."""
        self._operations += count
        self._unknown[name] += count
        self._opaque[name] += count

    def work(self, method: Method, *, working_set: int | None, counting_s: float = 0.0) -> Work:
        """The sum. FLOPs and bytes are None, with the reason, if they are unknown for some operation."""
        why: dict[str, str] = {}
        if not self._operations and method == "counted":
            why = dict.fromkeys(("flops", "bytes"), NOTHING_SEEN)
        if self._unknown:
            at_least = f"; at least {si(self._flops, 'FLOP')} without it" if self._flops else ""
            failed, rest = _split(self._unknown, self._failing)
            unsure, without = _split(rest, self._unsure)
            parts = [f"no formula for {_names(without)}"] if without else []
            parts += [f"the formula registered for {_names(failed)} failed"] if failed else []
            parts += [_UNSURE.format(_names(unsure))] if unsure else []
            why.setdefault("flops", f"{' and '.join(parts)}{at_least}")
        if self._opaque:
            unsure, without = _split(self._opaque, self._unsure)
            parts = [f"tensors without plain memory (nested, quantised, …) in {_names(without)}"] if without else []
            parts += [_UNSURE.format(_names(unsure))] if unsure else []
            why.setdefault("bytes", " and ".join(parts))
        return Work(
            flops=None if "flops" in why else self._flops,
            at_least=self._flops if "flops" in why and self._flops else None,
            bytes=None if "bytes" in why else self._bytes,
            by_precision=dict(self._by_precision),
            operations=self._operations,
            unknown=dict(self._unknown),
            unknown_bytes=self._unknown_bytes,
            working_set=None if "bytes" in why else working_set,
            largest=None if "bytes" in why else self._largest,
            method=method,
            counting_s=counting_s,
            reasons=why,
        )

    def _precision(self, call: OperatorCall) -> Precision | None:
        if call.name not in PRODUCTS or call.is_sparse:
            return precision_of(call.results[0].dtype) if call.results else None
        operand = factor(call)
        if operand is None:
            return None
        precision = precision_of(operand.dtype)
        allowed = self._tf32.convolutions if call.name in CONVOLUTIONS else self._tf32.products
        return Precision.TF32 if precision is Precision.FP32 and operand.is_cuda and allowed else precision


def _flops(call: OperatorCall) -> int | None:
    count = SPARSE.get(call.name) if call.is_sparse else formula(call.name)
    return None if count is None else count(call)


def _checked(count: Callable[[], int | None]) -> int | None:
    """The result of a formula. None if it has none or raises: it must not fail the user's call."""
    try:
        return checked(count())
    except Exception:  # noqa: BLE001 - unforeseen arguments
        return None


def _split(counted: Counter[str], names: set[str]) -> tuple[Counter[str], Counter[str]]:
    """The counts of these names, and those of all others."""
    within = Counter({name: n for name, n in counted.items() if name in names})
    return within, counted - within


def _names(counted: Counter[str]) -> str:
    names = [name for name, _ in counted.most_common(_NAMED)]
    return ", ".join(names) + (f" and {len(counted) - _NAMED} more" if len(counted) > _NAMED else "")
