"""A made-up program of two steps whose sums can be told by hand, and names that are hard to show."""

from __future__ import annotations

from typing import Any

from gpu_profile.kernels.records import Allocation, Call, Counted, Kind, Operation, Operator, Range, Record
from gpu_profile.kernels.views import KernelReport, report_of

MS = 1_000_000
MAIN = 100
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>(Params)"
ADD = "void at::native::elementwise<4, at::native::AddFunctor<float>>(int, at::native::AddFunctor<float>)"
FILL = "void at::native::elementwise<4, at::native::FillFunctor<float>>(int, at::native::FillFunctor<float>)"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
COPY = "Memcpy HtoD (Pinned -> Device)"
EVIL = "</script><script>alert(1)</script><b>\"'&\x1b[31m\ud800\n"
STEPS = 2
#: From one step's start to the next one's.
STEP = 50 * MS
MIB = 1 << 20
INSTRUCTIONS = "smsp__inst_executed.sum"


def operation(kind: Kind, start: int, end: int, name: str, cause: int | None, **more: Any) -> Operation:
    return Operation(kind, more.pop("device", 0), more.pop("stream", 7), start * MS, end * MS, name, cause, **more)


def call(cause: int, at: int, name: str = "cudaLaunchKernel", ms: int = 0) -> Call:
    return Call(cause, at * MS, at * MS + (ms * MS or 5_000), MAIN, name)


def steps() -> list[Record]:
    """Each step: `load` copies 20 MiB, `forward` runs three kernels with a collective beside two of them, then a wait.

    | ms | 0-40 step | 0-10 load | 10-30 forward | 30-40 waiting | 40-50 |
    |---|---|---|---|---|---|
    | stream 7 | | copy 6-8 | gemm 12-20, add 20-22, fill 22-26 | | fill 45-46, in no region |
    | stream 20 | | | | all-reduce 24-34 | |
    """
    found: list[Record] = []
    for i in range(STEPS):
        t, c = 50 * i, 10 * i
        found += [Range("step", MAIN, t * MS, (t + 40) * MS), Range("load", MAIN, t * MS, (t + 10) * MS)]
        found += [Range("forward", MAIN, (t + 10) * MS, (t + 30) * MS)]
        found += [call(c + 1, t + 5, "cudaMemcpyAsync"), call(c + 2, t + 11), call(c + 3, t + 11), call(c + 4, t + 11)]
        found += [call(c + 5, t + 23), call(c + 6, t + 30, "cudaDeviceSynchronize", ms=4), call(c + 7, t + 44)]
        found += [operation(Kind.TRANSFER, t + 6, t + 8, COPY, c + 1, bytes=20 * MIB)]
        found += [operation(Kind.KERNEL, t + 12, t + 20, GEMM, c + 2, occupancy=0.5, blocks=2.0)]
        found += [operation(Kind.KERNEL, t + 20, t + 22, ADD, c + 3)]
        found += [operation(Kind.KERNEL, t + 22, t + 26, FILL, c + 4)]
        found += [operation(Kind.COMMUNICATION, t + 24, t + 34, REDUCE, c + 5, stream=20)]
        found += [operation(Kind.KERNEL, t + 45, t + 46, FILL, c + 7)]
        found += [
            Allocation((t + 12) * MS, MAIN, 0, 3 * MIB, 4 * MIB),
            Allocation((t + 25) * MS, MAIN, 0, -MIB, 3 * MIB),
        ]
    return found


def report(records: list[Record] | None = None, **more: Any) -> KernelReport:
    """Of `steps`, unless other records are given."""
    return report_of(steps() if records is None else records, source="a.json", **more)


def counted() -> list[Counted]:
    """Counters of another run, of the gemm and of nothing else."""
    return [Counted(GEMM, 0, {INSTRUCTIONS: 1000.0}) for _ in range(STEPS)]


def on_cpu() -> list[Record]:
    """A program without a GPU: one operator in a region, two outside."""
    return [
        Range("step", MAIN, 0, 10 * MS),
        Operator("aten::mm", MAIN, MS, 9 * MS),
        Operator("aten::relu", MAIN, 12 * MS, 13 * MS),
        Operator("aten::relu", MAIN, 14 * MS, 17 * MS),
    ]


def hostile() -> list[Record]:
    """Names that would like to break out of wherever they are put."""
    return [
        Range(EVIL, MAIN, 0, 10 * MS),
        Call(1, MS, MS + 5, MAIN, EVIL),
        operation(Kind.KERNEL, 2, 4, EVIL, 1, stream=EVIL),
        Allocation(3 * MS, MAIN, 0, MIB, MIB, source=EVIL),
    ]
