"""Feeds an account with a simulated run, as its data arrive."""

from typing import Any, Final

import numpy as np

from gpu_profile.catalogue import SIGNALS
from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.serving.pricing.account import EngineAccount
from gpu_profile.serving.pricing.sharing import Unallocated
from gpu_profile.serving.pricing.windows import CounterReadings
from gpu_profile.serving.simulated import ServingRun
from gpu_profile.serving.work import Iterations
from gpu_profile_exporter.serving.energy import EnergySum

_BATCH_NS: Final = 5_000_000_000
_ENERGY: Final = SIGNALS.index(ENERGY)


def take(energy: EnergySum, times: Ints, joules: Floats) -> None:
    """Pass readings of the counter of the GPU "gpu" on, as the exporter does."""
    quanta = np.rint(joules / ENERGY.quantum).astype(np.int64)
    numbers = np.full(len(times), _ENERGY)
    energy.take("gpu", np.column_stack((numbers, times, times, quanta)).ravel().tolist())


def passed_on(readings: CounterReadings) -> CounterReadings:
    """The readings that the exporter passes on to the account."""
    energy = EnergySum(["gpu"], renewals=True)
    take(energy, *readings)
    times, joules, _ = energy.readings()
    return CounterReadings(times, joules)


def share_out(
    account: EngineAccount, run: ServingRun, readings: CounterReadings, lost: Iterations | None, *, spans: bool = False
) -> None:
    """Feed an account as its data arrive: iterations and readings of 5 s at a time. `lost` are iterations that never
    arrive. `spans`: the tokens of requests arrive with their ends."""
    iterations, at, read = run.iterations, 0, 0
    ends = _ends(run) if spans else []
    gone = set() if lost is None else set(lost.starts.tolist())
    for until_ns in range(run.start_ns + _BATCH_NS, int(iterations.ends[-1]) + _BATCH_NS, _BATCH_NS):
        to = int(np.searchsorted(iterations.ends, until_ns, side="right"))
        to_read = int(np.searchsorted(readings.times, until_ns, side="right"))
        some = iterations.cut(at, to)
        if gone:
            kept = np.array([start not in gone for start in some.starts.tolist()], bool)
            for start, end in zip(some.starts[~kept].tolist(), some.ends[~kept].tolist(), strict=True):
                account.spoil(start, end, Unallocated.LOST)
            some = where(some, kept)
        account.take(some)
        account.read(CounterReadings(readings.times[read:to_read], readings.joules[read:to_read]))
        complete_ns = int(iterations.ends[to - 1]) if to else run.start_ns
        account.settle(complete_ns)
        while ends and ends[-1][0] < account.shared_until_ns:
            _, number, tokens, first_ns = ends.pop()
            account.ended(number, tokens, first_ns)
        at, read = to, to_read


def where(some: Iterations, kept: Any) -> Iterations:
    rows = kept[some.parts.iteration]
    place = np.cumsum(kept) - 1
    parts = some.parts._replace(
        iteration=place[some.parts.iteration][rows], request=some.parts.request[rows], phase=some.parts.phase[rows],
        work=some.parts.work[rows],
    )  # fmt: skip
    return Iterations(some.starts[kept], some.ends[kept], some.work[kept], parts)


def _ends(run: ServingRun) -> list[tuple[int, int, tuple[int, int], int]]:
    """The requests that ended, latest first: the end in ns, the number, the tokens by phase, and the start in ns."""
    parts, starts, ends = run.iterations.parts, run.iterations.starts, run.iterations.ends
    first_ns, last_ns = np.full(len(run.requests), starts[-1]), np.zeros(len(run.requests), np.int64)
    np.minimum.at(first_ns, parts.request, starts[parts.iteration])
    np.maximum.at(last_ns, parts.request, ends[parts.iteration])
    numbered = enumerate(zip(run.requests, first_ns.tolist(), last_ns.tolist(), strict=True))
    some = [
        (end_ns, number, (request.prompt - request.cached, request.output - 1), start_ns)
        for number, (request, start_ns, end_ns) in numbered
        if request.end_s == request.end_s
    ]
    return sorted(some, reverse=True)
