"""The operation profiler: ceilings against STREAM, verdicts against labels, counts against closed forms."""

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from benchmarks.operation_grid import Bench, Operation, grid
from benchmarks.rows import Row, best
from gpu_profile import configure
from gpu_profile.roofline import GPUProfiler

#: Calls of a tiny operation by which the lightweight mode is timed.
_CALLS: Final = 5_000
#: Calibrations, each between two runs of STREAM.
_TURNS: Final = 3
#: Seconds that repeats of one operation of the grid may take.
_PATIENCE_S: Final = 1.0
#: A CPU without matrix instructions takes seconds for one of more FLOPs in BF16.
_MANY: Final = 5e9


def rows() -> Iterator[Row]:
    """The rows of the roofline, on this CPU and on a GPU if there is one; they need PyTorch."""
    yield from _rows(whole=True)


def sample() -> Iterator[Row]:
    """The same rows from a third of the operations, without those of more than `_MANY` FLOPs."""
    yield from _rows(whole=False)


def _rows(*, whole: bool) -> Iterator[Row]:
    try:
        import torch
    except ImportError:
        yield Row("roofline", "needs PyTorch: make frameworks", ok=False)
        return
    configure(backend="none")
    for device, place in (("cpu", "this CPU"), ("cuda:0", "this GPU")):
        if device == "cpu" or torch.cuda.is_available():
            yield from _device(torch, device, place, whole=whole)


def _device(torch: Any, device: str, place: str, *, whole: bool) -> Iterator[Row]:
    bench = Bench(torch, device)
    # Others share the memory of a virtual machine: by turns, both meet their pauses.
    bandwidth, profiler, took = bench.bandwidth(), None, 0.0
    for _ in range(_TURNS):
        started = time.perf_counter()
        again = GPUProfiler(device, quiet=True, recalibrate=True)
        took = time.perf_counter() - started
        if profiler is not None:
            again = GPUProfiler(device, quiet=True, ceilings=profiler.ceilings.best(again.ceilings))
        profiler = again
        bandwidth = max(bandwidth, bench.bandwidth())
    assert profiler is not None
    yield from _ceilings(profiler, bandwidth, took, place)
    yield _warm_start(device, place)
    yield from _grid(torch, profiler, bench, bandwidth, place, whole=whole)
    yield from _lightweight(torch, profiler, place)


def _ceilings(profiler: GPUProfiler, bandwidth: float, took: float, place: str) -> Iterator[Row]:
    memory = profiler.ceilings.memory
    ratio = memory.value / bandwidth if memory is not None else 0.0
    by = "STREAM in C, a thread per core" if profiler.machine.kind == "cpu" else "copy of 1 GiB"
    yield Row(
        f"calibrated memory bandwidth of {place}",
        "none" if memory is None else f"{memory.value / 1e9:.1f} GB/s",
        f"{by}, by turns with it: {bandwidth / 1e9:.1f} GB/s",
        f"{ratio:.2f}x",
        "within 10 %",
        abs(ratio - 1) <= 0.1,
    )
    rates = ", ".join(f"{p} {c.value / 1e9:.0f}" for p, c in profiler.ceilings.compute.items())
    yield Row(f"calibration of {place} from nothing", f"{took:.1f} s; GFLOP/s: {rates}")


def _warm_start(device: str, place: str) -> Row:
    """What making a profiler takes where ceilings are kept, whether or not the machine was busy when they were made."""
    took_s = best(lambda: GPUProfiler(device, quiet=True))
    return Row(f"warm start on {place}", f"{took_s * 1e3:.1f} ms", "-", "-", "<=500 ms", took_s <= 0.5)


def _grid(
    torch: Any, profiler: GPUProfiler, bench: Bench, bandwidth: float, place: str, *, whole: bool
) -> Iterator[Row]:
    ridges = {name: bench.best_product(name) / bandwidth for name in ("float32", "bfloat16")}
    right: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {"careful": [], "single": []}
    flops_off, bytes_off, labels = [], 0.0, Counter[str]()
    operations = list(grid(torch, profiler.machine.device))
    if not whole:
        operations = [each for each in operations if each.flops <= _MANY][::3]
    for operation in operations:
        expected = bench.label(operation, ridges[operation.dtype])
        labels[expected] += 1
        args = operation.make(1)
        careful = _careful(profiler, operation, args)
        bench.evict()
        single = profiler.profile_operation(operation.function, *args)
        for how, found in (("careful", careful), ("single", single)):
            if found["regime"] == expected:
                right[how] += 1
            else:
                wrong[how].append(f"{operation.name} {operation.dtype}: {found['regime']}, not {expected}")
        right["peer"] += _peer(profiler, operation, args, single) == expected
        if single["flops"] != operation.flops:
            flops_off.append(f"{operation.name} {operation.dtype}: {single['flops']} not {operation.flops}")
        bytes_off = max(bytes_off, abs((single["bytes"] or 0) / operation.bytes - 1))
        del args
        gc.collect()
    n = len(operations)
    seen = ", ".join(f"{count} {regime}" for regime, count in sorted(labels.items()))
    for how, text, reach in (
        ("careful", "verdicts with repeats, cold caches and the doubling test", 0.95),
        ("single", "verdicts from a single run", None),
    ):
        share = right[how] / n
        yield Row(
            f"{text}, {n} operations on {place}",
            f"{share * 100:.1f} % right of {seen}" + (f"; wrong: {'; '.join(wrong[how])}" if wrong[how] else ""),
            f"GPURegimeProfiler's rules on the single runs {right['peer'] / n * 100:.1f} %",
            f"{right[how] / max(1, right['peer']):.2f}x",
            "-" if reach is None else f">={reach * 100:.0f} % right",
            reach is None or share >= reach,
            1 - share,
        )
    yield Row(
        f"FLOPs of the same {n} operations against closed forms, {place}",
        f"{n - len(flops_off)} equal" + (f"; not: {'; '.join(flops_off)}" if flops_off else ""),
        reach="all equal",
        ok=not flops_off,
    )
    yield Row(
        f"bytes of the same {n} operations against closed forms, {place}",
        f"at most {bytes_off * 100:.2f} % off",
        reach="<=1 %",
        ok=bytes_off <= 0.01,
    )


def _careful(profiler: GPUProfiler, operation: Operation, args: tuple[Any, ...]) -> dict[str, Any]:
    started = time.perf_counter()
    operation.function(*args)
    once = time.perf_counter() - started
    repeats = max(3, min(15, int(_PATIENCE_S / max(once, 1e-6))))
    found: dict[str, Any] = profiler.profile_operation(
        operation.function, *args, repeats=repeats, warmup=1, flush=True, growth=True
    )
    return found


def _peer(profiler: GPUProfiler, operation: Operation, args: tuple[Any, ...], run: dict[str, Any]) -> str:
    """GPURegimeProfiler 1.1.0's count and rules, with its default thresholds, on our timing and ceilings."""
    tensors = [arg for arg in args if hasattr(arg, "numel")]
    name = operation.function.__name__
    flops = 2 * tensors[0].numel() * tensors[1].shape[-1] if "matmul" in name else tensors[0].numel()
    moved = sum(t.numel() * t.element_size() for t in tensors) + tensors[0].numel() * tensors[0].element_size()
    seconds = run["runtime_ms"] / 1e3
    fp32 = next(c.value for p, c in profiler.ceilings.compute.items() if str(p) == "fp32")
    if flops / seconds / fp32 > 0.15:
        return "COMPUTE_BOUND"
    memory = profiler.ceilings.memory
    return "MEMORY_BOUND" if memory and moved / seconds / memory.value > 0.10 else "OVERHEAD_BOUND"


def _lightweight(torch: Any, profiler: GPUProfiler, place: str) -> Iterator[Row]:
    device = profiler.machine.device
    a, b = torch.ones(64, device=device), torch.ones(64, device=device)
    alone = GPUProfiler(device, quiet=True, ceilings=profiler.ceilings, regions=False)

    def bare() -> None:
        torch.add(a, b)
        if a.is_cuda:
            torch.cuda.synchronize(a.device)

    call = _each(bare)
    full = _each(lambda: profiler.profile_with_result(torch.add, a, b, lightweight=True)) - call
    plain = _each(lambda: alone.profile_with_result(torch.add, a, b, lightweight=True)) - call
    whole = _each(lambda: alone.profile_with_result(torch.add, a, b), calls=200) - call
    yield Row(
        f"lightweight=True per call of torch.add on {place}, over bare",
        f"{full * 1e6:.1f} µs with region metrics, {plain * 1e6:.1f} without",
        f"bare call, waited for, {call * 1e6:.1f} µs; whole profile +{whole * 1e6:.0f} µs",
        f"{whole / full:.0f}x less than a whole profile",
        "<=10 µs",
        full <= 10e-6,
        full / whole,
    )


def _each(action: Callable[[], object], calls: int = _CALLS, bursts: int = 7) -> float:
    """Seconds of one call, of the fastest burst."""
    return min(best(lambda: [action() for _ in range(calls)], 1) / calls for _ in range(bursts))
