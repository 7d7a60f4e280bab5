"""What device intervals and PyTorch's hooks cost the host, on a CUDA library that is compiled here and does no work."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rows import Row, best
from gpu_profile import configure, region
from gpu_profile.clock import SYSTEM_CLOCK
from gpu_profile.regions.frameworks.events import EventMark, EventStream
from gpu_profile.regions.frameworks.libcuda import Cuda
from gpu_profile.regions.session import process
from gpu_profile.regions.streams import resolving

_STUB: Final = Path(__file__).parents[1] / "data" / "libcuda_stub.c"
_TIMES: Final = 5_000
_CALLS: Final = 200


def rows() -> Iterator[Row]:
    """The rows of frameworks; those of PyTorch only where it is installed."""
    yield mark()
    yield resolved()
    try:
        import torch
    except ImportError:
        return
    yield hooks(torch)


def stub(directory: str) -> ctypes.CDLL:
    """The library, compiled, with a context in this thread."""
    path = os.path.join(directory, "libcuda.so.1")  # noqa: PTH118 - what cc and ctypes take
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", path, os.fspath(_STUB)], check=True)
    library = ctypes.CDLL(path)
    library.stub_enter(0)
    return library


def each(action: Callable[[], object], times: int, baseline: Callable[[], object]) -> tuple[float, float]:
    """Seconds of one of the `times` in each action, and of one in the baseline, by turns."""
    pairs = [(best(action, 1), best(baseline, 1)) for _ in range(15)]
    return min(first for first, _ in pairs) / times, min(second for _, second in pairs) / times


def mark() -> Row:
    """`record()` beside the two calls of CUDA that it is made of."""
    with TemporaryDirectory() as directory:
        library = stub(directory)
        stream = EventStream(Cuda(library), 0, lambda _: 0, SYSTEM_CLOCK)
        event, status = stream._new_event(), ctypes.c_int()
        free = stream._free
        free += [stream._new_event() for _ in range(4)]

        def marks() -> None:
            for _ in range(_TIMES):
                stream.record()  # and its event is used again

        def bare() -> None:
            for _ in range(_TIMES):
                library.cuStreamIsCapturing(0, ctypes.byref(status))
                library.cuEventRecord(event, 0)

        assert isinstance(stream.record(), EventMark)
        own, calls = each(marks, _TIMES, bare)
    extra = own - calls
    return Row(
        "a mark on a CUDA stream, on a stub of the library",
        f"{own * 1e6:.2f} µs",
        f"{calls * 1e6:.2f} µs, the bare calls",
        f"+{extra * 1e6:.2f} µs",
        "+5 µs",
        extra <= 5e-6,
        own / calls,
    )


def resolved() -> Row:
    """`moments()` in a block, as gpu-profile's own thread asks, beside the one call of CUDA that it is made of."""
    with TemporaryDirectory() as directory:
        library = stub(directory)
        stream = EventStream(Cuda(library), 0, lambda _: 0, SYSTEM_CLOCK)
        first, last, ms = stream._new_event(), stream._new_event(), ctypes.c_float()
        library.cuEventRecord(first, 0)
        library.cuEventRecord(last, 0)
        marks: list[Any] = []

        def ours() -> None:
            with resolving([stream]):
                stream.moments(marks)

        def bare() -> None:
            for _ in range(_TIMES):
                library.cuEventElapsedTime(ctypes.byref(ms), first, last)

        pairs = []
        for _ in range(15):
            marks = [stream.record() for _ in range(_TIMES)]
            pairs.append((best(ours, 1), best(bare, 1)))
            assert all(each_mark.event is None for each_mark in marks)
    own, calls = (min(pair[i] for pair in pairs) / _TIMES for i in (0, 1))
    return Row(
        "a mark's time, asked for in a block of many, on a stub of the library",
        f"{own * 1e6:.2f} µs",
        f"{calls * 1e6:.2f} µs, the bare call",
        f"+{(own - calls) * 1e6:.2f} µs",
        "+3 µs",
        own - calls <= 3e-6,
        own / calls,
    )


def hooks(torch: Any) -> Row:
    """A module's call with its region, beside one with empty hooks and a region around it."""
    from gpu_profile.integrations.torch import instrument

    class Same(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x

    configure(backend="none")
    ours, theirs, x = Same(), Same(), torch.ones(1)
    theirs.register_forward_pre_hook(lambda *_: None, with_kwargs=True)
    theirs.register_forward_hook(lambda *_: None, always_call=True)

    def instrumented() -> None:
        for _ in range(_CALLS):
            ours(x)

    def by_hand() -> None:
        for _ in range(_CALLS):
            with region("forward", span=False):
                theirs(x)

    with instrument(ours, backward=False, span=False):
        own, plain = each(instrumented, _CALLS, by_hand)
    process.stop()
    configure()
    return Row(
        "a PyTorch module's call with its region",
        f"{own * 1e6:.2f} µs",
        f"{plain * 1e6:.2f} µs, empty hooks and a region by hand",
        f"{own / plain:.2f}",
        "2",
        own <= 2 * plain,
        own / plain,
    )


if __name__ == "__main__":
    for row in rows():
        print(row)
