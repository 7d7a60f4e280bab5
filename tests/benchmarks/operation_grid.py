"""Operations with labels: closed forms of their FLOPs and bytes, and what bounds each, worked out without the library.

A label is OVERHEAD_BOUND if twice the batch takes less than 1.5 times as long; else it is the side of the ridge that
the closed-form intensity is on. The ridge is of STREAM in C, a thread per core, and of the best matrix product.
"""

import functools
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

_STREAM: Final = Path(__file__).parent / "stream.c"
#: Bytes that are overwritten to empty the caches between runs.
_EVICT: Final = 192 << 20


@dataclass(frozen=True)
class Operation:
    """`make(batches)` gives the arguments for so many times the work, on the CPU; `flops` and `bytes` are of one."""

    name: str
    dtype: str
    function: Callable[..., Any]
    make: Callable[[int], tuple[Any, ...]]
    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes


def grid(torch: Any, device: str) -> Iterator[Operation]:
    """Tiny and large elementwise operations, softmax, layer norm, matrix products, convolution, attention."""
    for name in ("float32", "bfloat16"):
        ones = functools.partial(torch.ones, dtype=getattr(torch, name), device=device)
        width = getattr(torch, name).itemsize
        yield from _elementwise(torch, name, width, ones)
        yield from _rows(torch, name, width, ones, statistics_width=4 if device != "cpu" else width)
        yield from _products(torch, name, width, ones)


def _elementwise(torch: Any, name: str, width: int, ones: Callable[..., Any]) -> Iterator[Operation]:
    sizes = (16, 256, 1_024, 16 << 20, 32 << 20)
    for n in sizes:
        for label, function, inputs in (
            ("add", torch.add, 2),
            ("mul", torch.mul, 2),
            ("relu", torch.relu, 1),
            ("neg", torch.neg, 1),
        ):

            def make(batches: int, n: int = n, inputs: int = inputs) -> tuple[Any, ...]:
                return tuple(ones(batches * n) for _ in range(inputs))

            yield Operation(f"{label} of {n:,}", name, function, make, n, (inputs + 1) * n * width)


def _rows(torch: Any, name: str, width: int, ones: Callable[..., Any], *, statistics_width: int) -> Iterator[Operation]:
    functional = torch.nn.functional
    for rows, columns in ((4, 16), (16_384, 1_024)):
        n = rows * columns

        def make(batches: int, rows: int = rows, columns: int = columns) -> tuple[Any, ...]:
            return (ones(batches * rows, columns), -1)

        # The largest, a difference, an exponential, a sum and a division for each element.
        yield Operation(f"softmax of {rows:,}x{columns:,}", name, functional.softmax, make, 5 * n, 2 * n * width)

        def normed(batches: int, rows: int = rows, columns: int = columns) -> tuple[Any, ...]:
            return (ones(batches * rows, columns), (columns,))

        # A sum, a difference, its square, the squares' sum and a product for each element.
        # Each row's mean and deviation are results, too; scale and shift are not given.
        moved = 2 * n * width + 2 * rows * statistics_width
        yield Operation(f"layer norm of {rows:,}x{columns:,}", name, functional.layer_norm, normed, 5 * n, moved)


def _products(torch: Any, name: str, width: int, ones: Callable[..., Any]) -> Iterator[Operation]:
    functional = torch.nn.functional
    for n in (64, 128, 256, 512, 1_024, 2_048, 4_096):

        def square(batches: int, n: int = n) -> tuple[Any, ...]:
            return ones(batches * n, n), ones(n, n)

        yield Operation(f"matmul of {n:,}", name, torch.matmul, square, 2 * n**3, 3 * n * n * width)
    images, channels, side = 8, 64, 56

    def images_of(batches: int) -> tuple[Any, ...]:
        return ones(batches * images, channels, side, side), ones(channels, channels, 3, 3), None, 1, 1

    flops = 2 * images * channels * side * side * channels * 9
    moved = (2 * images * channels * side * side + channels * channels * 9) * width
    yield Operation("conv 64>64 3x3 of 8 56x56", name, functional.conv2d, images_of, flops, moved)
    heads, length, depth = 8, 1_024, 64

    def attended(batches: int) -> tuple[Any, ...]:
        return tuple(ones(batches, heads, length, depth) for _ in range(3))

    flops, moved = 4 * heads * length * length * depth, 4 * heads * length * depth * width
    attention = functional.scaled_dot_product_attention
    yield Operation("attention of 8x1,024x64", name, attention, attended, flops, moved)


# ---------------------------------------------------------------------- labels


class Bench:
    """Times and empties caches by itself, without the library: the host's clock, or CUDA's events."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._device = device
        self._block = torch.ones(_EVICT // 4, device=device) if device != "cpu" else np.ones(_EVICT // 8)

    def evict(self) -> None:
        """Overwrite the caches."""
        self._block[:] = 0.0

    def seconds(self, function: Callable[..., Any], *args: Any) -> float:
        """How long one call takes."""
        if self._device == "cpu":
            started = time.perf_counter()
            function(*args)
            return time.perf_counter() - started
        first, last = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._torch.cuda.synchronize()
        first.record()
        function(*args)
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def label(self, operation: Operation, ridge: float) -> str:
        """What bounds it."""
        once, twice = operation.make(1), operation.make(2)
        times: tuple[list[float], list[float]] = [], []
        began = time.perf_counter()
        while len(times[0]) < 5 or (time.perf_counter() - began < 0.5 and len(times[0]) < 25):
            for args, taken in ((once, times[0]), (twice, times[1])):
                self.evict()
                taken.append(self.seconds(operation.function, *args))
        if statistics.median(times[1]) < 1.5 * statistics.median(times[0]):
            return "OVERHEAD_BOUND"
        return "MEMORY_BOUND" if operation.intensity < ridge else "COMPUTE_BOUND"

    def bandwidth(self) -> float:
        """Bytes per second: STREAM in C on the CPU, a copy of 1 GiB by the vendor's own routine on a GPU."""
        if self._device == "cpu":
            return stream(len(os.sched_getaffinity(0)))
        a, b = (self._torch.ones(1 << 28, device=self._device) for _ in range(2))
        return max(2 * int(a.nbytes) / self.seconds(b.copy_, a) for _ in range(10))

    def best_product(self, name: str) -> float:
        """FLOPs per second of the best matrix product of some sizes."""
        fastest = 0.0
        for n in (256, 512, 1_024, 2_048) if self._device == "cpu" else (2_048, 4_096, 8_192):
            a = self._torch.ones(n, n, dtype=getattr(self._torch, name), device=self._device)
            fastest = max(fastest, *(2 * n**3 / self.seconds(self._torch.matmul, a, a) for _ in range(6)))
        return fastest


def stream(threads: int, *, mebibytes: int = 256) -> float:
    """STREAM's copy and triad in C, a thread per core: bytes per second of the faster, the best of some bursts."""
    with TemporaryDirectory() as directory:
        program = Path(directory) / "stream"
        flags = ["-O3", "-march=native", "-pthread"]
        subprocess.run(["cc", *flags, "-o", str(program), str(_STREAM)], check=True)
        told = subprocess.run(
            [str(program), str(threads), str((mebibytes << 20) // 8)], check=True, capture_output=True, text=True
        )
    return float(told.stdout)
