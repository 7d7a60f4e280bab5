"""A sampler that stalls again and again: the verdicts on regions of milliseconds are right, or there is none."""

import random
from collections.abc import Iterator

import pytest
from support.regions import Stage, Staged

from gpu_profile import region
from gpu_profile.driver.simulated import Work
from gpu_profile.regimes import Regime
from gpu_profile.units import NS_PER_S


def stalls(seed: int) -> Iterator[tuple[float, float]]:
    """Stalls of 50 to 500 ms for 7 s, each up to 100 ms after the last one: their start and end in s."""
    rng, end = random.Random(seed), 0.0  # noqa: S311
    while end < 7:
        start = end + rng.uniform(0, 0.1)
        end = start + rng.uniform(0.05, 0.5)
        yield start, end


def stall(stage: Stage, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sampler stall: it reads nothing meanwhile."""
    schedule, step = list(stalls(seed)), stage.session.sampler.step
    began_ns = stage.clock.now_ns()

    def stalling(*, force: bool = False) -> float:
        now = (stage.clock.now_ns() - began_ns) / NS_PER_S
        left = next((end - now for start, end in schedule if start <= now < end), None)
        return step(force=force) if left is None else left

    monkeypatch.setattr(stage.session.sampler, "step", stalling)


@pytest.mark.parametrize("seed", [100, 137, 144])
def test_products_are_not_taken_for_memory_bound_work_if_too_few_samples_show_the_tensor_cores(
    seed: int, staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, rng = staged(interval_s=0.02), random.Random(seed)  # noqa: S311
    stall(stage, 1000 + seed, monkeypatch)
    for _ in range(80):
        with region("load"):
            stage.run(rng.uniform(0.01, 0.03))
        with region("prefill"):
            stage.queue.launch(Work(flops=rng.uniform(8, 16) * 1e12, bytes=1e8))
        for _ in range(rng.randint(3, 6)):
            with region("decode"):
                stage.queue.launch(Work(flops=1e9, bytes=rng.uniform(20, 40) * 1e9))
        while stage.queue.pending_ns:
            stage.run(0.002)
    stage.run(0.3)
    stage.session.settle(final=True)
    found = {judged.summary.region: judged for judged in stage.session.joiner.regions()}
    right = {"load": Regime.HOST_BOUND, "decode": Regime.MEMORY_BOUND, "prefill": Regime.UNKNOWN}
    assert {name: judged.verdict.regime for name, judged in found.items()} == right
    # The few samples exclude active tensor cores in the one, and not in the other.
    evidence = {name: judged.summary.evidence for name, judged in found.items()}
    for name, low, high in (("decode", 0.0, 0.5), ("prefill", 0.7, 1.0)):
        assert evidence[name].basis == "coarse"
        assert low <= evidence[name].highest["tensor"] <= high
