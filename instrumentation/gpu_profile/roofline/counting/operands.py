"""One dispatched operation in the form that formulas receive: arguments by name, tensors without data. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple


class Operand(NamedTuple):
    """A tensor without its data. `strides` are in elements. `dtype` is PyTorch's name, such as `float32`.

    `memory` numbers the distinct addresses in one operation: operands that begin at the same address share a number.
    A sparse tensor has no strides, but `nonzeros`, its stored elements, and `stored`, their bytes with the indices.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int
    is_cuda: bool = False
    memory: int = 0
    nonzeros: int | None = None
    stored: int = 0

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements; repetitions in broadcast dimensions count."""
        return prod(self.shape)

    @property
    def is_complex(self) -> bool:
        """Whether the elements are complex numbers."""
        return self.dtype.startswith("complex")

    @property
    def is_floating(self) -> bool:
        """Whether arithmetic on it is floating-point, complex numbers included."""
        return self.is_complex or "float" in self.dtype

    @property
    def span(self) -> int:
        """Bytes from the begin of the first element to the end of the last one."""
        if self.nonzeros is not None:
            return self.stored
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * abs(stride) for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.itemsize

    @property
    def touched(self) -> int:
        """Bytes of the distinct elements: broadcast dimensions and overlapping windows count once."""
        if self.nonzeros is not None:
            return self.stored
        if 0 in self.shape:
            return 0
        distinct = prod(size for size, stride in zip(self.shape, self.strides, strict=True) if stride)
        return min(distinct * self.itemsize, self.span)


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One operation. `name`: such as `aten.add`. `values`: its arguments by name, with defaults for omitted ones.

    `outputs`: the tensors that it created. `written`: names of the arguments that it changes. `out`: the subset of
    these that it does not read.
    """

    name: str
    overload: str
    values: Mapping[str, Any]
    outputs: tuple[Operand, ...] = ()
    written: frozenset[str] = frozenset()
    out: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The argument of this name, or `default` if the operation has none."""
        return self.values.get(name, default)

    def operand(self, *names: str) -> Operand:
        """The first of these arguments that is a tensor. Raises LookupError if there is none."""
        for name in names:
            if isinstance(value := self.values.get(name), Operand):
                return value
        raise LookupError(f"{self.name} has no tensor among {', '.join(names)}")

    def inputs(self) -> Iterator[tuple[str, Operand]]:
        """`(name of the argument, tensor)` of all tensors in the arguments, also in lists."""
        for name, value in self.values.items():
            for each in operands(value):
                yield name, each

    @property
    def is_sparse(self) -> bool:
        """Whether an argument or a result is a sparse tensor."""
        return any(each.nonzeros is not None for each in (*self.outputs, *(each for _, each in self.inputs())))

    @property
    def results(self) -> tuple[Operand, ...]:
        """The tensors that it created, else the ones that it changed."""
        changed = [each for name, each in self.inputs() if name in self.written]
        return self.outputs or tuple(changed)

    @property
    def result(self) -> Operand:
        """The first of the results. Raises LookupError if there is none."""
        if not (results := self.results):
            raise LookupError(f"{self.name} has no result")
        return results[0]


def operands(value: Any) -> Iterator[Operand]:
    """The tensors in an argument: itself, or all in a nested list."""
    if isinstance(value, Operand):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from operands(each)


def words(text: str) -> frozenset[str]:
    """The words of a text, for readable tables of names."""
    return frozenset(text.split())
