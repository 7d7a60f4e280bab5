"""Places an operation under the roofs of its machine. Pure.

The roofline model (Williams, Waterman, Patterson 2009): an operation of intensity I FLOP/B reaches at most
min(compute ceiling, I x memory ceiling); the ridge is the intensity at which the two are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds, Verdict, classify
from gpu_profile.regimes.operation import RegionOperation
from gpu_profile.roofline.ceilings.ceilings import Ceiling, Ceilings
from gpu_profile.roofline.machines.machine import Timing
from gpu_profile.roofline.precision import Precision
from gpu_profile.roofline.repeats import Repeats
from gpu_profile.roofline.work import Work
from gpu_profile.units import percent

#: The state of the caches before a run. `warm`: the operation ran on the same data just before. `cold`: the caches
#: were overwritten. `unknown`: a single run.
Caches = Literal["warm", "cold", "unknown"]

#: A share of a ceiling above this is a mistake, not a measurement. `regimes.scores` has the same limit.
_WRONG: Final = 1.5
#: With equal caches, the times of different operations on a few elements differ by less than this factor.
_FEW: Final = 10
#: Of data up to this many times its size, a cache keeps a noticeable part.
_PARTLY: Final = 4
#: An operation faster than the memory by more than this factor has read from a cache: measured bandwidths vary by less.
_FASTER: Final = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One operation's work and times relative to its machine's ceilings. An unknown value is None, see `reasons`.

    Four shares determine what bounds it. `compute` and `memory`: the shares of the time that its FLOPs and bytes would
    take at the ceilings. If only some operations have a FLOP formula, `compute` is a lower bound, and None unless it is
    clearly above `memory`. `first_touch`: the part of `memory` that the first touches of memory pages take.
    `overhead`: the largest share that its launches can take. `growth`: the additional time of twice the work, relative
    to the time of once.

    `flops_per_s` and `bytes_per_s`: achieved rates. `roof`: the ceiling of the memory or cache that its bytes come
    from; `residency` is the name of that memory or cache. `ridge` (FLOP/B) and `attainable` (FLOP/s) belong to this
    roof and to the operation's own mixture of precisions. `certainty` is below 1 if the ceilings are uncertain: the
    part of the calibration in which no other program used the processor. `ceiling`: the compute ceiling of the
    operation's precisions, in FLOP/s.
    """

    work: Work
    times: Repeats
    compute: float | None = None
    memory: float | None = None
    first_touch: float | None = None
    overhead: float | None = None
    growth: float | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    residency: str | None = None
    roof: Ceiling | None = None
    ridge: float | None = None
    attainable: float | None = None
    certainty: float = 1.0
    reasons: Mapping[str, str] = field(default_factory=dict)
    ceiling: float | None = None

    @property
    def bandwidth(self) -> float | None:
        """The achieved share of the roof's bytes per second."""
        return None if self.memory is None else self.memory - (self.first_touch or 0.0)

    @property
    def operation(self) -> RegionOperation:
        """The values that regions, spans and recordings keep."""
        # Launches that overlap the work take no time from it.
        left = max(0.0, 1.0 - max(self.compute or 0.0, self.memory or 0.0))
        return RegionOperation(
            flops=self.work.flops,
            at_least=self.work.at_least,
            bytes=self.work.bytes,
            precision=str(self.work.precision or ""),
            compute=self.compute,
            memory=self.memory,
            overhead=None if self.overhead is None else min(self.overhead, left),
            # By chance, twice the work can be timed as shorter than once; 0 is the least that is possible.
            growth=None if self.growth is None else max(0.0, self.growth),
            n=self.times.n,
            certainty=None if self.certainty == 1.0 else self.certainty,
            ceiling=self.ceiling,
            reason=next(iter(self.reasons.values()), ""),
        )

    def verdict(self, thresholds: Thresholds) -> Verdict:
        """The regime, with less confidence for few timings or for timings that vary."""
        # The error of a single timing is unknown: assume half of the largest half-width that counts.
        measured = self.times.half_width
        half_width = thresholds.sure_margin / 2 if measured is None else min(measured, thresholds.sure_margin)
        return classify(replace(self.operation.evidence(), half_width=half_width), thresholds)


def place(
    work: Work,
    timings: Sequence[Timing],
    ceilings: Ceilings,
    *,
    caches: Caches = "unknown",
    growth: float | None = None,
    later: str | None = None,
) -> Position:
    """Place work by the median of its timings. A value is None if it needs a number or a ceiling that is missing.

    `later`: why the call has not done its work when it returns. Its timings are then meaningless.
    """
    times = Repeats.of([timing.device_s for timing in timings])
    if later is not None:
        return Position(work=work, times=times, reasons={"runtime": later, **work.reasons})
    reasons = dict(work.reasons)
    device_s = times.median_s
    if not device_s > 0:
        reasons.setdefault("runtime", "it took less time than the clock resolves")
        return Position(work=work, times=times, growth=growth, reasons=reasons)
    residency, roof = _roof(work, device_s, ceilings, caches)
    compute_s = _compute_s(work, ceilings, reasons)
    memory_s = _memory_s(work, roof, ceilings, reasons)
    overhead_s = _overhead_s(work, ceilings, caches, reasons)
    compute, memory = _share(compute_s, device_s), _share(memory_s, device_s)
    if work.flops is None and not _decides(compute, memory):
        compute_s = compute = None
    for name, share in (("compute", compute), ("memory", memory)):
        if share is not None and share > _WRONG:
            reasons[f"{name} ceiling"] = (
                f"{percent(share, 0)} of the {name} ceiling cannot be: it was measured too low (recalibrate), or the"
                " work is counted too high"
            )
    faults = sorted(timing.faults for timing in timings)[len(timings) // 2]
    if ceilings.doubt:
        reasons["ceilings"] = ceilings.doubt
    first_touch = _first_touch(memory, faults, device_s, ceilings)
    rate = work.flops / compute_s if compute_s and work.flops else _ceiling_of(work, ceilings)
    attainable = None
    if work.intensity is not None and rate is not None and roof is not None:
        attainable = min(rate, work.intensity * roof.value)
    return Position(
        work=work,
        times=times,
        compute=compute,
        memory=memory if memory is None or first_touch is None else memory + first_touch,
        first_touch=first_touch,
        overhead=None
        if overhead_s is None
        else _overhead(overhead_s, None if work.flops is None else compute_s, memory_s, device_s),
        growth=growth,
        flops_per_s=None if work.flops is None else work.flops / device_s,
        bytes_per_s=None if work.bytes is None else work.bytes / device_s,
        residency=residency,
        roof=roof,
        ridge=rate / roof.value if rate is not None and roof is not None else None,
        attainable=attainable,
        certainty=1.0 - ceilings.waited if ceilings.doubt else 1.0,
        ceiling=rate,
        reasons=reasons,
    )


def _decides(at_least: float | None, memory: float | None) -> bool:
    """Whether a lower bound of compute suffices: it is far enough above memory, and more FLOPs only raise it."""
    return at_least is not None and memory is not None and at_least - memory > DEFAULT_THRESHOLDS.balanced


def _share(part_s: float | None, device_s: float) -> float | None:
    return None if part_s is None else part_s / device_s


def _first_touch(memory: float | None, faults: int, device_s: float, ceilings: Ceilings) -> float | None:
    """The share that first touches take, limited to the time that is left beside the bytes themselves."""
    if memory is None or ceilings.fault_s is None:
        return None
    return min(faults * ceilings.fault_s / device_s, max(0.0, 1.0 - memory))


def _overhead(overhead_s: float, compute_s: float | None, memory_s: float | None, device_s: float) -> float:
    """The share of launching. An operation's launch may cost several times the one that was measured.

    So if the work at its ceilings takes less time than launching, and the call less than `_FEW` launches, all time that
    the work does not explain counts as launching.
    """
    launching = min(1.0, overhead_s / device_s)
    if compute_s is not None and memory_s is not None and device_s < _FEW * overhead_s:
        at_best = max(compute_s, memory_s)
        if at_best < overhead_s:
            return max(launching, 1.0 - at_best / device_s)
    return launching


def _overhead_s(work: Work, ceilings: Ceilings, caches: Caches, reasons: dict[str, str]) -> float | None:
    """Seconds of launching. The first operation finds the caches in the state `caches`, each further one warm ones."""
    if ceilings.launch_s is None:
        reasons.setdefault("overhead", ceilings.missing.get("launch", "an empty launch was not measured"))
        return None
    first = ceilings.launch_s if caches == "warm" else ceilings.cold_launch_s or ceilings.launch_s
    return first + (max(1, work.operations) - 1) * ceilings.launch_s


def _memory_s(work: Work, roof: Ceiling | None, ceilings: Ceilings, reasons: dict[str, str]) -> float | None:
    """Seconds that the bytes take at their roof."""
    if roof is None:
        reasons.setdefault("memory ceiling", ceilings.missing.get("memory", "the memory's bandwidth is not known"))
        return None
    return None if work.bytes is None else work.bytes / roof.value


def _compute_s(work: Work, ceilings: Ceilings, reasons: dict[str, str]) -> float | None:
    """Seconds that the FLOPs take at their precisions' ceilings. FLOPs in formats without a ceiling count as fp32."""
    flops = work.at_least if work.flops is None else work.flops
    if flops is None:
        return None
    parts: dict[Precision, int] = dict(work.by_precision)
    rest = flops - sum(parts.values())
    if rest > 0:
        parts[Precision.FP32] = parts.get(Precision.FP32, 0) + rest
    missing = [precision for precision, flops in parts.items() if flops and precision not in ceilings.compute]
    if missing:
        name = str(missing[0])
        reasons["compute ceiling"] = f"{name}: {ceilings.missing.get(name, 'its ceiling is not known here')}"
        return None
    return sum(flops / ceilings.compute[precision].value for precision, flops in parts.items() if flops)


def _ceiling_of(work: Work, ceilings: Ceilings) -> float | None:
    """The compute ceiling of the work's main precision, or of fp32 if it does no FLOPs, for its ridge."""
    ceiling = ceilings.compute.get(work.precision or Precision.FP32)
    return None if work.flops is None or ceiling is None else ceiling.value


def _roof(
    work: Work, device_s: float, ceilings: Ceilings, caches: Caches
) -> tuple[str, Ceiling] | tuple[None, Ceiling | None]:
    """The roof of the bytes, with its name.

    A cache's, if the data was touched just before and fits into it. A cache's as well, if the operation was faster than
    the memory and the cache can keep some of the data. There are two such cases: the most that one of several
    operations touches fits, or the data is at most `_PARTLY` times as large. Otherwise the memory's.
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
