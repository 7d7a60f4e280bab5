"""What a profiler's records say of executions, for the tests of what becomes of it."""

from __future__ import annotations

from gpu_profile.regimes.evidence import Evidence
from gpu_profile.regimes.kernel_work import KernelWork

GEMM, RELU, ALL_REDUCE = "ampere_sgemm_128x64_tn", "vectorized_elementwise_kernel", "ncclDevKernel_AllReduce"

#: 10 ms of its own, of which 6 wait for the host, and 2 of others: two long kernels, a short one, and a copy.
HUNGRY = KernelWork(
    evidence=Evidence(
        "kernels",
        {"busy": 0.35, "work": 0.3, "communication": 0.0, "transfer": 0.05, "host_wait": 0.6, "launch": 0.01}
        | {"other_wait": 0.05, "kernel_s": 0.001},
        4,
        1.0,
    ),
    kernels=3,
    kernel_ns=3_000_000,
    span_ns=12_000_000,
    busy_ns=3_500_000,
    others_ns=2_000_000,
    host_wait_ns=6_000_000,
    launch_ns=100_000,
    other_wait_ns=500_000,
    copies=1,
    copy_bytes=4_000_000,
    copy_ns=500_000,
    occupancy=0.5,
    backward=2,
    allocated_bytes=1_000,
    freed_bytes=400,
    peak_bytes=9_000,
    top=((GEMM, 2, 2_900_000), (RELU, 1, 100_000)),
)
#: 30 ms, of which 24 are communication that nothing hides.
TALKING = KernelWork(
    evidence=Evidence(
        "kernels",
        {"busy": 0.9, "work": 0.1, "communication": 0.8, "transfer": 0.0, "host_wait": 0.05, "launch": 0.05}
        | {"other_wait": 0.05, "kernel_s": 0.003},
        9,
        0.9,
    ),
    kernels=9,
    kernel_ns=27_000_000,
    span_ns=30_000_000,
    busy_ns=27_000_000,
    others_ns=0,
    host_wait_ns=1_500_000,
    launch_ns=1_500_000,
    other_wait_ns=1_500_000,
    communication_ns=25_000_000,
    overlap_ns=1_000_000,
    occupancy=0.25,
    peak_bytes=7_000,
    top=((ALL_REDUCE, 1, 25_000_000), (RELU, 8, 2_000_000)),
)
#: One that launched nothing.
NOTHING = KernelWork(evidence=Evidence("kernels", {}, 0, 0.0, reason="nothing was launched in it"))
