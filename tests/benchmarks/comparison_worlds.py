"""Pairs of recordings of one made-up program, which differ as runs of one program do, and in nothing else. Seeded.

Each run of a program has a speed and a power of its own (clocks, temperature, placement), and so has each region in
it. Within a run executions are autocorrelated, have heavy tails, and start with a warm-up.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from gpu_profile.analysis import Comparison, analyse, compare
from gpu_profile.catalogue.samples import Device
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS
from gpu_profile.history.timeline import Floats
from gpu_profile.recording import Columns, ProcessInfo, Recording, SpanRecord

MS: Final = 1_000_000
T0: Final = 1_767_225_600_000_000_000
GPU: Final = Device("GPU-a", index=0, name="NVIDIA H200")
#: The region that a real change is made in.
CHANGED: Final = "decode"
REGIONS: Final = ("load", "encode", CHANGED, "store")
#: Renewal of the energy counter and of activity.
_STEP: Final = 100 * MS


@dataclass(frozen=True, slots=True)
class Program:
    """How one program behaves; standard deviations are of logarithms, so 0.1 is about 10 %.

    `spread` is of an execution, heavy tails come from Student's t with `tail` degrees of freedom. `memory` is the
    correlation of neighbouring executions. `warm_up` is how much longer the first execution takes, as a share.
    `run_shift` and `region_shift` are of a run as a whole and of each region in it.
    """

    calls: int
    mean_ms: tuple[float, ...]
    watts: tuple[float, ...]
    busy: tuple[float, ...]
    spread: float
    tail: float
    memory: float
    warm_up: float
    run_shift: float
    region_shift: float
    items: bool

    @staticmethod
    def draw(rng: np.random.Generator, calls: int | None = None, *, most: int = 200) -> "Program":
        """A program, with `calls` executions of each region or 8 to `most`."""
        return Program(
            calls=calls or int(np.exp(rng.uniform(np.log(8), np.log(most)))),
            mean_ms=tuple(np.exp(rng.uniform(np.log(5), np.log(300), len(REGIONS)))),
            watts=tuple(rng.uniform(90, 650, len(REGIONS))),
            busy=tuple(rng.uniform(0.05, 0.98, len(REGIONS))),
            spread=float(rng.choice([0.02, 0.05, 0.1, 0.3])),
            tail=float(rng.choice([2.5, 4.0, 1000.0])),
            memory=float(rng.choice([0.0, 0.5, 0.9])),
            warm_up=float(rng.choice([0.0, 0.5, 2.0])),
            run_shift=0.01,
            region_shift=0.01,
            items=bool(rng.integers(2)),
        )


def recording(program: Program, rng: np.random.Generator, *, slower: float = 1.0) -> Recording:
    """One run; executions of `CHANGED` take `slower` times as long."""
    calls, count = program.calls, len(REGIONS)
    noise = _noise(program, rng)
    shift = rng.normal(0, program.run_shift) + rng.normal(0, program.region_shift, count)
    warm = np.log1p(program.warm_up * np.exp(-np.arange(calls) / 3.0))
    lengths = np.array(program.mean_ms) * np.exp(noise + shift + warm[:, None])
    lengths[:, REGIONS.index(CHANGED)] *= slower
    pauses = rng.exponential(1.0, (calls, count))
    steps = np.rint(np.stack((pauses, lengths), axis=2).ravel() * MS).astype(np.int64)
    edges = np.concatenate(([0], np.cumsum(steps)))
    starts, ends = T0 + edges[1::2], T0 + edges[2::2]
    items = 1.0 if program.items else None
    spans = tuple(
        SpanRecord(REGIONS[i % count], a, b, span_id=f"{i + 1:x}", items=items, failed=False)
        for i, (a, b) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
    )
    gain = np.exp(rng.normal(0, program.run_shift))
    power = np.array(program.watts) * gain
    stamps = np.arange(0, int(edges[-1]) + _STEP, _STEP) + int(rng.integers(_STEP))

    def integral(idle: float, each: Floats) -> Floats:
        rates = np.column_stack((np.full(calls * count, idle), np.tile(each, calls))).ravel()
        found: Floats = np.interp(stamps, edges, np.concatenate(([0.0], np.cumsum(rates * steps))))
        return found

    joules = integral(90.0, power) / 1e9
    shares = np.diff(integral(0.0, np.array(program.busy))) / _STEP
    at = T0 + stamps
    columns = {
        ENERGY.key: Columns(at, at, np.array([ENERGY.quanta(value) for value in joules.tolist()], np.int64)),
        GRAPHICS.key: Columns(
            at[:-1], at[1:], np.array([GRAPHICS.quanta(value) for value in shares.tolist()], np.int64)
        ),
    }
    process = ProcessInfo("0.1.0", "node-a", 42, T0, "nvml", "580.1", T0 + int(edges[-1]))
    return Recording((process,), (GPU,), {GPU.uuid: columns}, spans, (), ())


def _noise(program: Program, rng: np.random.Generator) -> Floats:
    """Logarithms, by execution and region: a first-order autoregressive process."""
    shape = (program.calls, len(REGIONS))
    shocks = rng.standard_t(program.tail, shape) / np.sqrt(program.tail / (program.tail - 2))
    found = np.empty(shape)
    found[0] = shocks[0]
    for i in range(1, program.calls):
        found[i] = program.memory * found[i - 1] + np.sqrt(1 - program.memory**2) * shocks[i]
    return np.clip(found, -6, 6) * program.spread


def pair(seed: int, *, slower: float = 1.0, program: Program | None = None, most: int = 200) -> Comparison:
    """Two runs of one program, compared; in the second, executions of `CHANGED` take `slower` times as long."""
    rng = np.random.default_rng(seed)
    program = program or Program.draw(rng, most=most)
    a, b = recording(program, rng), recording(program, rng, slower=slower)
    return compare(analyse(a), analyse(b))


def different(comparison: Comparison) -> list[tuple[str, str]]:
    """Region and quantity of each difference that is shown."""
    return [
        (found.region, found.quantity)
        for found in comparison.differences
        if found.interval is not None and (found.interval[0] > 0 or found.interval[1] < 0)
    ]
