"""Workloads on published machines, with the physics of each and the verdicts that a performance engineer would accept.

They were written from the machines' models before anybody looked at what the rules say of them, and change for a better
source of their physics only. A verdict is accepted if it is true of what runs and leads to the right next step. UNKNOWN
is accepted where the sensors cannot decide; coarse sensors decide little, so there it is always accepted, and blame for
silence is a matter of the share of UNKNOWN.

A part with two thirds of a region's time may give the region its name. Below that, only a mixture is a right name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.regime_kernels import (
    all_reduce,
    atomics,
    between_nodes,
    chase,
    decode_step,
    dependent,
    eager,
    few_warps,
    graph,
    in_cache,
    in_shared,
    integer,
    nbody,
    pageable,
    prefill,
    product,
    special,
    spin,
    stencil,
    stream,
    thrashing,
    tiny,
    training,
    vector_product,
    zero_copy,
)
from benchmarks.regime_machines import (
    A100,
    H100,
    H200,
    L4,
    RTX4090,
    Machine,
    Phase,
    blend,
    copy,
    execute,
    sleep,
    video,
    wait,
)

#: Words for regimes that the library has no name for yet: a kernel that waits and does nothing, two unlike kernels in
#: one region, and the video engines. They take the library's names once it has some.
SPINNING: Final = "SPINNING"
MIXED: Final = "MIXED"
MEDIA: Final = "MEDIA_BOUND"
AWAITED: Final = frozenset({SPINNING, MIXED, MEDIA})
UNKNOWN: Final = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class PublishedWorkload:
    """What runs in a region, again and again: `phases` of constant rates. `accepted`: the right verdicts."""

    name: str
    kind: str
    machine: Machine
    phases: tuple[Phase, ...]
    accepted: frozenset[str]
    why: str
    limit_w: float

    def right(self, basis: str) -> frozenset[str]:
        """The right verdicts by evidence of a basis."""
        return self.accepted | {UNKNOWN} if basis == "coarse" else self.accepted


def _made(
    on: Machine, kind: str, name: str, accepted: str, why: str, *phases: Phase, limit_w: float | None = None
) -> PublishedWorkload:
    words = frozenset(accepted.split())
    return PublishedWorkload(f"{on.key} {name}", kind, on, phases, words, why, limit_w or on.limit_w)


def _compute(on: Machine) -> Iterator[PublishedWorkload]:
    run = "COMPUTE_BOUND"
    yield _made(
        on, "tensor", "bf16 product", run, "the tensor pipe is active in 93 % of cycles", execute(on, product(8192))
    )
    yield _made(
        on, "fp32", "n-body", run, "the FP32 lanes issue in 90 % of cycles, 1 byte for 500 FMAs", execute(on, nbody(10))
    )
    yield _made(on, "integer", "hashing", run, "the integer lanes issue in 90 % of cycles", execute(on, integer(50)))
    yield _made(
        on, "fp64", "fp64 product", run, "the FP64 lanes are active in 90 %", execute(on, vector_product(2048, "fp64"))
    )
    if "fp8" in on.tensor:
        yield _made(
            on, "tensor", "fp8 product", run, "the tensor pipe is active in 93 %", execute(on, product(8192, "fp8"))
        )
    yield _made(
        on, "capped", "bf16 product at 0.6 of the power limit", run,
        "the cap lowers the clock, and the pipe stays full at that clock",
        execute(on, product(8192), limit_w=max(0.6 * on.limit_w, on.idle_w + 10)), limit_w=0.6 * on.limit_w,
    )  # fmt: skip
    yield _made(
        on, "throttled", "bf16 product at half the clock by heat", run,
        "the pipe stays full at the clock that heat allows", execute(on, product(8192), hottest=0.5),
    )  # fmt: skip
    yield _made(
        on, "special functions", "transcendentals", f"{run} {UNKNOWN}",
        "a compute pipe is full, but no counter shows it", execute(on, special(5, on)),
    )  # fmt: skip


def _memory(on: Machine) -> Iterator[PublishedWorkload]:
    run = "MEMORY_BOUND"
    yield _made(on, "dram", "triad", run, "90 % of the bandwidth, next to no arithmetic", execute(on, stream(1.0)))
    yield _made(
        on, "decode", "decode of 7 B, one sequence", run, "each weight is read once for one FMA",
        blend(decode_step(on, 7e9, 1), wait(on, 2e-4)),
    )  # fmt: skip
    yield _made(
        on, "throttled", "triad at 0.7 of the clock by heat", run, "memory has a clock of its own",
        execute(on, stream(1.0), hottest=0.7),
    )  # fmt: skip
    yield _made(
        on, "l2", "table within L2", UNKNOWN, "L2's bandwidth is the limit, and no counter shows it: neither device "
        "memory nor latency", execute(on, in_cache(10)),
    )  # fmt: skip
    yield _made(
        on, "shared", "sort in shared memory", UNKNOWN, "shared memory's bandwidth limits, and no counter shows it",
        execute(on, in_shared(10)),
    )  # fmt: skip


def _latency(on: Machine) -> Iterator[PublishedWorkload]:
    run = "LATENCY_BOUND"
    why = "each access waits for the one before, the memory delivers little"
    yield _made(on, "latency", "pointer chase in memory", run, why, execute(on, chase(on, 20_000)))
    yield _made(
        on, "latency", "pointer chase in L2", f"{run} {UNKNOWN}", "as in memory, but from a level without a counter",
        execute(on, chase(on, 20_000, where="l2")),
    )  # fmt: skip
    yield _made(
        on, "occupancy", "gather with 255 registers", run, "4 warps have too few bytes under way",
        execute(on, few_warps(1.0, 4, 0.25 * on.dram * on.dram_latency_s / on.sms / 4)),
    )  # fmt: skip
    yield _made(
        on, "occupancy", "recurrence of 4 warps", f"{run} {UNKNOWN}",
        "an FMA waits 4 cycles for the one before, and nothing fills them", execute(on, dependent(10)),
    )  # fmt: skip
    yield _made(
        on, "atomics", "histogram with one hot bin", f"{run} {UNKNOWN}",
        "resident warps wait for their turn at one address", execute(on, atomics(10, on)),
    )  # fmt: skip


def _small(on: Machine) -> Iterator[PublishedWorkload]:
    run = "OVERHEAD_BOUND"
    yield _made(
        on, "tiny", "tiny kernels from Python", f"{run} HOST_BOUND", "a kernel of 2 µs each 9 µs: calls limit",
        eager(on, tiny(on), 1.0),
    )  # fmt: skip
    yield _made(
        on, "graph", "graph of tiny kernels", run, "2 µs of start and end for 8 blocks, back to back",
        graph(on, tiny(on), 1.0),
    )  # fmt: skip
    yield _made(
        on, "tiny", "small products from Python", f"{run} HOST_BOUND", "512³ takes less than the call that launches it",
        eager(on, product(512, sms=min(1.0, 32 / on.sms)), 1.0),
    )  # fmt: skip
    yield _made(
        on, "small grid", "one block for long", f"{run} LATENCY_BOUND {UNKNOWN}",
        "one multiprocessor computes, the others have no work",
        execute(on, chase(on, 50_000, where="l2", warps=8, sms=1 / on.sms)),
    )  # fmt: skip


def _host(on: Machine) -> Iterator[PublishedWorkload]:
    run = "HOST_BOUND"
    step = execute(on, product(4096))
    yield _made(
        on, "host", "training that waits for its loader", run, "the GPU waits for input in 70 % of the time",
        training(on, 0.09), wait(on, 0.21),
    )  # fmt: skip
    yield _made(
        on, "host", "products with a host step between", f"{run} COMPUTE_BOUND {MIXED} {UNKNOWN}",
        "45 % of the time nothing is queued, 55 % are products: either is worth work",
        step.over(0.011), wait(on, 0.009),
    )  # fmt: skip
    yield _made(
        on, "host", "a reading service with few requests", f"{run} IDLE", "work in 4 % of the time",
        step.over(0.02), wait(on, 0.48),
    )  # fmt: skip
    yield _made(on, "idle", "idle with a context", "IDLE", "nothing is queued", wait(on, 1.0))
    yield _made(on, "idle", "idle without a context", "IDLE", "no process uses the GPU", sleep(on))


def _transfers(on: Machine) -> Iterator[PublishedWorkload]:
    run = "TRANSFER_BOUND"
    yield _made(on, "pinned", "pinned copies in", run, "the link at its best, no kernel", copy(on, 1e9, "pcie_rx"))
    yield _made(on, "pinned", "pinned copies out", run, "the link at its best", copy(on, 1e9, "pcie_tx"))
    yield _made(
        on, "pageable", "pageable copies in", run, "copies all the time, staged by a host thread: pin the memory",
        pageable(on, 1e9),
    )  # fmt: skip
    yield _made(
        on, "pageable", "pageable copies and a product", run, "copies take 80 % of the time, the product 20 %",
        pageable(on, 2.5e8), execute(on, product(4096)).over(2.5e8 / on.pageable / 4),
    )  # fmt: skip
    yield _made(
        on, "zero-copy", "kernel reads host memory", run, "all warps wait for the link, which is full",
        execute(on, zero_copy(on, 1e9)),
    )  # fmt: skip
    yield _made(
        on, "uvm", "managed memory thrashes", run, "pages move both ways all the time, warps wait for them",
        execute(on, thrashing(on, 1e9)),
    )  # fmt: skip


def _waits(on: Machine) -> Iterator[PublishedWorkload]:
    waiting = f"{SPINNING} {UNKNOWN}"
    yield _made(
        on, "spinning", "persistent kernel waits for requests", f"{waiting} HOST_BOUND",
        "all multiprocessors poll a queue that stays empty", execute(on, spin(on, 1.0, sms=1.0, warps=8)),
    )  # fmt: skip
    yield _made(
        on, "spinning", "a lock that nobody releases", waiting, "one block polls, nothing else runs",
        execute(on, spin(on, 1.0, sms=1 / on.sms)),
    )  # fmt: skip
    yield _made(
        on, "spinning", "collective whose peer is gone", f"{waiting} COMMUNICATION_BOUND",
        "NCCL's kernel polls for data that never come", execute(on, spin(on, 1.0, sms=min(1, 24 / on.sms), warps=17)),
    )  # fmt: skip


def _collectives(on: Machine) -> Iterator[PublishedWorkload]:
    run = "COMMUNICATION_BOUND"
    ring, far = execute(on, all_reduce(on, 1e9)), between_nodes(on, 1e9, min(46e9, 0.73 * on.pcie))
    waits = execute(on, spin(on, 1.0, sms=24 / on.sms, warps=17))
    yield _made(on, "nccl", "all-reduce in the node", run, "NVLink at 80 % all the time", ring)
    yield _made(
        on, "nccl", "all-reduce between nodes", f"{run} TRANSFER_BOUND",
        "the NIC moves bytes both ways over PCIe all the time, NVLink is silent", far,
    )  # fmt: skip
    yield _made(
        on, "nccl", "training, all-reduce exposed in the node", run, "NVLink takes 70 % of each step",
        training(on, 0.03), ring.over(0.07),
    )  # fmt: skip
    yield _made(
        on, "nccl", "training, all-reduce exposed between nodes", f"{run} TRANSFER_BOUND",
        "the NIC's traffic takes 70 % of each step", training(on, 0.06), far.over(0.14),
    )  # fmt: skip
    yield _made(
        on, "straggler", "training that waits for a straggler", f"{run} {SPINNING} {MIXED} {UNKNOWN}",
        "70 % of each step, NCCL's kernel waits for the slowest rank: 'batch more' would not help",
        training(on, 0.15), waits.over(0.35),
    )  # fmt: skip
    yield _made(
        on, "nccl", "training, all-reduce of a tenth", "COMPUTE_BOUND", "products take most, NVLink a tenth",
        training(on, 0.18), ring.over(0.02),
    )  # fmt: skip


def _models(on: Machine) -> Iterator[PublishedWorkload]:
    yield _made(on, "prefill", "prefill of long prompts", "COMPUTE_BOUND", "products on 84 % of time", prefill(on, 1.0))
    yield _made(
        on, "decode", "decode of 64 sequences", "MEMORY_BOUND", "weights and caches, 88 % of the bandwidth",
        blend(decode_step(on, 7e9, 64, context_bytes=5e7), wait(on, 3e-4)),
    )  # fmt: skip
    yield _made(
        on, "decode", "decode of a small model from Python", "OVERHEAD_BOUND HOST_BOUND",
        "each layer's kernels take less than the calls that launch them", eager(on, stream(1e-3), 1.0),
    )  # fmt: skip
    yield _made(
        on, "mixture", "prefill and decode by turns", f"{MIXED} {UNKNOWN}",
        "half of the time products, half of the time weights: neither names the region",
        prefill(on, 0.02), decode_step(on, 7e9, 8).over(0.02),
    )  # fmt: skip
    yield _made(
        on, "mixture", "products and triads by turns", f"{MIXED} {UNKNOWN}", "unlike kernels, half of the time each",
        execute(on, product(4096)).over(0.004), execute(on, stream(0.5)).over(0.004),
    )  # fmt: skip
    yield _made(
        on, "mixture", "mostly products, some triads", f"COMPUTE_BOUND {MIXED}", "four fifths of the time are products",
        execute(on, product(4096)).over(0.008), execute(on, stream(0.5)).over(0.002),
    )  # fmt: skip


def _hopper(on: Machine) -> Iterator[PublishedWorkload]:
    """What only makes a difference with counters, or happens on large nodes."""
    compute, memory = execute(on, product(4096)), execute(on, stream(0.5))
    yield _made(
        on, "stencil", "fp64 stencil at the ridge", "BALANCED COMPUTE_BOUND MEMORY_BOUND",
        "both the FP64 pipe and the memory are near their ceilings", execute(on, stencil(1.0)),
    )  # fmt: skip
    yield _made(
        on, "mixture", "chase and n-body by turns", f"{MIXED} {UNKNOWN}", "half of the time latency, half FP32",
        execute(on, chase(on, 100)).over(0.004), execute(on, nbody(0.1)).over(0.004),
    )  # fmt: skip
    yield _made(
        on, "mixture", "triads and integer by turns of seconds", f"{MIXED} {UNKNOWN}",
        "unlike kernels, each for longer than a window", memory.over(0.8), execute(on, integer(5)).over(0.8),
    )  # fmt: skip
    yield _made(
        on, "mps", "own host-bound work beside a neighbour's triads", f"MEMORY_BOUND {UNKNOWN}",
        "counters are the device's: its memory is full, whoever fills it", memory.over(0.09), compute.over(0.01),
    )  # fmt: skip
    yield _made(
        on, "mps", "own chase beside a neighbour's products", f"COMPUTE_BOUND {UNKNOWN}",
        "the device's tensor pipe is nearly full, whoever fills it", compute.over(0.095), wait(on, 0.005),
    )  # fmt: skip
    yield _made(
        on, "mps", "four neighbours with tiny kernels", f"OVERHEAD_BOUND HOST_BOUND {UNKNOWN}",
        "four hosts launch, and the GPU is still hardly filled", blend(*[eager(on, tiny(on, 32), 1.0)] * 4),
    )  # fmt: skip
    yield _made(
        on, "graph", "graph of small kernels on all multiprocessors", "OVERHEAD_BOUND",
        "200 blocks of a µs each: starts and ends take most of the time", graph(on, tiny(on, 200), 1.0),
    )  # fmt: skip
    part = on.sliced(16, 1 / 8, "1g.10gb")
    yield _made(
        part, "mig", "product", "COMPUTE_BOUND", "the slice's tensor pipe is full", execute(part, product(4096))
    )
    yield _made(part, "mig", "triad", "MEMORY_BOUND", "the slice's bandwidth is full", execute(part, stream(0.1)))
    yield _made(
        part, "mig", "waits for its loader", "HOST_BOUND", "nothing queued for 75 % of the time",
        execute(part, product(4096)).over(0.05), wait(part, 0.15),
    )  # fmt: skip
    yield _made(
        part, "mig", "tiny kernels", "OVERHEAD_BOUND HOST_BOUND", "2 µs each 9 µs", eager(part, tiny(part), 1.0)
    )


def _video(on: Machine) -> Iterator[PublishedWorkload]:
    why = "the decoder is full; kernels do next to nothing"
    yield _made(on, "video", "decoding", f"{MEDIA} {UNKNOWN}", why, video(on, decoded=0.97 * on.decoders))
    if on.encoders:
        yield _made(
            on, "video", "transcoding", f"{MEDIA} {UNKNOWN}", "the encoder is full, and frames are copied",
            video(on, decoded=0.5 * on.encoders, encoded=0.96 * on.encoders),
        )  # fmt: skip


def workloads() -> tuple[PublishedWorkload, ...]:
    """All of them: every kind on the machine with counters, and what differs on the others."""
    made: list[PublishedWorkload] = []
    for part in (
        _compute, _memory, _latency, _small, _host, _transfers, _waits, _collectives, _models, _hopper, _video
    ):  # fmt: skip
        made += part(H100)
    for on, parts in (
        (H200, (_compute, _small, _waits, _models)),
        (A100, (_compute, _memory, _latency, _small, _host, _transfers, _waits, _collectives)),
        (RTX4090, (_compute, _memory, _small, _transfers, _models, _video)),
        (L4, (_compute, _memory, _host, _waits, _models, _video)),
    ):
        for each in parts:
            made += each(on)
    return tuple(made)
