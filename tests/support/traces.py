"""Traces made in tests, counter records, and records of the kernels that regions launched."""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpu_profile.kernels.activity import Activity, measure
from gpu_profile.kernels.counters.formulas import adds_up
from gpu_profile.kernels.counters.sums import Counters, CounterSums, Matched
from gpu_profile.kernels.records import (
    Allocation,
    Call,
    Kind,
    Launched,
    Operation,
    Operator,
    Range,
    RangeCounters,
    Record,
)
from gpu_profile.kernels.sums import KernelSum
from gpu_profile.kernels.trace import Trace
from gpu_profile.kernels.views import KernelReport, report_of

TRACES = Path(__file__).parents[1] / "data" / "traces"
US = 1_000
MS = 1_000_000
ALEXNET = "hta/alexnet_a100"
COUNTERS = "hta/alexnet_a100_cupti_counters"
DDP = "hta/ddp_a100_nccl_rank0"
MI250 = "hta/mi250_minitoy_rocm62"
RESNET = "kineto/resnet50_workers0"
STREAMS = "hta/multistream_event_sync_a100"
#: Operations, kernels, span, busy, communication and overlap in µs of recorded traces, computed by other code.
SUMS: Final = {
    ALEXNET: (98, 79, 12_920_244, 66_141, 0, 0),
    DDP: (3774, 2700, 660_551, 157_500, 46_876, 7_317),
    MI250: (16, 14, 8_912, 149, 0, 0),
    STREAMS: (6, 3, 19_506, 372, 0, 0),
    RESNET: (9096, 8772, 996_477, 603_558, 0, 0),
}
#: Waiting for the host and other waiting of streams, in µs, computed by other code.
IDLE: Final = {
    (ALEXNET, 7): (12_855_007, 104),
    (ALEXNET, 20): (12_011_718, 3),
    (DDP, 7): (540_091, 2_150),
    (DDP, 40): (583_924, 0),
    (MI250, 0): (8_763, 0),
    (STREAMS, 20): (32, 0),
    (STREAMS, 24): (0, 15),
    (STREAMS, 28): (0, 15),
    (RESNET, 7): (382_676, 10_243),
}
_CATEGORY = {
    Kind.KERNEL: ("kernel", "gemm"),
    Kind.COMMUNICATION: ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
    Kind.TRANSFER: ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"),
    Kind.COPY: ("gpu_memcpy", "Memcpy DtoD (Device -> Device)"),
    Kind.SET: ("gpu_memset", "Memset (Device)"),
}


#: Events in Kineto's format.
KERNEL: dict[str, Any] = {
    "ph": "X",
    "cat": "kernel",
    "name": "gemm",
    "pid": 0,
    "tid": 7,
    "ts": 10,
    "dur": 2,
    "args": {"device": 0, "stream": 7, "correlation": 5},
}
CALL: dict[str, Any] = {
    "ph": "X",
    "cat": "cuda_runtime",
    "name": "cudaLaunchKernel",
    "pid": 100,
    "tid": 101,
    "ts": 4,
    "dur": 1,
    "args": {"correlation": 5},
}


def event_trace(tmp_path: Path, *events: Any, ranges_named: str | None = None, **top: Any) -> Trace:
    """A trace of `events`, with other members at its top level."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, **top}))
    return Trace(path, ranges_named=ranges_named)


def one_record(tmp_path: Path, event: Any) -> Record:
    """The record of one event."""
    (record,) = event_trace(tmp_path, event)
    return record


def recorded(name: str) -> Trace:
    """A recorded trace."""
    return Trace(TRACES / f"{name}.json.gz")


def activity_of(records: Iterable[Record]) -> Activity:
    """The sums of the GPU operations in `records`."""
    activity = measure(records)
    assert activity is not None
    return activity


def rounded(activity: Activity) -> tuple[int, ...]:
    """A trace's sums in the format of `SUMS`."""
    kernels = activity.counts[Kind.KERNEL] + activity.counts[Kind.COMMUNICATION]
    times = (activity.span_ns, activity.busy_ns, activity.communication_ns, activity.overlap_ns)
    return activity.operations, kernels, *(round(time / US) for time in times)


def as_hta(records: Iterable[Record]) -> list[Operation]:
    """The operations as HTA reads them: without the last step, starts rounded up and ends down to whole µs."""
    records = list(records)
    last = max(r.start_ns for r in records if isinstance(r, Range) and r.name == "ProfilerStep")
    kept = [r for r in records if isinstance(r, Operation) and r.start_ns < last]
    return [r._replace(start_ns=-(-r.start_ns // US) * US, end_ns=r.end_ns // US * US) for r in kept]


class Program:
    """One host thread that launches work, and a GPU that runs each stream in order, as early as possible."""

    def __init__(self) -> None:
        self.now = 0
        self.free: dict[int, int] = {}
        self.records: list[Operation | Call] = []

    def host(self, ns: int) -> None:
        """The host does something else."""
        self.now += ns

    def launch(
        self, ns: int, kind: Kind = Kind.KERNEL, *, stream: int = 7, after: int | None = None, call: int = 5 * US
    ) -> None:
        """Launch an operation of `ns`. It waits for its stream, and for stream `after` if given."""
        correlation = len(self.records) + 1
        self.records.append(Call(correlation, self.now, self.now + call, 1))
        self.now += call
        waits = [self.free.get(key, 0) for key in (stream, after) if key is not None]
        start = max(self.now + 2 * US, *waits)
        self.free[stream] = start + ns
        self.records.append(Operation(kind, 0, stream, start, start + ns, _CATEGORY[kind][1], correlation))

    def join(self) -> None:
        """The host waits for the GPU."""
        self.now = max(self.now, *self.free.values())


def event(record: Record) -> dict[str, Any]:
    """A record in Kineto's current format."""
    match record:
        case Operation():
            return _operation(record)
        case Call():
            arguments: dict[str, Any] = {"External id": 1, "cbid": 211, "correlation": record.correlation}
            if record.bytes is not None:
                arguments["size"] = str(record.bytes)
            return _lasting(record, "cuda_runtime", record.name or "cudaLaunchKernel", arguments)
        case Range():
            return _lasting(record, "user_annotation", record.name, {"External id": 1, "Ev Idx": 0})
        case Operator():
            arguments = {"External id": 1, "Ev Idx": 0}
            if record.sequence is not None:
                arguments |= {"Sequence number": record.sequence, "Fwd thread id": int(record.backward)}
            return _lasting(record, "cpu_op", record.name, arguments)
        case Allocation():
            return _allocation(record)
        case RangeCounters():
            common = {"ph": "X", "cat": "cuda_profiler_range", "name": record.name, "pid": record.device, "tid": 0}
            return {**common, "ts": 0, "dur": 1, "args": dict(record.values)}
        case Launched():
            raise ValueError("Kineto writes no external correlations")


def _operation(record: Operation) -> dict[str, Any]:
    arguments: dict[str, Any] = {"device": record.device, "context": 1, "stream": record.stream}
    arguments["correlation"] = record.correlation
    if record.bytes is not None:
        arguments["bytes"] = record.bytes
    if record.occupancy is not None:
        arguments["est. achieved occupancy %"] = round(record.occupancy * 100)
    if record.blocks is not None:
        arguments["blocks per SM"] = record.blocks
    if record.graph:
        arguments |= {"graph id": 3, "graph node id": (3 << 32) + 1}
    category, _ = _CATEGORY[record.kind]
    common = {"ph": "X", "cat": category, "name": record.name, "pid": record.device, "tid": record.stream}
    return {**common, **_times(record), "args": arguments}


def _allocation(record: Allocation) -> dict[str, Any]:
    arguments: dict[str, Any] = {"Device Type": int(record.device >= 0), "Device Id": record.device}
    arguments |= {"Bytes": record.bytes, "Addr": record.address, "Ev Idx": 0}
    if record.total is not None:
        arguments |= {"Total Allocated": record.total, "Total Reserved": record.total}
    common = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": record.thread}
    return {**common, "ts": record.time_ns / US, "args": arguments}


def _times(record: Operation | Call | Range | Operator) -> dict[str, float]:
    return {"ts": record.start_ns / US, "dur": (record.end_ns - record.start_ns) / US}


def _lasting(record: Call | Range | Operator, category: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    common = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": record.thread}
    return {**common, **_times(record), "args": arguments}


def write(path: Path, records: Iterable[Record], **top: Any) -> Path:
    """Write a trace file, compressed if its name ends in .gz."""
    text = json.dumps({"schemaVersion": 1, **top, "traceEvents": [event(r) for r in records]}, indent=1)
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


TIME: Final = "gpu__time_duration.sum"
INST: Final = "smsp__inst_executed.sum"
CYCLES: Final = "smsp__cycles_active.sum"
DRAM: Final = "dram__bytes.sum"
PCT: Final = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
ADD, MUL, FMA = (f"smsp__sass_thread_inst_executed_op_f{name}_pred_on.sum" for name in ("add", "mul", "fma"))
_SHORT: Final = {"TIME": TIME, "INST": INST, "DRAM": DRAM, "PCT": PCT, "ADD": ADD, "MUL": MUL, "FMA": FMA}


def counted(name: str, **values: float) -> RangeCounters:
    """One record, with metrics by the names of this module's constants."""
    return RangeCounters(name, 0, {_SHORT[key]: value for key, value in values.items()})


def kernels(**durations: Sequence[int]) -> dict[str, KernelSum]:
    """Kernels by name, from their durations in ns."""
    return {name: KernelSum(len(ns), sum(ns), max(ns)) for name, ns in durations.items()}


def joined(records: Sequence[RangeCounters], whole: dict[str, KernelSum], region: dict[str, KernelSum]) -> CounterSums:
    """The counters of a region named `step`. Fails if it has none."""
    sums = Counters(records).of(whole, region, "step")
    assert sums is not None
    return sums


def nobodys(records: Sequence[RangeCounters], matched: Matched) -> dict[str, float]:
    """The sums of records without a kernel, by metric. If only some records of a name match, the mean counts."""
    often = Counter(record.name for record in records)
    sums: dict[str, float] = defaultdict(float)
    for record in records:
        for metric, value in record.values.items():
            sums[metric] += adds_up(metric) * value * matched.records.get(record.name, 0) / often[record.name]
    return {metric: value for metric, value in sums.items() if value}


class Twin(NamedTuple):
    """Records of one run, and kernels of the other: `whole`, and by the innermost execution that launched them.

    `truth`: floating-point operations of each execution's kernels that occur in both runs. `order`: the same with the
    n-th record for the n-th kernel, which pairs `wrong` records with a kernel of another name.
    """

    records: list[RangeCounters]
    whole: dict[str, KernelSum]
    regions: dict[str, dict[str, KernelSum]]
    truth: Mapping[str, float]
    order: Mapping[str, float]
    wrong: int


@cache
def twin() -> Twin:
    """The recorded pair of runs, without the project's own reader and join.

    The truth uses names that occur equally often in both runs. The n-th kernel of such a name is the n-th in the other
    run too, because the program ran its kernels one after the other.
    """
    events = _events("alexnet_a100")
    counts = [event for event in _events("alexnet_a100_cupti_counters") if event.get("cat") == "cuda_profiler_range"]
    counts.sort(key=lambda event: event["ts"])
    calls = {event["args"]["correlation"]: event for event in events if event.get("cat") == "cuda_runtime"}
    ranges = [event for event in events if event.get("cat") == "user_annotation"]
    launches = sorted((event for event in events if event.get("cat") == "kernel"), key=lambda event: event["ts"])
    whole: dict[str, list[int]] = defaultdict(list)
    regions: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    queues: dict[str, list[float]] = defaultdict(list)
    for event in counts:
        queues[event["name"]].append(flop_of(event["args"]))
    same = {name for name, queue in queues.items() if len(queue) == sum(event["name"] == name for event in launches)}
    truth: dict[str, float] = defaultdict(float)
    order: dict[str, float] = defaultdict(float)
    for number, event in enumerate(launches):
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
    records = [RangeCounters(event["name"], 0, event["args"]) for event in counts]
    parts = {name: _sums(each) for name, each in regions.items()}
    wrong = sum(one["name"] != other["name"] for one, other in zip(counts, launches, strict=False))
    return Twin(records, _sums(whole), parts, truth, order, wrong)


def _events(name: str) -> list[dict[str, Any]]:
    with gzip.open(TRACES / "hta" / f"{name}.json.gz", "rt") as file:
        return list(json.load(file)["traceEvents"])


def _sums(durations: dict[str, list[int]]) -> dict[str, KernelSum]:
    return {name: KernelSum(len(ns), sum(ns), max(ns)) for name, ns in durations.items()}


def flop_of(values: Mapping[str, float]) -> float:
    """Floating-point operations of one record, summed over all precisions."""
    return sum(value * (2 if "fma" in name else 1) for name, value in values.items())


def flop(sums: CounterSums) -> float:
    """Floating-point operations of a region, summed over all precisions."""
    return sum(sums.figures()[f"flop.{precision}"].value for precision in ("fp16", "fp32", "fp64"))


MAIN, WORKER = 100, 200


def launch(
    correlation: int, called: int, start: int, end: int, *, thread: int = MAIN, kind: Kind = Kind.KERNEL, **more: Any
) -> list[Record]:
    """A call and the operation that it launched."""
    plain = Operation(kind, 0, 7, start, end, "gemm", correlation)
    return [Call(correlation, called, called + 2, thread, "cudaLaunchKernel"), plain._replace(**more)]


def report(*records: Record | Iterable[Record]) -> KernelReport:
    flat: list[Record] = []
    for each in records:
        flat.extend(each if isinstance(each, list) else [each])  # type: ignore[list-item]
    return report_of(flat, source="a trace")
