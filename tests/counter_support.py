"""Counter records of made-up kernels, and of two recorded runs of one program: the twin."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from trace_support import TRACES

from gpu_profile.kernels.counters.sums import Counters, CounterSums
from gpu_profile.kernels.records import Counted
from gpu_profile.kernels.sums import KernelSum

TIME: Final = "gpu__time_duration.sum"
INST: Final = "smsp__inst_executed.sum"
CYCLES: Final = "smsp__cycles_active.sum"
DRAM: Final = "dram__bytes.sum"
PCT: Final = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
ADD, MUL, FMA = (f"smsp__sass_thread_inst_executed_op_f{name}_pred_on.sum" for name in ("add", "mul", "fma"))
_SHORT: Final = {"TIME": TIME, "INST": INST, "DRAM": DRAM, "PCT": PCT, "ADD": ADD, "MUL": MUL, "FMA": FMA}


def counted(name: str, **values: float) -> Counted:
    """One record; metrics by the names of this module's constants."""
    return Counted(name, 0, {_SHORT[key]: value for key, value in values.items()})


def kernels(**durations: Sequence[int]) -> dict[str, KernelSum]:
    """Kernels by name, from their durations in ns."""
    return {name: KernelSum(len(ns), sum(ns), max(ns)) for name, ns in durations.items()}


def joined(records: Sequence[Counted], whole: dict[str, KernelSum], region: dict[str, KernelSum]) -> CounterSums:
    """The counters of a region called `step`, which are there."""
    found = Counters(records).of(whole, region, "step")
    assert found is not None
    return found


class Twin(NamedTuple):
    """Records of one run, and kernels of the other: all, and those that each innermost execution of a region launched.

    `truth` is the floating-point operations of such an execution's kernels that both runs know. `order` is what comes
    out of taking the n-th record for the n-th kernel, which pairs `wrong` records with a kernel of another name.
    """

    records: list[Counted]
    whole: dict[str, KernelSum]
    regions: dict[str, dict[str, KernelSum]]
    truth: Mapping[str, float]
    order: Mapping[str, float]
    wrong: int


@cache
def twin() -> Twin:
    """Read without the project's own reader and join.

    The truth: of kernels with a name that both runs know as often, the n-th is the n-th in the other run, too, for the
    program ran them one after the other.
    """
    events = _events("alexnet_a100")
    counts = [event for event in _events("alexnet_a100_cupti_counters") if event.get("cat") == "cuda_profiler_range"]
    counts.sort(key=lambda event: event["ts"])
    calls = {event["args"]["correlation"]: event for event in events if event.get("cat") == "cuda_runtime"}
    ranges = [event for event in events if event.get("cat") == "user_annotation"]
    found = sorted((event for event in events if event.get("cat") == "kernel"), key=lambda event: event["ts"])
    whole: dict[str, list[int]] = defaultdict(list)
    regions: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    queues: dict[str, list[float]] = defaultdict(list)
    for event in counts:
        queues[event["name"]].append(flop_of(event["args"]))
    same = {name for name, queue in queues.items() if len(queue) == sum(event["name"] == name for event in found)}
    truth: dict[str, float] = defaultdict(float)
    order: dict[str, float] = defaultdict(float)
    for number, event in enumerate(found):
        launched = calls[event["args"]["correlation"]]["ts"]
        around = [each for each in ranges if each["ts"] <= launched < each["ts"] + each["dur"]]
        inner = min(around, key=lambda each: each["dur"])
        region = f"{inner['name']} at {inner['ts']}"
        whole[event["name"]].append(event["dur"] * 1000)
        regions[region][event["name"]].append(event["dur"] * 1000)
        if event["name"] in same:
            truth[region] += queues[event["name"]].pop(0)
        if number < len(counts):
            order[region] += flop_of(counts[number]["args"])
    records = [Counted(event["name"], 0, event["args"]) for event in counts]
    parts = {name: _sums(each) for name, each in regions.items()}
    wrong = sum(one["name"] != other["name"] for one, other in zip(counts, found, strict=False))
    return Twin(records, _sums(whole), parts, truth, order, wrong)


def _events(name: str) -> list[dict[str, Any]]:
    with gzip.open(TRACES / "hta" / f"{name}.json.gz", "rt") as file:
        return list(json.load(file)["traceEvents"])


def _sums(found: dict[str, list[int]]) -> dict[str, KernelSum]:
    return {name: KernelSum(len(ns), sum(ns), max(ns)) for name, ns in found.items()}


def flop_of(values: Mapping[str, float]) -> float:
    """Floating-point operations of one record, all precisions together."""
    return sum(value * (2 if "fma" in name else 1) for name, value in values.items())


def flop(found: CounterSums) -> float:
    """Floating-point operations of a region, all precisions together."""
    return sum(found.figures()[f"flop.{precision}"].value for precision in ("fp16", "fp32", "fp64"))
