"""Operations over sizes, from too small to fill the device to too large for its caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.roofline.workloads import Workload, prepare, torch_device
from gpu_profile.units import NS_PER_S, si

if TYPE_CHECKING:
    from gpu_profile.roofline.profiler import GPUProfiler

#: Elements of the input: 1e3 to 1e8 by half decades; products of matrices with sides of 64 to 4096.
_ELEMENTS: Final = tuple(round(10 ** (3 + step / 2)) for step in range(11))
_MATRICES: Final = tuple((64 << step) ** 2 for step in range(7))
#: What is swept: how much longer a call takes with the size (as its power), tensors that are held, and the sizes.
_SWEPT: Final = {
    "cos": (1.0, 2, _ELEMENTS),
    "add": (1.0, 3, _ELEMENTS),
    "sum": (1.0, 1, _ELEMENTS),
    "matmul": (1.5, 3, _MATRICES),
}
#: About how many FLOPs of a product take as long as one element of the others.
_PRODUCTS: Final = 100
_WARMUP, _LEAST, _MOST = 2, 5, 25
#: The doubling test runs each of two sizes about ten times.
_DOUBLING_RUNS: Final = 30
#: Of the free memory no operation takes more.
_MOST_MEMORY: Final = 0.5
_BYTES: Final = 4

Prepare = Callable[..., Workload]


class Row(NamedTuple):
    """One operation on one size: the profiler's dict. If it was not measured, all that has is the reason."""

    operation: str
    size: int
    shape: str
    profile: Mapping[str, Any]

    @property
    def skipped(self) -> str:
        """Why there is no measurement; empty if there is one."""
        return "" if self.profile.get("runtime_ms") is not None else str(self.profile["reasons"]["runtime_ms"])


def sweep(
    profiler: GPUProfiler, *, budget_s: float = 20.0, prepare: Prepare = prepare, clock: Clock = SYSTEM_CLOCK
) -> list[Row]:
    """Profile cos, add, sum and matmul in float32, what takes least first, in about `budget_s` seconds.

    What would take more than half of the time or memory that is left is a row with the reason; so is what fails. The
    operations are the profiler's own to run: each runs some ten times, and twice as often for the doubling test.
    UsageError for a machine that is not PyTorch's.
    """
    device = torch_device(profiler.machine)
    end_ns = clock.now_ns() + round(budget_s * NS_PER_S)
    planned = sorted((_effort(size, power), size, name) for name, (power, _, sizes) in _SWEPT.items() for size in sizes)
    known: dict[str, _Cost] = {}
    failed: dict[str, str] = {}
    rows = []
    for done, (_, size, name) in enumerate(planned):
        power, tensors, _ = _SWEPT[name]
        cost = known.get(name, _Cost(size, 0.0, 0.0)).at(size, power)
        left_s, points = max(0, end_ns - clock.now_ns()) / NS_PER_S, len(planned) - done
        why = failed.get(name) or _no_memory(profiler, tensors * size * _BYTES) or _no_time(cost, left_s, points)
        if why:
            rows.append(_skipped(name, size, why))
            continue
        began_ns = clock.now_ns()
        try:
            workload = prepare(name, size, device=device)
            made_ns = clock.now_ns()
            options = {**workload.kwargs, **_runs(cost, left_s / points), "name": name}
            profile = profiler.profile_operation(workload.function, *workload.args, **options)
        except Exception as error:  # noqa: BLE001 - out of memory, mostly: the rest can still be shown
            failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
            rows.append(_skipped(name, size, failed[name]))
            continue
        known[name] = _Cost(size, profile["runtime_ms"] / 1e3, (made_ns - began_ns) / NS_PER_S)
        rows.append(Row(name, workload.size, workload.shape, profile))
    return rows


def _effort(size: int, power: float) -> float:
    """What a call takes, compared with others."""
    return float(size**power) / (_PRODUCTS if power > 1 else 1)


class _Cost(NamedTuple):
    """What one call takes on so many elements, and making its inputs; 0 if that is not known yet."""

    size: int
    call_s: float
    making_s: float

    def at(self, size: int, power: float) -> _Cost:
        """What it will be with another size."""
        times = size / self.size
        return _Cost(size, self.call_s * times**power, self.making_s * times)


def _runs(cost: _Cost, share_s: float) -> dict[str, Any]:
    """How often to run it within its share of the time, and at least a few times."""
    runs = _DOUBLING_RUNS + _WARMUP + _MOST
    if cost.call_s:
        runs = int((share_s - cost.making_s) / cost.call_s)
    growth = runs >= _DOUBLING_RUNS + _WARMUP + _LEAST
    repeats = runs - _WARMUP - (_DOUBLING_RUNS if growth else 0)
    return {"warmup": _WARMUP, "repeats": min(_MOST, max(_LEAST, repeats)), "growth": growth, "passes": 2}


def _no_memory(profiler: GPUProfiler, needed: int) -> str:
    """Why something is not even tried; empty if it is."""
    memory = profiler.machine.memory()
    if memory is None or needed <= _MOST_MEMORY * memory.free:
        return ""
    return f"would take {si(needed, 'B')} of the {si(memory.free, 'B')} that are free"


def _no_time(cost: _Cost, left_s: float, points: int) -> str:
    """As above. But for the last, nothing takes more than half of the time that is left."""
    needed_s = (_WARMUP + _LEAST) * cost.call_s + cost.making_s
    if left_s and needed_s <= left_s / min(2, points):
        return ""
    return f"would take {si(needed_s, 's')}, more than the time that is left allows" if left_s else "no time was left"


def _skipped(name: str, size: int, why: str) -> Row:
    return Row(name, size, "", {"reasons": {"runtime_ms": why}})
