from itertools import islice

import numpy as np
from benchmarks.serving_sweep import later_tenant

from gpu_profile.serving.simulated_load import TenantLoad
from gpu_profile.serving.sweep import LONGEST_ANSWER, sweep_steps


def test_all_kinds_of_work_vary_independently_within_some_seconds() -> None:
    steps = list(islice(sweep_steps(8192, 32), 40))
    logarithms = np.log(np.array(steps, float)).T
    assert abs(np.corrcoef(logarithms)[np.triu_indices(3, 1)]).max() < 0.5
    requests, prompts, answers = zip(*steps, strict=True)
    assert min(requests) == 1
    assert 24 < max(requests) <= 32
    assert min(prompts) < 32
    assert 4096 < max(prompts) <= 8192
    assert min(answers) == 1
    assert LONGEST_ANSWER / 2 < max(answers) <= LONGEST_ANSWER
    assert max(step.requests * step.prompt for step in steps) <= 2 * 8192


def test_the_smallest_sweep_has_single_short_requests() -> None:
    assert {(step.requests, step.prompt) for step in islice(sweep_steps(16, 1), 50)} == {(1, 16)}


def test_requests_of_another_kind_have_their_energy_after_a_sweep_and_without_one() -> None:
    usual, later = TenantLoad("a", 300, 40, 0.3, 0.3, 0.0, 1.0), TenantLoad("b", 16_000, 60, 0.3, 0.4, 0.0, 1.0)
    for seconds in (40.0, 0.0):
        both = later_tenant(usual, later, 1, swept_s=seconds, alone_s=40.0, both_s=12.0)
        assert both.answered
        assert abs(both.errors).max() < 0.03
