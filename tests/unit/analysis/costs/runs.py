"""Counters of an engine, and runs with made-up costs."""

from dataclasses import replace
from typing import Any

from gpu_profile.analysis.costs import EngineCounters, RunCosts, costs_of
from gpu_profile.catalogue.samples import Interval
from gpu_profile.units import NS_PER_S

DURING = Interval(0, 60 * NS_PER_S)
BEFORE = EngineCounters(
    "e", {"prefill": 100.0, "decode": 50.0}, {"prefill": 1.0, "decode": 2.0}, {"prefill": 1000.0, "decode": 100.0},
    {"prefill": 0.01, "decode": 0.01}, {"idle": 500.0, "unexplained": 3.0}, 10.0,
)  # fmt: skip


def after(**changes: Any) -> EngineCounters:
    """The counters after 100 requests of 1,000 tokens in prefill and 100 in decode: 200 J and 800 J."""
    grown = replace(
        BEFORE,
        energy_j={"prefill": 300.0, "decode": 850.0},
        device_s={"prefill": 5.0, "decode": 18.0},
        tokens={"prefill": 101_000.0, "decode": 10_100.0},
        half_widths={"prefill": 0.02, "decode": 0.01},
        unallocated_j={"idle": 700.0, "unexplained": 3.0},
        requests=110.0,
    )
    return replace(grown, **changes)


def run(factor: float = 1.0, **changes: Any) -> RunCosts:
    """The costs between the two, times a factor."""
    costs = costs_of(BEFORE, after(), DURING)
    energies = {part: joules * factor for part, joules in costs.energy_j.items() if joules is not None}
    return replace(costs, energy_j=energies, **changes)
