import numpy as np
import pytest

from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.history.timeline import Floats
from gpu_profile.serving.pricing.terms import LEAST_TERMS, scales_of, values_of
from gpu_profile.serving.pricing.windows import CounterReadings, CumulativeTerms, lag_of, rows
from gpu_profile.serving.simulated import EnginePhysics, simulate


def terms_and_readings() -> tuple[CumulativeTerms, CounterReadings]:
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), seconds=20, seed=3)
    iterations = run.iterations
    values = values_of(iterations.seconds, iterations.work) / scales_of(iterations.work)
    return CumulativeTerms.of(iterations.starts, iterations.ends, values), run.readings(late_s=0.033)


def residual(shares: Floats, joules: Floats) -> float:
    return float(((joules - shares @ np.linalg.lstsq(shares, joules, rcond=None)[0]) ** 2).sum())


@pytest.mark.parametrize("every", [1, 7])
def test_the_lag_is_that_of_the_least_residual_of_each_lag_on_its_own(every: int) -> None:
    cumulative, readings = terms_and_readings()
    good = np.arange(len(readings.times) - 1) % every == 0
    lag = lag_of(readings, cumulative, good)
    assert lag is not None
    least = cumulative._replace(sums=cumulative.sums[:, :LEAST_TERMS])
    scores = {}
    for lag_ns in (lag.ns, *lag.others, *range(-50_000_000, 1_000_000_001, 50_000_000)):
        shares, joules = rows(readings, lag_ns, least)
        scores[lag_ns] = residual(shares[good], joules[good])
    assert min(scores, key=scores.__getitem__) == lag.ns
    assert lag.ns == pytest.approx(33e6, abs=4e6)


def test_a_search_near_the_last_lag_has_its_answer_and_one_beside_it_looks_everywhere() -> None:
    cumulative, readings = terms_and_readings()
    good = np.ones(len(readings.times) - 1, bool)
    whole = lag_of(readings, cumulative, good)
    assert whole is not None
    assert 2 < len(whole.near) < 30
    assert lag_of(readings, cumulative, good, whole.near) == whole
    assert lag_of(readings, cumulative, good, range(50_000_000, 90_000_001, 10_000_000)) == whole
