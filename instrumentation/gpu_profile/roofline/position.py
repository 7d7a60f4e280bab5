"""Where an operation stands under the roofs of its machine. Pure.

The roofline model (Williams, Waterman, Patterson 2009): an operation of intensity I FLOP/B reaches at most
min(compute ceiling, I x memory ceiling); the ridge is the intensity at which the two meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gpu_profile.regimes.operation import Operation
from gpu_profile.roofline.ceilings import Ceiling, Ceilings
from gpu_profile.roofline.precision import Precision
from gpu_profile.roofline.work import Work
from gpu_profile.units import percent

#: Whether what is read is in a cache: `warm` if the operation ran on the same data just before, `cold` if the caches
#: were overwritten, `unknown` of a single run.
Caches = Literal["warm", "cold", "unknown"]

#: As `regimes.scores` has it: from here on a share is no measurement.
_WRONG: Final = 1.5
#: What different operations take on a few elements differs by less than this factor, with caches alike.
_FEW: Final = 10
#: Of data up to so many times its size, a cache keeps a part that shows.
_PARTLY: Final = 4
#: Faster than its memory by more than this, an operation has read from a cache: measured bandwidths differ by less.
_FASTER: Final = 1.1


@dataclass(frozen=True, slots=True)
class Position:
    """One operation against its machine's ceilings. What is not known is None, and `reasons` says why.

    `flops_per_s` and `bytes_per_s` are what it reached, `compute` and `memory` the shares of the time that its FLOPs
    and bytes would take at the ceilings, `fresh` the part of `memory` that goes to pages of memory which the process
    touches for the first time, `overhead` the share that its launches take at most. `roof` is the ceiling of the memory
    or cache that its bytes come from, by the name `level`. `ridge` (FLOP/B) and `attainable` (FLOP/s) are of that roof
    and the operation's own mixture of precisions.
    """

    flops_per_s: float | None
    bytes_per_s: float | None
    compute: float | None
    memory: float | None
    fresh: float | None
    overhead: float | None
    level: str | None
    roof: Ceiling | None
    ridge: float | None
    attainable: float | None
    reasons: dict[str, str]

    @property
    def bandwidth(self) -> float | None:
        """The share of the roof's bytes per second that it reached."""
        return None if self.memory is None else self.memory - (self.fresh or 0.0)

    def operation(self, work: Work, *, growth: float | None, n: int) -> Operation:
        """What regions, spans and recordings keep of it."""
        busy = None if self.overhead is None else 1.0 - self.overhead
        return Operation(
            flops=work.flops,
            bytes=work.bytes,
            precision=str(work.precision or ""),
            # Launches that ran beside the work took nothing from it.
            busy=None if busy is None else min(1.0, max(busy, self.compute or 0.0, self.memory or 0.0)),
            compute=self.compute,
            memory=self.memory,
            # Timings that differ by chance can make twice the work look shorter: that is as short as can be.
            growth=None if growth is None else max(0.0, growth),
            n=n,
            reason=next(iter(self.reasons.values()), ""),
        )


def place(work: Work, device_s: float, ceilings: Ceilings, *, caches: Caches = "unknown", faults: int = 0) -> Position:
    """Place work that took `device_s` seconds and as many `faults` as `Timing` has.

    Every value that the work or a ceiling is missing for is None.
    """
    reasons = dict(work.reasons)
    if not device_s > 0:
        reasons.setdefault("runtime", "it took no time that the clock can tell")
        return nowhere(reasons)
    compute_s = _compute_s(work, ceilings, reasons)
    level, roof = _roof(work, device_s, ceilings, caches)
    if roof is None:
        reasons.setdefault("memory ceiling", ceilings.missing.get("memory", "the memory's bandwidth is not known"))
    memory_s = None if work.bytes is None or roof is None else work.bytes / roof.value
    launching_s = _launching_s(work, ceilings, caches)
    overhead = None if launching_s is None else _overhead(launching_s, compute_s, memory_s, device_s)
    if overhead is None:
        reasons.setdefault("overhead", ceilings.missing.get("launch", "an empty launch was not measured"))
    compute, memory = _share(compute_s, device_s), _share(memory_s, device_s)
    for name, share in (("compute", compute), ("memory", memory)):
        if share is not None and share > _WRONG:
            reasons[f"{name} ceiling"] = (
                f"{percent(share, 0)} of the {name} ceiling cannot be: it was measured too low (recalibrate), or the"
                " work is counted too high"
            )
    fresh = _fresh(memory, faults, device_s, ceilings)
    if memory is not None and fresh is not None:
        memory += fresh
    rate = work.flops / compute_s if compute_s and work.flops else _ceiling_of(work, ceilings)
    attainable = None
    if work.intensity is not None and rate is not None and roof is not None:
        attainable = min(rate, work.intensity * roof.value)
    return Position(
        flops_per_s=None if work.flops is None else work.flops / device_s,
        bytes_per_s=None if work.bytes is None else work.bytes / device_s,
        compute=compute,
        memory=memory,
        fresh=fresh,
        overhead=overhead,
        level=level,
        roof=roof,
        ridge=rate / roof.value if rate is not None and roof is not None else None,
        attainable=attainable,
        reasons=reasons,
    )


def nowhere(reasons: Mapping[str, str]) -> Position:
    """Of what no time is known that its work took."""
    return Position(*(None,) * 10, dict(reasons))


def _fresh(memory: float | None, faults: int, device_s: float, ceilings: Ceilings) -> float | None:
    """The share of first touches, as far as there is time left beside the bytes themselves."""
    if memory is None or ceilings.fault_s is None:
        return None
    return min(faults * ceilings.fault_s / device_s, max(0.0, 1.0 - memory))


def _share(part_s: float | None, device_s: float) -> float | None:
    return None if part_s is None else part_s / device_s


def _overhead(launching_s: float, compute_s: float | None, memory_s: float | None, device_s: float) -> float:
    """The share of launching. Launches differ by some times from the one that was measured.

    So where the work at its ceilings takes less than launching does, and all of it no longer than a few launches, what
    the work does not explain is launching.
    """
    if compute_s is not None and memory_s is not None and device_s < _FEW * launching_s:
        at_best = max(compute_s, memory_s)
        if at_best < launching_s:
            return max(min(1.0, launching_s / device_s), 1.0 - at_best / device_s)
    return min(1.0, launching_s / device_s)


def _launching_s(work: Work, ceilings: Ceilings, caches: Caches) -> float | None:
    """How long launching takes: the first operation finds the caches as they are, each further one finds them warm."""
    if ceilings.launch_s is None:
        return None
    first = ceilings.launch_s if caches == "warm" else ceilings.cold_launch_s or ceilings.launch_s
    return first + (max(1, work.operations) - 1) * ceilings.launch_s


def _compute_s(work: Work, ceilings: Ceilings, reasons: dict[str, str]) -> float | None:
    """How long the FLOPs take at their precisions' ceilings. Arithmetic without one of its own is taken at fp32's."""
    if work.flops is None:
        return None
    parts: dict[Precision, int] = dict(work.by_precision)
    rest = work.flops - sum(parts.values())
    if rest > 0:
        parts[Precision.FP32] = parts.get(Precision.FP32, 0) + rest
    missing = [precision for precision, flops in parts.items() if flops and precision not in ceilings.compute]
    if missing:
        name = str(missing[0])
        reasons["compute ceiling"] = f"{name}: {ceilings.missing.get(name, 'its ceiling is not known here')}"
        return None
    return sum(flops / ceilings.compute[precision].value for precision, flops in parts.items() if flops)


def _ceiling_of(work: Work, ceilings: Ceilings) -> float | None:
    """The compute ceiling of work that does no FLOPs: fp32's, which its ridge is drawn by."""
    known = ceilings.compute.get(work.precision or Precision.FP32)
    return None if work.flops is None or known is None else known.value


def _roof(
    work: Work, device_s: float, ceilings: Ceilings, caches: Caches
) -> tuple[str, Ceiling] | tuple[None, Ceiling | None]:
    """The roof that the bytes are under.

    Of what was touched just before, and fits, a cache's. Otherwise the memory's, unless the operation was faster than
    the memory can be. Between two operations of one call, data stays in a cache if the most that one touches fits, and
    of what is a few times as large as a cache, a part does.
    """
    memory = ceilings.memory
    touched = work.working_set if work.working_set is not None else work.bytes
    cache = None if touched is None or caches == "cold" else ceilings.cache(touched)
    if cache is None and work.largest is not None and work.operations > 1:
        cache = ceilings.cache(work.largest)
        caches = "unknown"
    if cache is None and touched is not None and caches != "cold":
        cache, caches = ceilings.cache(touched // _PARTLY), "unknown"
    if memory is None:
        return (None, None) if cache is None or caches != "warm" else (cache.name, cache.bandwidth)
    if cache is not None and work.bytes is not None:
        faster = work.bytes / device_s > _FASTER * memory.value
        if caches == "warm" or faster:
            return cache.name, cache.bandwidth
    return "memory", memory
