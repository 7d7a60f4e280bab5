"""Reading traces: whatever the file holds, it gives records, counts what it leaves out, or says why it cannot go on."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.traces import US, Program, write

from gpu_profile.errors import UsageError
from gpu_profile.kernels import stream
from gpu_profile.kernels.activity import evidence, measure
from gpu_profile.kernels.joining.columns import RecordArrays
from gpu_profile.kernels.records import Allocation, Call, Kind, Operation, Operator, Range, RangeCounters, Record
from gpu_profile.kernels.stream import JsonStream
from gpu_profile.kernels.trace import Trace
from gpu_profile.kernels.trace_events import MAKERS
from gpu_profile.regimes import classify


def small() -> list[Operation | Call]:
    program = Program()
    for kind in Kind:
        program.launch(5 * US, kind)
    return program.records


HOST_SIDE: list[Record] = [
    Range("forward", 1, 0, 90 * US),
    Operator("aten::mm", 1, 5 * US, 9 * US, 7),
    Operator("MmBackward0", 2, 50 * US, 60 * US, 7, True),
    Allocation(6 * US, 1, 0, 512, 1024, 4096),
    RangeCounters("gemm", 0, {"dram__bytes.sum": 5.0}),
]


def readable(path: Path) -> int:
    """Read all that there is; whatever is wrong must be said by a UsageError that names the file."""
    found: list[Record] = []
    try:
        found.extend(Trace(path))
    except UsageError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 - what was read before is looked at as well
    for record in found:
        assert not isinstance(record, Operation | Call | Range | Operator) or record.end_ns >= record.start_ns
    RecordArrays(found)
    return len(found)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    return write(path, [*small(), *HOST_SIDE], deviceProperties=[{"id": 0, "numSms": 108}]).read_bytes()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "trace.json"


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_cut_anywhere_gives_what_came_before_or_says_why_not(packed: bool, good: bytes, target: Path) -> None:
    data = gzip.compress(good, mtime=0) if packed else good
    counts = []
    for length in range(0, len(data), 1 if packed else 5):
        target.write_bytes(data[:length])
        counts.append(readable(target))
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert len(set(counts)) > 5 or packed


@settings(max_examples=300)
@given(
    packed=st.booleans(), flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4)
)
def test_flipped_bytes_give_records_or_say_why_not(
    packed: bool, flips: list[tuple[float, int]], good: bytes, target: Path
) -> None:
    data = bytearray(gzip.compress(good, mtime=0) if packed else good)
    for place, bits in flips:
        data[int(place * len(data))] ^= bits
    target.write_bytes(data)
    readable(target)
    try:
        activity = measure(Trace(target))
    except UsageError:
        activity = None
    if activity is not None:
        assert activity.busy_ns + activity.idle.total_ns == activity.device_ns
        classify(evidence(activity))


@given(data=st.binary(max_size=200))
def test_any_bytes_give_records_or_say_why_not(data: bytes, target: Path) -> None:
    target.write_bytes(data)
    readable(target)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


fields = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])


@given(field=fields, value=json_values)
def test_any_value_in_any_field_gives_a_record_or_is_left_out(field: str, value: object, target: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1, "args": {}}
    target.write_text(json.dumps({"traceEvents": [event | {field: value}]}))
    source = Trace(target)
    activity = measure(source)
    assert activity is None or activity.operations == 1


numbers = st.sampled_from([0, 1, -1, 7, 2**31, 2**62, 2**63, -(2**70), 10**30, 0.5, 1e300, float("nan"), float("inf")])
texts = st.sampled_from(["", "7", "2560", "0.5", "-1", "inf", "nan", "1e400", "9" * 30, "stream 7", "\ud800", "X#1"])
loose = numbers | texts | json_values
ON_GPU = ["device", "stream", "correlation", "bytes", "size", "est. achieved occupancy %", "blocks per SM", "graph id"]
ON_HOST = ["Sequence number", "Fwd thread id", "Bytes", "Total Allocated", "Device Type", "Device Id", "Addr"]
arguments = st.dictionaries(st.sampled_from([*ON_GPU, *ON_HOST, "graph node id", "dram__bytes.sum", "\ud800"]), loose)
categories = st.sampled_from(sorted(MAKERS, key=str))


@st.composite
def loose_events(draw: st.DrawFn) -> dict[str, object]:
    phase, category = draw(categories)
    event: dict[str, object] = {"ph": phase, "pid": 0, "tid": 7, "ts": 1, "dur": 1}
    event |= draw(st.dictionaries(st.sampled_from(["pid", "tid", "ts", "dur"]), loose, max_size=2))
    # What is a call of no correlation, or no event of memory, is passed over and not counted.
    event["name"] = "[memory]" if phase == "i" else draw(loose)
    event["args"] = draw(arguments | loose)
    if category in {"cuda_runtime", "cuda_driver", "Runtime"}:
        event["args"] = draw(arguments) | {"correlation": 5}
    return event if category is None else event | {"cat": category}


@given(events=st.lists(loose_events(), max_size=8), others=st.lists(json_values.filter(lambda v: type(v) is not dict)))
@settings(max_examples=200)
def test_every_event_is_a_record_or_counted_as_left_out(
    events: list[object], others: list[object], target: Path
) -> None:
    target.write_text(json.dumps({"traceEvents": [*events, *others]}))
    source = Trace(target)
    found = list(source)
    assert len(found) + source.skipped.total() == len(events) + len(others)
    assert source.skipped["not an object"] == len(others)
    json.dumps(RecordArrays(found).names, ensure_ascii=False).encode()


@given(value=loose, inner=arguments)
def test_any_header_is_read_or_does_not_tell(value: object, inner: dict[str, object], target: Path) -> None:
    for content in (value, inner, [inner, value]):
        target.write_text(json.dumps({"baseTimeNanoseconds": content, "traceEvents": []}))
        source = Trace(target)
        assert list(source) == []
        assert source.base_ns >= 0


NAMES = {
    Kind.COMMUNICATION: "ncclDevKernel_AllReduce",
    Kind.TRANSFER: "Memcpy HtoD (Pinned -> Device)",
    Kind.COPY: "Memcpy DtoD (Device -> Device)",
}
names = st.sampled_from(["forward", "aten::mm", "käse", "[param|cuda]", "x" * 300])
counts = st.none() | st.integers(0, 2**50 - 1)


@st.composite
def written(draw: st.DrawFn) -> Record:
    start = draw(st.integers(0, 10**9))
    end = start + draw(st.integers(0, 10**6))
    name, count, number = draw(names), draw(counts), draw(st.integers(1, 2**40))
    what: type = draw(st.sampled_from([Operation, Call, Range, Operator, Allocation, RangeCounters]))
    if what is Operation:
        kind = draw(st.sampled_from(Kind))
        share = draw(st.none() | st.integers(0, 100).map(lambda n: n / 100))
        blocks, graph = draw(st.none() | st.floats(0, 1e6)), draw(st.booleans())
        called, cause = NAMES.get(kind, name), draw(st.sampled_from([None, number]))
        return Operation(kind, 1, 7, start, end, called, cause, count, share, blocks, graph)
    if what is Call:
        return Call(number, start, end, 5, "hipMemcpyAsync", count)
    if what is Range:
        return Range(name, 5, start, end)
    if what is Operator:
        return Operator(name, 5, start, end, count, count is not None and draw(st.booleans()))
    if what is Allocation:
        return Allocation(start, 5, draw(st.integers(-1, 3)), draw(st.sampled_from([number, -number])), count, 64)
    return RangeCounters(name, 2, {"dram__bytes.sum": draw(st.floats(0, 1e18))})


@given(found=st.lists(written(), max_size=12), packed=st.booleans())
def test_what_is_written_is_read_again(found: list[Record], packed: bool, target: Path) -> None:
    source = Trace(write(target.with_suffix(".json.gz" if packed else ".json"), found))
    assert list(source) == found
    assert not source.skipped


@given(
    values=st.lists(json_values | st.dictionaries(st.sampled_from(["a", "},{", "}, {"]), json_values), max_size=30),
    form=st.sampled_from([(None, (",", ":")), (None, (", ", ": ")), (0, None), (2, None)]),
    sizes=st.tuples(st.integers(1, 200), st.integers(1, 200)),
)
def test_a_list_read_in_parts_is_the_list(
    values: list[object], form: tuple[int | None, tuple[str, str] | None], sizes: tuple[int, int], target: Path
) -> None:
    target.write_text(json.dumps(values, indent=form[0], separators=form[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_CHUNK", sizes[0])
        patch.setattr(stream, "_BATCH", sizes[1])
        with JsonStream(target) as source:
            found = list(source.elements())
            source.finish()
    assert repr(found) == repr(json.loads(target.read_text(), parse_float=str))
