"""Hardware counters: the metrics that add up, and figures made of their sums. Pure; names are NVIDIA's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

#: Nanoseconds of GPU work, measured by the run with counters.
TIME: Final = "gpu__time_duration.sum"
Terms = Mapping[str, float]


class Formula(NamedTuple):
    """A figure made of sums: Σ factor × metric of `of`, divided by that of `over` if given. `unit` is a UCUM code."""

    name: str
    unit: str
    of: Terms
    over: Terms | None = None


def _flop(letter: str) -> Terms:
    metric = f"smsp__sass_thread_inst_executed_op_{letter}{{}}_pred_on.sum"
    return {metric.format("add"): 1, metric.format("mul"): 1, metric.format("fma"): 2}


def _hits(unit: str) -> tuple[Terms, Terms]:
    hit, miss = f"{unit}__t_sectors_lookup_hit.sum", f"{unit}__t_sectors_lookup_miss.sum"
    return {hit: 1}, {hit: 1, miss: 1}


def _ratio(of: str, over: str, unit: str = "") -> tuple[Terms, Terms]:
    return {f"{unit}{of}.sum": 1}, {f"{unit}{over}.sum": 1}


SECONDS: Final[Terms] = {TIME: 1e-9}
_FLOPS: Final[Mapping[str, Terms]] = {"fp16": _flop("h"), "fp32": _flop("f"), "fp64": _flop("d")}
_ALL_FLOPS: Final = {metric: factor for terms in _FLOPS.values() for metric, factor in terms.items()}
_DRAM: Final[tuple[Terms, ...]] = (
    {"dram__bytes.sum": 1},
    {"dram__bytes_read.sum": 1, "dram__bytes_write.sum": 1},
    {"dram__sectors.sum": 32},
    {"dram__sectors_read.sum": 32, "dram__sectors_write.sum": 32},
)
#: Of several formulas with one name, the first with all its metrics counted is used. Sources: floating-point operations
#: as in nvprof's flop_count_* and LIKWID's groups FLOPS_HP, _SP and _DP (add + mul + 2 fma of the threads that were not
#: masked, without operations of tensor cores). A sector of DRAM has 32 bytes (Nsight Compute's Profiling Guide,
#: "Memory Tables"). The other formulas divide the metrics in their names.
FORMULAS: Final = (
    *(Formula(f"flop.{precision}", "{FLOP}", of) for precision, of in _FLOPS.items()),
    *(Formula(f"flop_rate.{precision}", "{FLOP}/s", of, SECONDS) for precision, of in _FLOPS.items()),
    *(Formula("dram.bytes", "By", of) for of in _DRAM),
    *(Formula("dram.bandwidth", "By/s", of, SECONDS) for of in _DRAM),
    *(Formula(f"intensity.{name}", "{FLOP}/By", of, over) for name, of in _FLOPS.items() for over in _DRAM),
    *(Formula("intensity", "{FLOP}/By", _ALL_FLOPS, over) for over in _DRAM),
    *(
        Formula("tensor.active", "1", *_ratio("pipe_tensor_cycles_active", "cycles_active", unit))
        for unit in ("sm__", "smsp__")
    ),
    Formula("tensor.instructions_per_cycle", "1", *_ratio("inst_executed_pipe_tensor", "cycles_active", "sm__")),
    Formula("l1.hit_ratio", "1", *_hits("l1tex")),
    Formula("l2.hit_ratio", "1", *_hits("lts")),
)
#: Ratios that can be rebuilt: their factor, dividend and divisor.
_REBUILT: Final[Mapping[str, tuple[float, Terms, Terms]]] = {
    "l1tex__t_sector_hit_rate.pct": (100, *_hits("l1tex")),
    "lts__t_sector_hit_rate.pct": (100, *_hits("lts")),
    "smsp__thread_inst_executed_per_inst_executed.ratio": (
        1,
        *_ratio("thread_inst_executed", "inst_executed", "smsp__"),
    ),
}


def adds_up(metric: str) -> bool:
    """Whether values of several kernels may be added.

    The suffix of a metric's name says how the values of the GPU's units were combined (Nsight Compute, Profiling Guide,
    "Metrics Structure"). `.sum` adds up, and so does `.avg`, a sum over a fixed number of units. `.max`, `.min`, ratios
    (`.pct`, `.ratio`, `.sum.per_second`, `.avg.pct_of_peak_sustained_elapsed`, …) and unknown suffixes do not.
    """
    return metric.partition(".")[2] in ("sum", "avg")


def parts_of(metric: str) -> tuple[float, Terms, Terms]:
    """A ratio's factor, dividend and divisor; without terms if they are unknown."""
    base, _, rollup = metric.partition(".")
    if rollup == "sum.per_second":
        return 1, {f"{base}.sum": 1}, SECONDS
    if rollup in ("avg.per_cycle_active", "avg.per_cycle_elapsed"):
        cycles = rollup.removeprefix("avg.per_cycle_")
        return 1, {f"{base}.sum": 1}, {f"{base.partition('__')[0]}__cycles_{cycles}.sum": 1}
    return _REBUILT.get(metric, (1, {}, {}))
