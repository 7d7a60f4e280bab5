"""Profiles operations over sizes, from too small to fill the device to too large for its caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.roofline.doubling import RUNS
from gpu_profile.roofline.workloads import Workload, prepare, torch_device
from gpu_profile.units import NS_PER_S, si

if TYPE_CHECKING:
    from gpu_profile.roofline.profiler import GPUProfiler

#: Elements of the input: 1e3 to 1e8 by half decades; for products, square matrices with sides of 64 to 4096.
_ELEMENTS: Final = tuple(round(10 ** (3 + step / 2)) for step in range(11))
_MATRICES: Final = tuple((64 << step) ** 2 for step in range(7))
#: Operation -> (exponent of its time in the size, number of tensors in memory, sizes).
_SWEPT: Final = {
    "cos": (1.0, 2, _ELEMENTS),
    "add": (1.0, 3, _ELEMENTS),
    "sum": (1.0, 1, _ELEMENTS),
    "matmul": (1.5, 3, _MATRICES),
}
#: About this many FLOPs of a product take as long as one element of the other operations.
_PRODUCTS: Final = 100
_WARMUP, _LEAST, _MOST = 2, 5, 25
#: The doubling test of one repeat takes as long as this many runs: one of the size and one of twice the size.
_DOUBLED: Final = 3
#: The largest share of the free memory that an operation may take.
_MOST_MEMORY: Final = 0.5
_BYTES: Final = 4

Prepare = Callable[..., Workload]


class Row(NamedTuple):
    """The profile of one operation on one size. If it was not measured, the dict has nothing but `reasons`."""

    operation: str
    size: int
    shape: str
    profile: Mapping[str, Any]

    @property
    def skipped(self) -> str:
        """Why it was not measured; empty if it was."""
        return "" if self.profile.get("runtime_ms") is not None else str(self.profile["reasons"]["runtime_ms"])


def sweep(
    profiler: GPUProfiler, *, budget_s: float = 20.0, prepare: Prepare = prepare, clock: Clock = SYSTEM_CLOCK
) -> list[Row]:
    """Profile cos, add, sum and matmul in float32, the shortest calls first, in about `budget_s` seconds.

    An operation that fails, or would take more than half of the remaining time or free memory, becomes a row with the
    reason. Each operation runs 8 to 28 times, and 16 to 52 times more for the doubling test if there is time for it.
    Raises UsageError if PyTorch does not run on the machine.
    """
    device = torch_device(profiler.machine)
    end_ns = clock.now_ns() + round(budget_s * NS_PER_S)
    planned = sorted((_effort(size, power), size, name) for name, (power, _, sizes) in _SWEPT.items() for size in sizes)
    costs: dict[str, _Cost] = {}
    failed: dict[str, str] = {}
    rows = []
    for done, (_, size, name) in enumerate(planned):
        power, tensors, _ = _SWEPT[name]
        cost = costs.get(name, _Cost(size, 0.0, 0.0)).at(size, power)
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
        except Exception as error:  # noqa: BLE001 - usually out of memory: the other rows can still be shown
            failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
            rows.append(_skipped(name, size, failed[name]))
            continue
        costs[name] = _Cost(size, profile["runtime_ms"] / 1e3, (made_ns - began_ns) / NS_PER_S)
        rows.append(Row(name, workload.size, workload.shape, profile))
    return rows


def _effort(size: int, power: float) -> float:
    """The expected time of a call relative to other operations, to order them."""
    return float(size**power) / (_PRODUCTS if power > 1 else 1)


class _Cost(NamedTuple):
    """Seconds that one call on `size` elements takes, and making its inputs; 0 before the first measurement."""

    size: int
    call_s: float
    making_s: float

    def at(self, size: int, power: float) -> _Cost:
        """The estimated cost for another size: `call_s` grows with `size**power`, `making_s` with `size`."""
        times = size / self.size
        return _Cost(size, self.call_s * times**power, self.making_s * times)


def _runs(cost: _Cost, share_s: float) -> dict[str, Any]:
    """The profiler's options: as many runs as fit into `share_s`, at least `_LEAST`; doubling only if it fits too."""
    runs = (1 + _DOUBLED) * _MOST
    if cost.call_s:
        runs = int((share_s - cost.making_s) / cost.call_s) - _WARMUP
    growth = runs >= _LEAST + _DOUBLED * RUNS
    repeats = min(runs // (1 + _DOUBLED), runs - _DOUBLED * RUNS) if growth else runs
    return {"warmup": _WARMUP, "repeats": min(_MOST, max(_LEAST, repeats)), "growth": growth, "passes": 2}


def _no_memory(profiler: GPUProfiler, needed: int) -> str:
    """Why the free memory does not suffice for `needed` bytes; empty if it does."""
    memory = profiler.machine.memory()
    if memory is None or needed <= _MOST_MEMORY * memory.free:
        return ""
    return f"would take {si(needed, 'B')} of the {si(memory.free, 'B')} that are free"


def _no_time(cost: _Cost, left_s: float, points: int) -> str:
    """Why the remaining time does not suffice; empty if it does. Half of it is the limit, all of it for the last."""
    needed_s = (_WARMUP + _LEAST) * cost.call_s + cost.making_s
    if left_s and needed_s <= left_s / min(2, points):
        return ""
    return f"would take {si(needed_s, 's')}, more than the time that is left allows" if left_s else "no time was left"


def _skipped(name: str, size: int, why: str) -> Row:
    return Row(name, size, "", {"reasons": {"runtime_ms": why}})
