"""Calibration with NumPy's arrays on the host, or CuPy's on a GPU: they share their functions' names."""

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
        """Build within the machine, which knows which of several devices is meant."""
        return self._machine.run(build)[0]

    def caches(self) -> list[tuple[str, int]]:
        """A GPU's L2, or those of one core: NumPy moves data in one thread."""
        if self._host:
            one = processor(cpus=sorted(os.sched_getaffinity(0))[:1])
            return [(f"L{each.level}", each.total) for each in one.caches if each.level > 1]
        return [("L2", self._machine.cache_bytes)] if self._machine.cache_bytes else []

    def precisions(self) -> Mapping[Precision, str]:
        """All number formats, and why one cannot be measured."""
        name = self._library.__name__
        found = dict.fromkeys(Precision, f"{name} has no such products")
        found |= dict.fromkeys(_DTYPES, "")
        if not self._host:
            found[Precision.TF32] = "CuPy chooses tf32 by the variable CUPY_TF32 alone"
        return found

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Nothing that a user sets changes these functions; CuPy's pool gives back what is free afterwards."""
        try:
            yield
        finally:
            if not self._host:
                self._library.get_default_memory_pool().free_all_blocks()

    def arithmetic(self, precision: Precision) -> AbstractContextManager[None]:  # noqa: ARG002 - the protocol's
        """The arrays' type decides."""
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
        """A product into an array that is there."""
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
        """An array that is made and written."""
        library = self._library
        return lambda: library.full(max(1, size // 4), 1.0, dtype="float32")
