"""Verdicts on random workloads whose regime follows from their physics; `make bench ONLY=heart` judges more of them."""

import numpy as np
import pytest
from benchmarks.regime_worlds import TIE, Case, Kernel, Workload, case, draw

from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.regimes import Regime
from gpu_profile.regimes.evidence import Basis

SAMPLE = 36


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [case(seed, family=1) for seed in range(SAMPLE)]


def of(cases: list[Case], basis: Basis) -> list[Case]:
    return [c for c in cases if c.verdict.basis == basis]


def answered(cases: list[Case]) -> list[Case]:
    return [c for c in cases if c.verdict.regime is not Regime.UNKNOWN]


def test_with_counters_19_of_20_answers_are_right_and_9_of_10_workloads_are_answered(cases: list[Case]) -> None:
    counters = of(cases, "counters")
    said = answered(counters)
    wrong = [(c.seed, str(c.label), str(c.verdict.regime)) for c in said if not c.right]
    assert len(counters) > SAMPLE / 3
    assert len(said) >= 0.9 * len(counters)
    assert len(wrong) <= 0.05 * len(said), wrong


def test_answers_that_are_sure_are_right(cases: list[Case]) -> None:
    sure = [c for c in answered(cases) if c.verdict.confidence >= 0.7]
    assert len(sure) > SAMPLE / 5
    assert not [c.seed for c in sure if not c.right]


def test_without_counters_only_waits_and_copies_are_sure(cases: list[Case]) -> None:
    coarse = of(cases, "coarse")
    assert len(coarse) > SAMPLE / 5
    plain = {Regime.IDLE, Regime.HOST_BOUND, Regime.TRANSFER_BOUND}
    assert {c.verdict.regime for c in coarse if c.verdict.confidence >= 0.7} <= plain


#: They take more than kernels, copies, exchanges and waits.
BEYOND = {Regime.UNKNOWN, Regime.SPINNING, Regime.MIXED, Regime.MEDIA_BOUND}


def test_the_sample_holds_every_regime_of_kernels_and_waits() -> None:
    seen: set[Regime] = set()
    for seed in range(300):
        seen |= draw(np.random.default_rng(seed)).strict
    assert seen == set(Regime) - BEYOND


def workload(**times: float) -> Workload:
    one = Kernel(1e-3, 0.0, 1e9, "bf16", 1.0, Regime.MEMORY_BOUND)
    return Workload(MODELS["H200 SXM"], 1.0, (one,), (1.0,), **times)  # type: ignore[arg-type]


def test_the_truth_is_what_takes_longest() -> None:
    assert workload(kernels_s=0.4, wait_s=0.3).truth == {Regime.MEMORY_BOUND}
    assert workload(kernels_s=0.4, wait_s=0.5).truth == {Regime.HOST_BOUND}
    assert workload(kernels_s=0.4, wait_s=0.1, copy_s=0.6).truth == {Regime.TRANSFER_BOUND}
    assert workload(kernels_s=0.4, wait_s=0.1, exchange_s=0.6).truth == {Regime.COMMUNICATION_BOUND}
    assert workload(kernels_s=0.4, wait_s=0.0, gap_s=2e-3).truth == {Regime.OVERHEAD_BOUND}


def test_what_ties_with_the_longest_is_true_as_well() -> None:
    assert workload(kernels_s=1.0, wait_s=1.0 - TIE / 2).truth == {Regime.MEMORY_BOUND, Regime.HOST_BOUND}
