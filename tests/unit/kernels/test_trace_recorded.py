"""Reading recorded traces: nothing is lost, against `json.load` and a loop; see tests/data/traces/SOURCES.txt."""

import gzip
import json
from collections import Counter
from functools import cache
from typing import Any, TypeVar

import pytest
from support.traces import ALEXNET, COUNTERS, DDP, MI250, RESNET, STREAMS, TRACES, recorded

from gpu_profile.kernels.records import HOST, Allocation, Call, Operation, Operator, Range, RangeCounters, Record
from gpu_profile.kernels.trace import Trace

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
CALLS = ("cuda_runtime", "cuda_driver", "Runtime")
R = TypeVar("R")


@cache
def read(name: str) -> tuple[Trace, list[Record]]:
    trace = recorded(name)
    return trace, list(trace)


def records(name: str, kind: type[R]) -> list[R]:
    return [record for record in read(name)[1] if isinstance(record, kind)]


@cache
def events(name: str) -> list[dict[str, Any]]:
    with gzip.open(TRACES / f"{name}.json.gz", "rt") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def of(name: str, *categories: str) -> list[dict[str, Any]]:
    return [event for event in events(name) if event.get("cat") in categories]


@pytest.mark.parametrize(
    ("name", "operations", "calls", "ranges", "operators", "allocations", "counted"),
    [
        (ALEXNET, 98, 361, 8, 359, 0, 0),
        (COUNTERS, 0, 1862, 8, 375, 0, 77),
        (DDP, 3774, 8740, 42, 14346, 0, 0),
        (MI250, 16, 21, 3, 70, 0, 0),
        (STREAMS, 6, 39, 0, 6, 0, 0),
        (RESNET, 9096, 11923, 24, 23622, 12838, 0),
    ],
)
def test_every_event_of_a_known_kind_is_read(
    name: str, operations: int, calls: int, ranges: int, operators: int, allocations: int, counted: int
) -> None:
    wanted = [operations, calls, ranges, operators, allocations, counted]
    assert [len(records(name, k)) for k in (Operation, Call, Range, Operator, Allocation, RangeCounters)] == wanted
    assert not read(name)[0].skipped
    assert len(of(name, *ON_GPU)) == operations
    assert len(of(name, *CALLS)) == calls
    assert len(of(name, "user_annotation", "cpu_op", "Operator")) == ranges + operators
    assert sum(event["name"] == "[memory]" for event in events(name)) == allocations


@pytest.mark.parametrize("name", [ALEXNET, COUNTERS, DDP, MI250, STREAMS, RESNET])
def test_calls_have_the_names_and_operations_the_bytes_of_the_file(name: str) -> None:
    assert Counter(call.name for call in records(name, Call)) == Counter(e["name"] for e in of(name, *CALLS))
    moved = [e["args"]["bytes"] for e in of(name, *ON_GPU) if "bytes" in e["args"]]
    assert [o.bytes for o in records(name, Operation) if o.bytes is not None] == moved


@pytest.mark.parametrize("name", [ALEXNET, DDP, STREAMS, RESNET])
def test_kernels_have_the_occupancy_and_the_blocks_of_the_file(name: str) -> None:
    known = [
        (e["args"]["est. achieved occupancy %"] / 100, e["args"]["blocks per SM"]) for e in of(name, "kernel", "Kernel")
    ]
    assert [(o.occupancy, o.blocks) for o in records(name, Operation) if o.occupancy is not None] == known


def test_hip_s_calls_tell_the_bytes_of_their_copies() -> None:
    assert {c.name: c.bytes for c in records(MI250, Call) if c.bytes is not None} == {"hipMemcpyWithStream": 2560}


def test_steps_and_phases_are_ranges() -> None:
    assert Counter(r.name for r in records(RESNET, Range)) == {
        "ProfilerStep": 6,
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": 6,
        "Optimizer.zero_grad#SGD.zero_grad": 6,
        "Optimizer.step#SGD.step": 6,
    }
    found = Counter(r.name for r in records(DDP, Range))
    assert (found["ProfilerStep"], found["nccl:all_reduce"], found["## backward ##"]) == (3, 15, 3)
    assert sum("|measure|forward" in r.name for r in records(ALEXNET, Range)) == 2


@pytest.mark.parametrize("name", [DDP, MI250, RESNET])
def test_backward_operators_have_a_number_that_forward_ones_share(name: str) -> None:
    forward = {o.sequence for o in records(name, Operator) if not o.backward} - {None}
    backward = [o for o in records(name, Operator) if o.backward]
    assert len(backward) == sum(e["args"].get("Fwd thread id", 0) != 0 for e in of(name, "cpu_op", "Operator"))
    assert len({o.thread for o in backward} & {r.thread for r in records(name, Range) if "Step" in r.name}) == 0
    known = sum(o.sequence in forward for o in backward)
    assert known > 0.9 * len(backward)


def test_memory_adds_up_to_what_the_file_holds() -> None:
    found = Counter[int]()
    for allocation in records(RESNET, Allocation):
        found[allocation.device] += allocation.bytes
    wanted = Counter[int]()
    for event in events(RESNET):
        if event["name"] == "[memory]":
            arguments = event["args"]
            wanted[HOST if arguments["Device Type"] == 0 else arguments["Device Id"]] += arguments["Bytes"]
    assert found == wanted
    assert set(found) == {HOST, 0}


def test_threads_are_numbers_everywhere_so_that_memory_and_calls_meet() -> None:
    hosts = (r for r in read(RESNET)[1] if isinstance(r, Call | Range | Operator | Allocation))
    assert {record.thread for record in hosts} == {25738, 25772}


def test_counters_add_up_to_the_known_operations() -> None:
    total = 0.0
    for counted in records(COUNTERS, RangeCounters):
        assert counted.device == 0
        assert len(counted.values) == 9
        total += sum(value * (2 if "fma" in name else 1) for name, value in counted.values.items())
    assert total == 80_231_038_456
