"""Benchmarks with NumPy on the host, or CuPy on a GPU: both have functions of the same names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, TypeVar

from gpu_profile.roofline.ceilings.benchmarks import BLOCK, BenchmarkCall, Call
from gpu_profile.roofline.machines.machine import Machine
from gpu_profile.roofline.machines.processor import processor
from gpu_profile.roofline.precision import Precision

T = TypeVar("T")

_DTYPES: Final = {Precision.FP64: "float64", Precision.FP32: "float32", Precision.FP16: "float16"}


class ArrayBenchmarks:
    """Products by `matmul`, traffic by `copyto` and `add`. There is no fused triad: STREAM's sum moves as much."""

    def __init__(self, machine: Machine, library: Any) -> None:
        self._machine, self._library = machine, library
        self._host = machine.kind == "host"

    def _make(self, build: Callable[[], T]) -> T:
        """The result of `build`, run by the machine, so that it allocates on the machine's device."""
        return self._machine.run(build)[0]

    def caches(self) -> list[tuple[str, int]]:
        """The L2 of a GPU. On the host the caches of one core, from L2 on: NumPy moves data in one thread."""
        if self._host:
            one = processor(cpus=sorted(os.sched_getaffinity(0))[:1])
            return [(f"L{each.level}", each.total) for each in one.caches if each.level > 1]
        return [("L2", self._machine.cache_bytes)] if self._machine.cache_bytes else []

    def precisions(self) -> Mapping[Precision, str]:
        """All number formats, each with the reason why it cannot be measured, or ''."""
        name = self._library.__name__
        reasons = dict.fromkeys(Precision, f"{name} has no such products")
        reasons |= dict.fromkeys(_DTYPES, "")
        if not self._host:
            reasons[Precision.TF32] = "CuPy chooses tf32 by the variable CUPY_TF32 alone"
        return reasons

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Return the free blocks of CuPy's pool afterwards. No setting of the user's changes these functions."""
        try:
            yield
        finally:
            if not self._host:
                self._library.get_default_memory_pool().free_all_blocks()

    def arithmetic(self, precision: Precision) -> AbstractContextManager[None]:  # noqa: ARG002 - the protocol's
        """Nothing to set: the data type of the arrays determines the format."""
        return nullcontext()

    def traffic(self, size: int) -> list[BenchmarkCall]:
        """Copy and sum of float32 arrays."""
        n = max(1, size // 12)
        library = self._library
        a, b, c = self._make(lambda: [library.full(n, 1.0, dtype="float32") for _ in range(3)])
        return [
            BenchmarkCall(8 * n, lambda: library.copyto(c, a)),
            BenchmarkCall(12 * n, lambda: library.add(a, b, out=c)),
        ]

    def product(self, precision: Precision, n: int) -> Call:
        """A product into an existing array."""
        import numpy

        library, dtype = self._library, _DTYPES[precision]
        block = numpy.random.default_rng(0).uniform(-1, 1, (BLOCK, BLOCK)).astype(dtype)

        def build() -> Any:
            a = library.tile(library.asarray(block), (n // BLOCK, n // BLOCK))
            return a, a.copy(), library.empty_like(a)

        a, b, c = self._make(build)
        return lambda: library.matmul(a, b, out=c)

    def nothing(self) -> Call:
        """A change of sign in place."""
        library = self._library
        one = self._make(lambda: library.full(1, 1.0, dtype="float32"))
        return lambda: library.negative(one, out=one)

    def small(self) -> list[Call]:
        """A sum, an exponential and a product."""
        library = self._library
        few = self._make(lambda: library.full((16, 16), 1.0, dtype="float32"))
        return [lambda: library.add(few, few), lambda: library.exp(few), lambda: library.matmul(few, few)]

    def fresh(self, size: int) -> Call:
        """A call that creates and writes an array."""
        library = self._library
        return lambda: library.full(max(1, size // 4), 1.0, dtype="float32")
