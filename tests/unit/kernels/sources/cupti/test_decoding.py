from collections import Counter
from typing import Any

import pytest
from unit.kernels.sources.cupti.records import LAUNCH, STREAM_SYNCHRONIZE, real, record, versions

from gpu_profile.kernels.records import HOST, Allocation, Call, Kind, Launched, Operation, Record
from gpu_profile.kernels.sources.cupti import rows as r
from gpu_profile.kernels.sources.cupti.decoding import CUSTOM2, decode, external_id
from gpu_profile.kernels.sources.cupti.names import call_names, demangled

START, END = 1_700_000_000_000_000_000, 1_700_000_000_000_000_700


class Decoded:
    """Records of the package's own structures, as rows and decoded."""

    def __init__(self, *records: tuple[Any, Any]) -> None:
        self.skipped: Counter[str] = Counter()
        rows = r.CuptiRows(1000)
        rows.add(each for each, _ in records)
        assert not rows.left_out
        self.records: list[Record] = list(
            decode(rows.kinds, call_name=call_names(real), recording=7, skipped=self.skipped)
        )


def only(*records: tuple[Any, Any]) -> Any:
    (found,) = Decoded(*records).records
    return found


KERNEL: dict[str, Any] = {
    "start": START,
    "end": END,
    "device_id": 1,
    "stream_id": 7,
    "correlation_id": 42,
    "grid_x": 66,
    "grid_y": 2,
    "grid_z": 1,
}


@pytest.mark.parametrize("dtype", versions(r.CONCURRENT_KERNEL))
def test_a_kernel_of_every_version_of_its_structure_is_an_operation(dtype: str) -> None:
    assert only(record(r.CONCURRENT_KERNEL, dtype, name="gemm", **KERNEL)) == Operation(
        Kind.KERNEL, 1, 7, START, END, "gemm", 42
    )


def test_blocks_are_told_per_multiprocessor_where_the_device_tells_how_many_it_has() -> None:
    device = record(r.DEVICE, id=1, num_multiprocessors=132)
    assert only(device, record(r.CONCURRENT_KERNEL, **KERNEL)).blocks == 1.0
    other = record(r.DEVICE, id=0, num_multiprocessors=132)
    assert only(other, record(r.CONCURRENT_KERNEL, **KERNEL)).blocks is None
    assert only(device, record(r.CONCURRENT_KERNEL, **{**KERNEL, "grid_x": 0})).blocks is None


def test_the_occupancy_which_cupti_does_not_measure_is_absent() -> None:
    assert only(record(r.CONCURRENT_KERNEL, **KERNEL)).occupancy is None


def test_a_kernel_of_a_graph_is_marked() -> None:
    assert only(record(r.CONCURRENT_KERNEL, graph_id=3, **KERNEL)).graph


def test_a_collective_of_nccl_is_communication() -> None:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    assert only(record(r.CONCURRENT_KERNEL, name=name, **KERNEL)).kind is Kind.COMMUNICATION


def test_the_names_of_kernels_are_demangled_and_others_kept() -> None:
    mangled = "_ZN2at6native13reduce_kernelILi512ELi1EEEvT_"
    assert only(record(r.CONCURRENT_KERNEL, name=mangled, **KERNEL)).name.startswith(
        "void at::native::reduce_kernel<512"
    )
    assert demangled("triton_poi_fused_add_0") == "triton_poi_fused_add_0"
    assert demangled("_Znot a name") == "_Znot a name"
    assert demangled("") == ""


COPY: dict[str, Any] = {"start": START, "end": END, "device_id": 0, "stream_id": 7, "correlation_id": 5, "bytes": 4096}


@pytest.mark.parametrize(
    ("direction", "source", "target", "kind", "name"),
    [
        (1, 2, 3, Kind.TRANSFER, "Memcpy HtoD (Pinned -> Device)"),
        (2, 3, 1, Kind.TRANSFER, "Memcpy DtoH (Device -> Pageable)"),
        (8, 3, 3, Kind.COPY, "Memcpy DtoD (Device -> Device)"),
        (6, 4, 3, Kind.COPY, "Memcpy AtoD (Array -> Device)"),
        (10, 3, 3, Kind.TRANSFER, "Memcpy PtoP (Device -> Device)"),
        (12, 3, 9, Kind.TRANSFER, "Memcpy kind 12 (Device -> kind 9)"),
    ],
)
@pytest.mark.parametrize("dtype", versions(r.MEMCPY))
def test_a_copy_has_pytorchs_name_its_bytes_and_whether_it_crosses_a_link(
    dtype: str, direction: int, source: int, target: int, kind: Kind, name: str
) -> None:
    found = only(record(r.MEMCPY, dtype, copy_kind=direction, src_kind=source, dst_kind=target, **COPY))
    assert found == Operation(kind, 0, 7, START, END, name, 5, bytes=4096)


@pytest.mark.parametrize(("target", "kind"), [(1, Kind.TRANSFER), (0, Kind.COPY)])
def test_a_copy_between_peers_crosses_a_link_unless_they_are_one(target: int, kind: Kind) -> None:
    found = only(
        record(
            r.MEMCPY2, copy_kind=10, src_kind=3, dst_kind=3, src_device_id=0, dst_device_id=target, graph_id=1, **COPY
        )
    )
    assert (found.kind, found.name, found.bytes, found.graph) == (kind, "Memcpy PtoP (Device -> Device)", 4096, True)


@pytest.mark.parametrize("dtype", versions(r.MEMSET))
def test_a_memset_is_a_set_with_its_bytes(dtype: str) -> None:
    assert only(record(r.MEMSET, dtype, memory_kind=3, **COPY)) == Operation(
        Kind.SET, 0, 7, START, END, "Memset (Device)", 5, bytes=4096
    )


@pytest.mark.parametrize(
    ("kind", "callback", "name"),
    [
        (r.RUNTIME, LAUNCH, "cudaLaunchKernel"),
        (r.RUNTIME, 214, "cudaLaunchKernel"),  # of per-thread default streams
        (r.RUNTIME, STREAM_SYNCHRONIZE, "cudaStreamSynchronize"),
        (r.RUNTIME, 311, "cudaGraphLaunch"),
        (r.DRIVER, 307, "cuLaunchKernel"),
        (r.DRIVER, 442, "cuLaunchKernel"),
        (r.DRIVER, 276, "cuMemcpyHtoD_v2"),
        (r.RUNTIME, 60000, "runtime 60000"),
        (r.DRIVER, 60000, "driver 60000"),
    ],
)
def test_calls_have_the_names_of_their_functions(kind: int, callback: int, name: str) -> None:
    found = only(record(kind, start=START, end=END, cbid=callback, correlation_id=9, thread_id=4321))
    assert found == Call(9, START, END, 4321, name)


def test_a_package_without_tables_gives_calls_by_number() -> None:
    assert call_names(object())(r.RUNTIME, LAUNCH) == f"runtime {LAUNCH}"


def test_only_the_recordings_own_ranges_are_those_that_calls_were_made_in() -> None:
    def marked(kind: int, number: int) -> tuple[Any, Any]:
        return record(r.EXTERNAL_CORRELATION, external_kind=kind, external_id=number, correlation_id=3)

    left_behind, of_pytorch = marked(CUSTOM2, external_id(6, 5)), marked(3, external_id(7, 5))
    assert only(left_behind, marked(CUSTOM2, external_id(7, 5)), of_pytorch) == Launched(3, 5)


MEMORY: dict[str, Any] = {
    "memory_kind": 3,
    "device_id": 2,
    "context_id": 1,
    "stream_id": 7,
    "address": 0x7F00,
    "correlation_id": 8,
}


@pytest.mark.parametrize("dtype", [name for name in versions(r.MEMORY2) if name != "activity_memory_dtype"])
def test_memory_taken_and_given_back_is_told_with_the_calls_thread(dtype: str) -> None:
    found = Decoded(
        record(r.MEMORY2, dtype, timestamp=START, bytes=512, memory_operation_type=1, is_async=1, **MEMORY),
        record(r.RUNTIME, start=START, end=END, cbid=1, correlation_id=8, thread_id=77),
    ).records
    assert found[1] == Allocation(
        START, 77, 2, 512, None, 0x7F00, "driver", "device", correlation=8, stream=7, context=1, asynchronous=True
    )


def test_memory_of_the_host_is_no_devices() -> None:
    values = {**MEMORY, "memory_kind": 2, "stream_id": 0xFFFFFFFF}
    found = only(record(r.MEMORY2, timestamp=START, bytes=512, memory_operation_type=1, **values))
    assert (found.device, found.kind, found.stream, found.thread) == (HOST, "pinned", None, "")


def test_memory_that_is_given_back_has_the_size_that_was_taken_even_if_records_come_late() -> None:
    back = record(r.MEMORY2, timestamp=END, bytes=0, memory_operation_type=2, **MEMORY)
    taken = record(r.MEMORY2, timestamp=START, bytes=512, memory_operation_type=1, **MEMORY)
    assert [each.bytes for each in Decoded(back, taken).records if isinstance(each, Allocation)] == [512, -512]
    alone = Decoded(back)
    assert not alone.records
    assert alone.skipped == {"memory given back whose size is not known": 1}


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        (0, END, "without a time: it had not ended"),
        (START, 0, "without a time: it had not ended"),
        (END, START, "negative duration"),
    ],
)
@pytest.mark.parametrize("kind", [r.CONCURRENT_KERNEL, r.MEMCPY, r.MEMCPY2, r.MEMSET, r.RUNTIME, r.DRIVER])
def test_what_has_no_good_times_is_left_out_and_counted(kind: int, start: int, end: int, reason: str) -> None:
    found = Decoded(record(kind, start=start, end=end, correlation_id=1))
    assert not found.records
    assert found.skipped == {reason: 1}


def test_memory_without_a_time_is_left_out_and_counted() -> None:
    found = Decoded(record(r.MEMORY2, bytes=512, memory_operation_type=1, **MEMORY))
    assert (found.records, sum(found.skipped.values())) == ([], 1)


def test_a_structure_that_lacks_a_field_gives_what_it_has() -> None:
    class Kernel:
        kind, start, end, device_id, stream_id, correlation_id, name = r.CONCURRENT_KERNEL, START, END, 0, 7, 1, "k"

    assert only((Kernel(), None)) == Operation(Kind.KERNEL, 0, 7, START, END, "k", 1)


def test_the_numbers_of_kinds_are_the_packages() -> None:
    several = ("MEMCPY2", "EXTERNAL_CORRELATION", "MEMORY2")
    for name in ("MEMCPY", "MEMSET", "KERNEL", "DRIVER", "RUNTIME", "DEVICE", "CONCURRENT_KERNEL", *several):
        assert getattr(r, name) == int(real.ActivityKind[name])
    assert int(real.ExternalCorrelationKind.CUSTOM2) == CUSTOM2
