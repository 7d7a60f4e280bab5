import numpy as np
import pytest

from gpu_profile.history.timeline import Floats
from gpu_profile.serving.pricing.prices import DurationModel
from gpu_profile.serving.pricing.terms import DURATION, EACH, TERMS


def iterations(seed: int) -> Floats:
    values = np.zeros((500, TERMS))
    values[:, DURATION + 1 : DURATION + 4] = np.random.default_rng(seed).uniform(1, 2, (500, 3))
    return values


def test_other_durations_are_a_misfit_until_their_prices_are_learned() -> None:
    model, prices = DurationModel(), np.zeros(TERMS)
    prices[DURATION + 1 : DURATION + 4] = 0.004, 0.002, 0.001
    for seed in range(40):
        model.add(iterations(seed), iterations(seed) @ prices, np.ones(TERMS))
    assert model.misfit < 1e-6
    # Another language model, in which the terms have other shares too.
    later = prices * 0.5
    later[DURATION + 3] = 0.002
    misfits, unusual = [], []
    for seed in range(40, 90):
        model.add(iterations(seed), iterations(seed) @ later, np.ones(TERMS))
        misfits.append(model.misfit)
        unusual.append(model.unusual)
    assert max(misfits) > 0.25
    assert misfits[-1] < 0.05
    # Nearly learned prices are not usual yet.
    at = misfits.index(max(misfits))
    assert any(0.1 < misfit < 0.15 for misfit in misfits[at:])
    assert unusual[at:] == [misfit > 0.1 for misfit in misfits[at:]]
    assert iterations(0) @ model.prices == pytest.approx(iterations(0) @ later, rel=0.05)


def test_durations_of_work_that_was_never_seen_are_no_misfit() -> None:
    model, prices = DurationModel(), np.zeros(TERMS)
    prices[EACH : EACH + 4] = 0.004, 0.002, 0.001, 0.003
    for seed in range(10):
        model.add(iterations(seed), iterations(seed) @ prices, np.ones(TERMS))
    longer = iterations(10)
    longer[:, EACH + 3] = np.linspace(50, 60, len(longer))
    model.add(longer, longer @ prices, np.ones(TERMS))
    assert model.misfit < 1e-6
    model.add(longer, longer @ prices * 1.4, np.ones(TERMS))
    assert model.misfit > 0.1


def test_one_iteration_that_took_a_second_makes_durations_not_unusual() -> None:
    model, prices = DurationModel(), np.zeros(TERMS)
    prices[DURATION + 1 : DURATION + 4] = 0.004, 0.002, 0.001
    for seed in range(10):
        model.add(iterations(seed), iterations(seed) @ prices, np.ones(TERMS))
    seconds = iterations(10) @ prices
    seconds[250] = 1.5
    model.add(iterations(10), seconds, np.ones(TERMS))
    assert model.misfit < 0.01
    assert not model.unusual
