"""How often a gate on the cost of a token finds planted regressions, and how often it fails without one.

Every run serves the same requests. Each has iterations, a counter and readings with noise of their own, and goes
through the account. Whole runs also differ by a factor of the power, which stands for clocks and temperature.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import exp
from typing import Final

import numpy as np

from benchmarks.rows import Row
from gpu_profile.analysis import Outcome, parse_gate
from gpu_profile.analysis.costs import EngineCounters, RunCosts, compare_runs, costs_of
from gpu_profile.catalogue.samples import Interval
from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.serving.pricing.account import EngineAccount
from gpu_profile.serving.simulated import EnginePhysics, ServingRun, simulate
from gpu_profile.serving.work import RequestPhase, WorkQuantity

#: Standard deviations between whole runs, as shares: locked clocks, and two values for free ones. Assumptions.
SPREADS: Final = (0.005, 0.01, 0.02)
REGRESSIONS: Final = (0.0, 0.01, 0.02, 0.03, 0.05, 0.10)
RUNS: Final = (3, 5, 10)
#: Any significant increase, and ones beyond bounds. The costs of all requests have no half-width of prices.
GATES: Final = (
    "requests.energy/token > 0%", "decode.energy/token > 0%", "decode.energy/token > +2%", "decode.energy/token > +5%",
)  # fmt: skip
#: Runs that go through the account; trials draw among them.
_MEASURED: Final = 20
_NOISE: Final = 0.04
_PHYSICS: Final = EnginePhysics(MODELS["H200 SXM"])


@cache
def _run() -> ServingRun:
    return simulate(_PHYSICS, seconds=60.0, noise=0.0)


def measured(seed: int, factor: float = 1.0) -> RunCosts:
    """The costs of one run of the same requests, with noise of its own. `factor`: of all energy."""
    # The benchmark of the account imports this module.
    from benchmarks.serving_accounts import share_out

    run = _run()
    noise = 1 + _NOISE * np.random.default_rng(seed).standard_normal(len(run.joules))
    run = run._replace(joules=run.joules * noise * factor, idle_w=run.idle_w * factor)
    account = EngineAccount(lambda request: run.requests[request].tenant)
    share_out(account, run, run.readings(seed=seed), None)
    parts, phases = run.iterations.parts, {RequestPhase.PREFILL: "prefill", RequestPhase.DECODE: "decode"}
    before = EngineCounters("simulated")
    after = replace(
        before,
        energy_j={
            name: sum(uj for (_, each), uj in account.microjoules.items() if each == phase) / 1e6
            for phase, name in phases.items()
        },
        device_s={"": sum(account.device_s.values())},
        tokens={
            name: float(parts.work[parts.phase == phase, WorkQuantity.TOKENS].sum()) for phase, name in phases.items()
        },
        half_widths={name: account.phase_half_width(phase) or 0.0 for phase, name in phases.items()},
        unallocated_j={str(reason): uj / 1e6 for reason, uj in account.unallocated.items()},
        requests=float(len(run.requests)),
    )
    return costs_of(before, after, Interval(run.start_ns, int(run.iterations.ends[-1]), "host"))


def scaled(run: RunCosts, factor: float) -> RunCosts:
    """The run with all energies times a factor."""
    energies = {part: None if joules is None else joules * factor for part, joules in run.energy_j.items()}
    return replace(run, energy_j=energies)


def found(runs: Sequence[RunCosts], n: int, regression: float, spread: float, seed: int) -> list[bool]:
    """Whether each of the gates finds a regression in `n` runs of each side, and whether any row shows a change."""
    drawn = np.random.default_rng(seed)

    def side(factor: float) -> list[RunCosts]:
        chosen = drawn.integers(len(runs), size=n).tolist()
        return [scaled(runs[i], factor * exp(drawn.normal(0.0, spread))) for i in chosen]

    comparison = compare_runs(side(1.0), side(1.0 + regression))
    gates = [parse_gate(text) for text in GATES]
    intervals = [each.interval for each in comparison.differences if each.interval is not None]
    holds = [gate.judge(gate.find(comparison)) is Outcome.HOLDS for gate in gates]
    # All runs took the same time, to rounding.
    return [*holds, any(low > 1e-6 or high < -1e-6 for low, high in intervals)]


def rows(trials: int) -> Iterator[Row]:
    """The equality of costs with planted ones, and a row of the power curve for each spread and number of runs."""
    runs = [measured(seed) for seed in range(_MEASURED)]
    token_j = np.array([[run.token_j(part) for part in ("prefill", "decode")] for run in runs], float)
    planted = np.array([measured(0, 1.05).token_j(part) for part in ("prefill", "decode")], float)
    error = float(abs(planted / token_j[0] / 1.05 - 1).max())
    own = token_j.std(axis=0, ddof=1) / token_j.mean(axis=0)
    yield Row(
        "serving gate: 5 % more energy in the readings",
        f"{error:.2%} off in the cost of a token; the account's own spread: {own[0]:.2%} prefill, {own[1]:.2%} decode",
        reach="<=0.1 %", ok=error <= 1e-3, cost=error,
    )  # fmt: skip
    for spread in SPREADS:
        for n in RUNS:
            yield _power(runs, n, spread, trials)


def _power(runs: Sequence[RunCosts], n: int, spread: float, trials: int) -> Row:
    shares = np.array([
        np.mean([found(runs, n, regression, spread, seed) for seed in range(trials)], axis=0)
        for regression in REGRESSIONS
    ])  # fmt: skip
    curves = "; ".join(
        f"{text}: " + ", ".join(f"{r:.0%}: {share:.1%}" for r, share in zip(REGRESSIONS, column, strict=True))
        for text, column in zip((*GATES, "any change"), shares.T, strict=True)
    )
    false = float(shares[0, -1])
    return Row(
        f"serving gate: {n} runs a side that differ by {spread:.1%}", curves,
        reach="<=7.5 % of equal programs with any change", ok=false <= 0.075, cost=false,
    )  # fmt: skip
