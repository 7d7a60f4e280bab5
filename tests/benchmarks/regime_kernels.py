"""Kernels of known physics, for any machine: products, streams, chases, spins, collectives and the rest."""

from __future__ import annotations

from typing import Final

from benchmarks.regime_machines import LaunchedKernel, Machine, Phase, blend, copy, execute, launches, wait

_SIZES: Final = {"bf16": 2, "fp8": 1, "int8": 1, "tf32": 4}
#: A tile of a product's result is read once from memory for this many rows, and from L2 for a quarter of them: 4096³ in
#: BF16 moves 175 MB on an H100 (0.25 of its bandwidth, tests/data/hardware/h100, `solo.gemm_bf16`).
_BLOCK: Final = 2048


def product(n: int, precision: str = "bf16", *, batch: int | None = None, sms: float = 1.0) -> LaunchedKernel:
    """A matrix product of n³, or of `batch` rows with n², on tensor cores. 8 warps of two consumer groups."""
    size = _SIZES[precision]
    m = batch or n
    flops = 2.0 * m * n * n
    moved = flops * size / _BLOCK + size * (n * n + m * n)
    return LaunchedKernel(
        {
            "tensor": flops,
            "dram": moved,
            "l2": flops * size / 512,
            "shared": flops * size / 96,
            "integer": flops / 40_000,
        },
        sms=sms,
        warps=8,
        flight=4096,
        reach=0.93,
        precision=precision,
    )


def vector_product(n: int, pipe: str = "fp32", *, reach: float = 0.9) -> LaunchedKernel:
    """A matrix product of n³ on the FP32, FP64 or FP16 lanes."""
    fma, size = float(n) ** 3, 8 if pipe == "fp64" else 4
    amounts = {pipe: fma, "dram": fma * size / 512, "l2": fma * size / 128, "integer": fma / 24}
    return LaunchedKernel({**amounts, "shared": fma * size / 32}, warps=8, flight=2048, ilp=8, reach=reach)


def integer(giga: float) -> LaunchedKernel:
    """Hashing: 10⁹ rounds of shifts, additions and exclusive-ors in registers, a few bytes of memory for each."""
    return LaunchedKernel({"integer": giga * 1e9, "dram": giga * 4e6, "l2": giga * 8e6}, warps=32, ilp=2)


def nbody(giga: float) -> LaunchedKernel:
    """10⁹ pair interactions of FP32: 10 FMAs, 1 integer operation, tiles in shared memory."""
    amounts = {"fp32": giga * 1e10, "integer": giga * 1e9, "shared": giga * 1e9 * 4, "dram": giga * 2e7}
    return LaunchedKernel(amounts, warps=32, ilp=4)


def stream(gigabytes: float, fma_per_byte: float = 0.125) -> LaunchedKernel:
    """Element-wise work: each byte once through DRAM and L2."""
    size = gigabytes * 1e9
    return LaunchedKernel(
        {"dram": size, "l2": size, "fp32": size * fma_per_byte, "integer": size * 0.3}, warps=52, flight=1024
    )


def stencil(gigabytes: float) -> LaunchedKernel:
    """A 27-point stencil in FP64: 3.4 FMAs for each byte of memory, reuse in shared memory."""
    size = gigabytes * 1e9
    amounts = {"dram": size, "l2": size * 1.15, "shared": size * 4, "fp64": size * 3.4, "integer": size * 1.2}
    return LaunchedKernel(amounts, warps=24, flight=1024, ilp=4)


def in_cache(gigabytes: float) -> LaunchedKernel:
    """A table within L2, read again and again: DRAM sees one part in a hundred."""
    size = gigabytes * 1e9
    return LaunchedKernel({"l2": size, "dram": size / 100, "integer": size * 0.2, "fp32": size * 0.1}, warps=48)


def in_shared(gigabytes: float) -> LaunchedKernel:
    """A bitonic sort within shared memory: loads, compares, barriers."""
    size = gigabytes * 1e9
    return LaunchedKernel({"shared": size, "dram": size / 200, "l2": size / 200, "integer": size * 0.06}, warps=32)


def special(giga: float, on: Machine) -> LaunchedKernel:
    """Transcendentals on the special-function units, 16 lanes of each multiprocessor, which no counter shows."""
    seconds = giga * 1e9 / (on.sms * 16 * on.clock_hz * 0.9)
    return LaunchedKernel({"fp32": giga * 2e9, "integer": giga * 3e8}, warps=32, chain_s=seconds)


def atomics(millions: float, on: Machine) -> LaunchedKernel:
    """Additions to one address: L2 does one in each of its clocks, everybody else waits."""
    seconds = millions * 1e6 / on.clock_hz
    return LaunchedKernel({"l2": millions * 32e6, "integer": millions * 4e6}, warps=48, chain_s=seconds)


def few_warps(gigabytes: float, warps: float, flight: float) -> LaunchedKernel:
    """Registers or shared memory leave room for few warps: too few bytes under way to fill the memory's pipe."""
    size = gigabytes * 1e9
    return LaunchedKernel(
        {"dram": size, "l2": size * 1.3, "fp32": size * 0.4, "integer": size * 0.3}, warps=warps, flight=flight
    )


def dependent(giga: float, warps: float = 4, pipe: str = "fp32") -> LaunchedKernel:
    """A recurrence: one FMA waits for the other, and too few warps hide it."""
    return LaunchedKernel({pipe: giga * 1e9, "integer": giga * 5e7, "dram": giga * 1e6}, warps=warps, ilp=1)


def chase(on: Machine, steps: int, *, where: str = "dram", warps: float = 1, sms: float = 1.0) -> LaunchedKernel:
    """Pointers followed by each lane: a sector of 32 bytes for each, and nothing else until it has come."""
    touched = steps * on.sms * sms * warps * 32 * 32.0
    latency = on.dram_latency_s * 1.4 if where == "dram" else on.l2_latency_s * 1.2
    amounts = {"l2": touched, "integer": touched / 32 * 3} | ({"dram": touched} if where == "dram" else {})
    return LaunchedKernel(amounts, sms=sms, warps=warps, flight=1024, chain_s=steps * latency)


def spin(on: Machine, seconds: float, *, sms: float, warps: float = 4) -> LaunchedKernel:
    """Waiting in a kernel: each warp reads a flag through L2, sleeps, compares, and reads again."""
    polls = seconds / 1.5e-6 * on.sms * sms * warps
    return LaunchedKernel({"l2": polls * 32, "integer": polls * 32 * 4}, sms=sms, warps=warps, chain_s=seconds)


def all_reduce(on: Machine, size: float) -> LaunchedKernel:
    """A ring over NVLink on 24 multiprocessors: each byte read, reduced and written."""
    link = {"nvlink_tx": size, "nvlink_rx": size, "dram": 2.5 * size, "l2": 3 * size, "fp16": size / 2}
    return LaunchedKernel({**link, "integer": size * 0.05}, sms=24 / on.sms, warps=17, flight=8192, reach=0.8)


def between_nodes(on: Machine, size: float, nic: float = 46e9) -> Phase:
    """A ring over InfiniBand with GPUDirect: the NIC reads and writes device memory over PCIe, 400 Gbit/s each way.

    NCCL's kernel waits and reduces on 16 multiprocessors."""
    seconds = size / nic
    link = {"pcie_tx": size, "pcie_rx": size, "dram": 3 * size, "l2": 3 * size}
    return execute(on, LaunchedKernel(link, sms=16 / on.sms, warps=17, flight=8192, chain_s=seconds))


def zero_copy(on: Machine, size: float) -> LaunchedKernel:
    """A kernel that reads pinned host memory itself: all its warps wait for PCIe."""
    amounts = {"pcie_rx": size, "l2": size, "fp32": size / 8, "integer": size * 0.3}
    return LaunchedKernel(amounts, warps=48, reach=on.pinned / on.pcie * 0.9)


def thrashing(on: Machine, size: float) -> LaunchedKernel:
    """Managed memory of twice the device's size: pages of 64 KiB fault in and others are evicted. Faults are assumed to
    allow a third of what a copy does in, and as much out."""
    seconds = size / (on.pinned * 0.32)
    moved = {"pcie_rx": size, "pcie_tx": size, "dram": 3 * size, "l2": 2 * size, "fp32": size / 4}
    return LaunchedKernel({**moved, "integer": size * 0.3}, warps=44, chain_s=seconds)


def tiny(on: Machine, blocks: int = 8) -> LaunchedKernel:
    """A few thousand elements: starting and ending is all that it does."""
    elements = blocks * 1024
    return LaunchedKernel(
        {"dram": elements * 8, "l2": elements * 8, "fp32": elements}, sms=min(1.0, blocks / on.sms) * 0.3
    )


def decode_step(on: Machine, parameters: float, batch: int, size: int = 2, context_bytes: float = 0.0) -> Phase:
    """A token for each sequence of a batch: every weight once from memory, and the context's keys and values."""
    flops = 2 * parameters * batch
    moved = parameters * size + context_bytes * batch
    return execute(
        on,
        LaunchedKernel(
            {"dram": moved, "tensor": flops, "l2": moved, "fp32": context_bytes * batch / 2, "integer": moved / 12},
            warps=20,
            flight=2048,
            reach=0.88,
            precision="bf16" if size == 2 else "fp8",
        ),
    )


def prefill(on: Machine, seconds: float, precision: str = "bf16") -> Phase:
    """Long prompts: products for most of the time, attention's softmax and element-wise work for the rest."""
    wide, between = execute(on, product(8192, precision)), execute(on, stream(0.2, 0.3))
    return blend(wide.over(0.84), between.over(0.13), wait(on, 0.03), seconds=seconds)


def training(on: Machine, seconds: float) -> Phase:
    """Forward and backward of a transformer: two thirds products, a fifth element-wise, gaps of a few µs."""
    wide, between = execute(on, product(4096)), execute(on, stream(0.2, 0.3))
    return blend(wide.over(0.74), between.over(0.22), wait(on, 0.04), seconds=seconds)


def pageable(on: Machine, size: float, way: str = "pcie_rx") -> Phase:
    """A copy of pageable memory."""
    return copy(on, size, way, pinned=False)


def eager(on: Machine, kernel: LaunchedKernel, seconds: float) -> Phase:
    """Launched one by one from Python, a call each 9 µs (recorded)."""
    return launches(on, kernel, 2 * on.issue_s, seconds)


def graph(on: Machine, kernel: LaunchedKernel, seconds: float) -> Phase:
    """The same kernels in a CUDA graph: the device starts one after the other."""
    return launches(on, kernel, 0.0, seconds)
