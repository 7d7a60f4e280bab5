"""What the operations of a region add up to between all others."""

from typing import Any

import pytest
from support.traces import MAIN, MS, US, WORKER, launch, report

from gpu_profile.kernels.joining.idle import Idle
from gpu_profile.kernels.records import Allocation, Call, Kind, Operation, Operator, Range, Record
from gpu_profile.kernels.sums import CopySum, KernelSum
from gpu_profile.regimes import Regime


def test_a_region_s_time_is_its_own_work_others_work_and_idle_time_by_cause() -> None:
    found = report(
        Range("a", MAIN, 0, 1000),
        Range("b", WORKER, 0, 2000),
        launch(1, 100, 200, 300),
        launch(2, 0, 400, 600, thread=WORKER),
        launch(3, 650, 700, 1200),
    )
    a = found.region("a")
    # From its begin on the host to its last operation's end.
    assert (a.span_ns, a.busy_ns, a.others_ns) == (1200, 600, 200)
    assert a.idle == Idle(host_wait_ns=200 + 100, other_ns=100, launch_ns=200 + 100)
    assert a.busy_ns + a.others_ns + a.idle.total_ns == a.span_ns
    assert a.busy_ratio == 0.5


def test_overlapping_executions_of_a_region_count_their_time_once() -> None:
    found = report(
        Range("a", MAIN, 0, 100),
        Range("a", WORKER, 50, 150),
        launch(1, 10, 20, 80),
        launch(2, 60, 70, 120, thread=WORKER),
    )
    a = found.region("a")
    assert (a.executions, a.host_ns, a.span_ns, a.busy_ns) == (2, 200, 150, 100)


def test_the_time_between_a_region_and_its_backward_pass_is_not_its_own() -> None:
    found = report(
        Range("embedding", MAIN, 0, 100),
        Operator("aten::embedding", MAIN, 10, 20, sequence=5),
        Operator("EmbeddingBackward0", WORKER, 5_000, 5_100, sequence=5, backward=True),
        launch(1, 12, 20, 150),
        launch(2, 5_010, 5_050, 5_080, thread=WORKER),
        launch(3, 5_020, 5_100, 5_200, thread=WORKER),
    )
    region = found.region("embedding")
    assert (region.operations, region.backward) == (3, 2)
    assert (region.span_ns, region.busy_ns, region.others_ns) == (150 + 150, 130 + 30 + 100, 0)
    # Up to the first operation, and between the two of the backward pass.
    assert region.idle.total_ns == 20 + 20


def test_several_devices_add_up() -> None:
    found = report(Range("a", MAIN, 0, 100), launch(1, 10, 20, 80), launch(2, 11, 20, 120, device=1))
    a = found.region("a")
    assert (a.devices, a.span_ns, a.busy_ns) == ((0, 1), 100 + 120, 60 + 100)


def test_kernels_are_summed_by_name_and_copies_by_direction() -> None:
    to_device: dict[str, Any] = {"kind": Kind.TRANSFER, "name": "Memcpy HtoD (Pinned -> Device)"}
    found = report(
        Range("a", MAIN, 0, 1000),
        launch(1, 1, 10, 20),
        launch(2, 2, 20, 50),
        launch(3, 3, 50, 55, name="relu"),
        launch(4, 4, 60, 160, bytes=1000, **to_device),
        launch(5, 5, 160, 170, **to_device),
        launch(6, 6, 170, 180, kind=Kind.COPY, name="CopyDeviceToDevice", bytes=8),
    )
    a = found.region("a")
    assert a.kernels == {"gemm": KernelSum(2, 40, 30), "relu": KernelSum(1, 5, 5)}
    assert (a.kernel_count, a.kernel_ns, a.mean_kernel_ns) == (3, 45, 15.0)
    assert a.top(1) == [("gemm", KernelSum(2, 40, 30))]
    assert a.copies == {"DtoD": CopySum(1, 10, 8, 10), "HtoD": CopySum(2, 110, 1000, 100)}
    assert a.copies["HtoD"].bytes_per_s == 1e10
    assert a.copy_bytes == 1008


def test_the_call_tells_a_copy_s_bytes_where_the_copy_does_not() -> None:
    found = report(
        Range("a", MAIN, 0, 1000),
        Call(1, 10, 20, MAIN, "hipMemcpyWithStream", bytes=2560),
        Operation(Kind.TRANSFER, 0, 7, 30, 40, "Memcpy HtoD (Host -> Device)", 1),
    )
    assert found.region("a").copies == {"HtoD": CopySum(1, 10, 2560, 10)}


def test_without_bytes_there_is_no_bandwidth() -> None:
    found = report(Range("a", MAIN, 0, 1000), launch(1, 1, 10, 20, kind=Kind.TRANSFER, name="Memcpy HtoD"))
    a = found.region("a")
    assert (a.copies["HtoD"].bytes_per_s, a.copy_bytes) == (None, None)


def test_communication_and_what_hides_it_are_told_apart() -> None:
    found = report(
        Range("a", MAIN, 0, 100),
        Range("b", WORKER, 0, 100),
        launch(1, 1, 10, 50, kind=Kind.COMMUNICATION, name="nccl"),
        launch(2, 2, 40, 60, stream=8, thread=WORKER),
    )
    a, b = found.regions
    assert (a.communication_ns, a.overlap_ns, a.exposed_communication_ns, a.overlap_ratio) == (40, 10, 30, 0.25)
    assert (b.communication_ns, b.overlap_ratio) == (0, None)


def test_occupancy_and_breadth_are_means_over_the_time_of_kernels_that_tell_them() -> None:
    found = report(
        Range("a", MAIN, 0, 100),
        launch(1, 1, 10, 20, occupancy=0.5, blocks=4.0),
        launch(2, 2, 20, 50, occupancy=0.25, blocks=0.5),
        launch(3, 3, 50, 90),
    )
    a = found.region("a")
    assert a.occupancy == pytest.approx((10 * 0.5 + 30 * 0.25) / 40)
    assert a.breadth == pytest.approx((10 * 1.0 + 30 * 0.5) / 40)
    assert (a.occupancy_of_ns, a.kernel_ns) == (40, 80)


def test_calls_that_wait_for_the_gpu_are_counted() -> None:
    found = report(
        Range("a", MAIN, 0, 1000),
        launch(1, 1, 10, 20),
        Call(2, 100, 300, MAIN, "cudaStreamSynchronize"),
        Call(3, 400, 500, MAIN, "hipDeviceSynchronize"),
        Call(4, 2000, 3000, MAIN, "cudaDeviceSynchronize"),
    )
    assert (found.region("a").waits, found.region("a").wait_ns) == (2, 300)


def test_memory_belongs_to_the_region_that_was_open_on_its_thread() -> None:
    found = report(
        Range("a", MAIN, 0, 100),
        Allocation(10, MAIN, 0, 512, 1512, 0xA),
        Allocation(50, MAIN, 0, -256, 1256, 0xB),
        Allocation(60, WORKER, 0, 2048, 3304, 0xC),
        launch(1, 1, 10, 20),
    )
    (memory,) = found.region("a").memory
    assert (memory.source, memory.allocations, memory.allocated_bytes, memory.frees, memory.freed_bytes) == (
        "torch",
        1,
        512,
        1,
        256,
    )
    assert memory.peak_bytes == 3304
    assert [(a.bytes, a.address) for a in found.allocations("a")] == [(512, 0xA), (-256, 0xB)]


def test_the_driver_s_allocations_keep_all_that_it_told() -> None:
    told = Allocation(10, MAIN, 0, 512, None, 0xA, "driver", "device", 7, 13, 1, True)
    found = report(Range("a", MAIN, 0, 100), told, launch(1, 1, 10, 20))
    assert found.allocations("a") == [told]


def test_a_region_that_starves_its_gpu_is_host_bound_and_one_beside_it_that_does_not_is_not() -> None:
    records: list[Record] = [Range("loader", MAIN, 0, 40 * MS), Range("compute", MAIN, 40 * MS, 80 * MS)]
    for i in range(10):
        at = i * 4 * MS
        records += launch(1 + i, at + 3 * MS, at + 3 * MS + 10 * US, at + 4 * MS)
        records += launch(101 + i, 40 * MS + i, 40 * MS + at + 10 * US, 40 * MS + at + 4 * MS)
    found = report(records)
    assert found.region("loader").verdict().regime is Regime.HOST_BOUND
    assert found.region("compute").verdict().regime is Regime.UNKNOWN
    assert found.region("compute").verdict().basis == "kernels"


def test_a_region_that_launched_nothing_is_unknown_with_a_reason() -> None:
    found = report(Range("a", MAIN, 0, 100), launch(1, 200, 210, 220))
    verdict = found.region("a").verdict()
    assert verdict.regime is Regime.UNKNOWN
    assert "launched nothing" in verdict.rule
