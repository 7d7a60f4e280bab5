"""Where an operation stands under the roofs of its machine. Pure.

The roofline model (Williams, Waterman, Patterson 2009): an operation of intensity I FLOP/B reaches at most
min(compute ceiling, I x memory ceiling); the ridge is the intensity at which the two meet.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One operation's work and times against its machine's ceilings. None: not known, and `reasons` says why.

    Four shares tell what bounds it. `compute` and `memory` are the shares of the time that its FLOPs and bytes would
    take at the ceilings. Of work whose FLOPs are known in part, `compute` is a lower bound, and only known where that
    is clearly more than `memory`. `first_touch` is the part of `memory` that goes to pages of memory which the process
    touches for the first time. `overhead` is the share that its launches take at most. `growth` is how much longer
    twice the work takes, as a share of the time of once.

    `flops_per_s` and `bytes_per_s` are what it reached. `roof` is the ceiling of the memory or cache that its bytes
    come from, by the name `residency`. `ridge` (FLOP/B) and `attainable` (FLOP/s) are of that roof and the operation's
    own mixture of precisions. `certainty` is below 1 where the ceilings are uncertain: the part of their calibration in
    which nobody else used the processor.
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

    @property
    def bandwidth(self) -> float | None:
        """The share of the roof's bytes per second that it reached."""
        return None if self.memory is None else self.memory - (self.first_touch or 0.0)

    @property
    def operation(self) -> RegionOperation:
        """What regions, spans and recordings keep of it."""
        # Launches that ran beside the work took nothing from it.
        left = max(0.0, 1.0 - max(self.compute or 0.0, self.memory or 0.0))
        return RegionOperation(
            flops=self.work.flops,
            at_least=self.work.at_least,
            bytes=self.work.bytes,
            precision=str(self.work.precision or ""),
            compute=self.compute,
            memory=self.memory,
            overhead=None if self.overhead is None else min(self.overhead, left),
            # Timings that differ by chance can make twice the work look shorter: that is as short as can be.
            growth=None if self.growth is None else max(0.0, self.growth),
            n=self.times.n,
            certainty=None if self.certainty == 1.0 else self.certainty,
            reason=next(iter(self.reasons.values()), ""),
        )

    def verdict(self, thresholds: Thresholds) -> Verdict:
        """What bounds it; less sure of few timings or of timings that differ."""
        # One timing may be off by anything: half of what would be most doubtful.
        known = self.times.half_width
        doubt = thresholds.sure_margin / 2 if known is None else min(known, thresholds.sure_margin)
        return classify(replace(self.operation.evidence(), half_width=doubt), thresholds)


def place(
    work: Work,
    timings: Sequence[Timing],
    ceilings: Ceilings,
    *,
    caches: Caches = "unknown",
    growth: float | None = None,
    later: str | None = None,
) -> Position:
    """Place work by the median of its timings. Every value that the work or a ceiling is missing for is None.

    `later`: why a call has not done its work yet. Its timings then tell nothing.
    """
    times = Repeats.of([timing.device_s for timing in timings])
    if later is not None:
        return Position(work=work, times=times, reasons={"runtime": later, **work.reasons})
    reasons = dict(work.reasons)
    device_s = times.median_s
    if not device_s > 0:
        reasons.setdefault("runtime", "it took no time that the clock can tell")
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
        reasons=reasons,
    )


def _decides(at_least: float | None, memory: float | None) -> bool:
    """Whether the FLOPs of a part say enough: those of the rest can only put compute further ahead."""
    return at_least is not None and memory is not None and at_least - memory > DEFAULT_THRESHOLDS.balanced


def _share(part_s: float | None, device_s: float) -> float | None:
    return None if part_s is None else part_s / device_s


def _first_touch(memory: float | None, faults: int, device_s: float, ceilings: Ceilings) -> float | None:
    """The share of first touches, as far as there is time left beside the bytes themselves."""
    if memory is None or ceilings.fault_s is None:
        return None
    return min(faults * ceilings.fault_s / device_s, max(0.0, 1.0 - memory))


def _overhead(overhead_s: float, compute_s: float | None, memory_s: float | None, device_s: float) -> float:
    """The share of launching. Launches differ by some times from the one that was measured.

    So where the work at its ceilings takes less than launching does, and all of it no longer than a few launches, what
    the work does not explain is launching.
    """
    launching = min(1.0, overhead_s / device_s)
    if compute_s is not None and memory_s is not None and device_s < _FEW * overhead_s:
        at_best = max(compute_s, memory_s)
        if at_best < overhead_s:
            return max(launching, 1.0 - at_best / device_s)
    return launching


def _overhead_s(work: Work, ceilings: Ceilings, caches: Caches, reasons: dict[str, str]) -> float | None:
    """How long launching takes: the first operation finds the caches as they are, each further one finds them warm."""
    if ceilings.launch_s is None:
        reasons.setdefault("overhead", ceilings.missing.get("launch", "an empty launch was not measured"))
        return None
    first = ceilings.launch_s if caches == "warm" else ceilings.cold_launch_s or ceilings.launch_s
    return first + (max(1, work.operations) - 1) * ceilings.launch_s


def _memory_s(work: Work, roof: Ceiling | None, ceilings: Ceilings, reasons: dict[str, str]) -> float | None:
    """How long the bytes take at their roof."""
    if roof is None:
        reasons.setdefault("memory ceiling", ceilings.missing.get("memory", "the memory's bandwidth is not known"))
        return None
    return None if work.bytes is None else work.bytes / roof.value


def _compute_s(work: Work, ceilings: Ceilings, reasons: dict[str, str]) -> float | None:
    """How long the FLOPs take at their precisions' ceilings. Arithmetic without one of its own is taken at fp32's."""
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
