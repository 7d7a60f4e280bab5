"""Logs dispatched operations: in the run only shapes, once per distinct operation. Formulas are applied afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from gpu_profile.roofline.counting.footprint import Footprint
from gpu_profile.roofline.counting.operands import Operand, OperatorCall
from gpu_profile.roofline.counting.totals import Tf32, Totals

#: Distinct operations in the log before they are added up, to bound the memory of loops with ever different ones.
DISTINCT: Final = 8192

_Tensor: Final = torch.Tensor
#: Marks a tensor's row among an operation's arguments.
_TENSOR: Final = object()
_STRIDED: Final = torch.strided
_OPERATOR: Final = torch._ops.OpOverload


class OperationLog:
    """Counts of dispatched operations, until `totals` adds them up.

    Only `note` runs within the user's run: it makes a key of the operation and its tensors' shapes, strides and types,
    and increments the count of the key. `fake`: tensors have no data, and their storages replace addresses. `exact`:
    as of `Totals`.
    """

    def __init__(self, *, fake: bool = False, exact: bool = False) -> None:
        self._totals = Totals(tf32(), exact=exact)
        self._counts: dict[Any, list[Any]] = {}
        self._opaque: dict[str, int] = {}
        self._footprint = Footprint()
        self._fake = fake
        self._storages: dict[int, int] = {}
        self._kept: list[Any] = []
        self._next = 0

    def note(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any) -> None:
        """Count one operation. Never raises."""
        addresses: dict[int, int] = {}
        try:
            row = self._row
            key: Any = (
                function,
                row(args, addresses),
                (*kwargs, row(kwargs.values(), addresses)) if kwargs else None,
                row(out if type(out) in (tuple, list) else (out,), addresses),
            )
            entry = self._counts.get(key)
        except Exception:  # noqa: BLE001 - for example a nested tensor without address: unknown work
            name = operation_name(function)
            self._opaque[name] = self._opaque.get(name, 0) + 1
            return
        if entry is None:
            if len(self._counts) >= DISTINCT:
                self._add_up()
            entry = self._counts[key] = [0, _extents(key, len(addresses))]
        entry[0] += 1
        self._footprint.touch(addresses, entry[1])

    def _row(self, values: Iterable[Any], addresses: dict[int, int]) -> tuple[Any, ...]:
        row: list[Any] = []
        for each in values:
            if isinstance(each, _Tensor):
                if each.layout is not _STRIDED:
                    row.append(self._sparse(each, addresses))
                    continue
                address = each.data_ptr() if not self._fake else self._address(each)
                number = addresses.setdefault(address or -id(each), len(addresses))
                row.append((_TENSOR, each.shape, each.stride(), each.dtype, each.is_cuda, number))
            elif isinstance(each, (list, tuple)):
                row.append(self._row(each, addresses))
            else:
                row.append(each)
        return tuple(row)

    def _sparse(self, tensor: Any, addresses: dict[int, int]) -> tuple[Any, ...]:
        """The row of a sparse tensor. Raises for other layouts. The distinct memory is unknown from now on, because
        the indices are in memory of their own.
        """
        if tensor.layout is torch.sparse_coo:
            parts = [tensor._values(), tensor._indices()]
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = [tensor.values(), tensor.crow_indices(), tensor.col_indices()]
        else:
            parts = [tensor.values(), tensor.ccol_indices(), tensor.row_indices()]
        self._footprint.lose()
        values = parts[0]
        number = addresses.setdefault(values.data_ptr() or -id(tensor), len(addresses))
        stored = sum(each.numel() * each.element_size() for each in parts)
        return _TENSOR, tensor.shape, (), tensor.dtype, tensor.is_cuda, number, values.numel(), stored

    def _address(self, tensor: Any) -> int:
        """A made-up address for a tensor without data, unique by its storage, which is kept so that its id stays so."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = self._next + 1
            self._next += storage.nbytes() + 1
            self._kept.append(storage)
        return int(self._storages[storage._cdata] + tensor.storage_offset() * tensor.element_size())

    def _add_up(self) -> None:
        for key, (count, _) in self._counts.items():
            self._totals.add(_call(key), count)
        self._counts.clear()
        for name, count in self._opaque.items():
            self._totals.add_opaque(name, count)
        self._opaque.clear()

    def totals(self) -> tuple[Totals, int | None]:
        """The totals of all operations, and the bytes of distinct memory that they touched, if known."""
        self._add_up()
        return self._totals, self._footprint.size()


def operation_name(function: Any) -> str:
    """The name of an operation without its overload, such as `aten.add`."""
    if isinstance(function, _OPERATOR):
        return str(function.overloadpacket._qualified_op_name).replace("::", ".")
    return f"{getattr(function, 'namespace', 'python')}.{getattr(function, '__name__', function)}"


def _extents(key: Any, count: int) -> list[tuple[int, int]]:
    """`(span, distinct bytes)` of each distinct memory of an operation."""
    extents = [(0, 0)] * count
    for part in key[1:]:
        for each in _tensors(part):
            span, touched = extents[each.memory]
            extents[each.memory] = max(span, each.span), max(touched, each.touched)
    return extents


def _tensors(value: Any) -> Iterable[Operand]:
    if isinstance(value, tuple):
        if value and value[0] is _TENSOR:
            yield _operand(value)
        else:
            for each in value:
                yield from _tensors(each)


def _operand(row: Any) -> Operand:
    _, shape, strides, dtype, is_cuda, number, *sparse = row
    name = str(dtype).removeprefix("torch.")
    return Operand(tuple(shape), tuple(strides), name, dtype.itemsize, is_cuda, number, *sparse)


def _restored(value: Any) -> Any:
    if isinstance(value, tuple):
        return _operand(value) if value and value[0] is _TENSOR else tuple(_restored(each) for each in value)
    return value


def _call(key: Any) -> OperatorCall:
    function, args, kwargs, out = key
    given = tuple(_restored(each) for each in args)
    named = dict(zip(kwargs[:-1], (_restored(each) for each in kwargs[-1]), strict=True)) if kwargs else {}
    outputs = tuple(_tensors(out))
    if not isinstance(function, _OPERATOR):
        values = {**{str(i): each for i, each in enumerate(given)}, **named}
        return OperatorCall(operation_name(function), "", values, outputs)
    arguments = function._schema.arguments
    values = {each.name: each.default_value for each in arguments}
    values.update(zip(values, given, strict=False))
    values.update(named)
    returned = function._schema.returns
    if len(returned) == len(out):
        made = [each for each, of in zip(out, returned, strict=True) if of.alias_info is None]
        outputs = tuple(_tensors(tuple(made)))
    return OperatorCall(
        operation_name(function),
        function._overloadname,
        values,
        outputs,
        frozenset(each.name for each in arguments if each.alias_info is not None and each.alias_info.is_write),
        frozenset(each.name for each in arguments if each.is_out),
    )


def tf32() -> Tf32:
    """PyTorch's present settings of TF32, from its newer interface if that exists: programs must not mix the two."""
    newer = getattr(torch._C, "_get_fp32_precision_getter", None)
    try:
        if newer is not None:
            return Tf32(newer("cuda", "matmul") == "tf32", newer("cuda", "conv") == "tf32")
        return Tf32(torch._C._get_cublas_allow_tf32(), torch._C._get_cudnn_allow_tf32())
    except Exception:  # noqa: BLE001 - private functions of PyTorch may raise anything
        return Tf32()
