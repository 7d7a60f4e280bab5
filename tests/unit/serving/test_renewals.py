import numpy as np
import pytest

from gpu_profile.history.timeline import Floats
from gpu_profile.serving.pricing.renewals import Renewals

MS = 1_000_000
EPOCH_NS = 1_700_000_000_000_000_000


def given(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """The times in ms and values that readings at times in ms get."""
    renewals = Renewals()
    some = [
        each
        for at, value in zip((times * MS).astype(np.int64).tolist(), values.astype(np.int64).tolist(), strict=True)
        for each in renewals.add(EPOCH_NS + at, value)
    ]
    times_ns, kept = zip(*some, strict=True)
    return (np.array(times_ns) - EPOCH_NS) / MS, np.array(kept, float)


def reads(seconds: float, every_ms: float, *, unsteady_ms: float = 2.0, seed: int = 1) -> Floats:
    drawn = np.random.default_rng(seed)
    n = int(seconds * 1000 / every_ms)
    result: Floats = np.arange(1, n + 1) * every_ms + drawn.uniform(-unsteady_ms, unsteady_ms, n)
    return result


@pytest.mark.parametrize("every_ms", [30.0, 100.0])
@pytest.mark.parametrize("period_ms", [105.0, 130.0, 170.3, 250.0])
def test_readings_of_a_slower_counter_get_the_times_of_its_renewals(period_ms: float, every_ms: float) -> None:
    """The time from a renewal to the first reading of its value is up to the time between two readings."""
    at = reads(200, every_ms)
    numbers = np.floor((at - 41.0) / period_ms)
    times, shown = given(at, numbers)
    assert len(set(shown.tolist())) == len(shown)
    assert len(shown) > 0.98 * len(set(numbers.tolist()))
    late = times - (41.0 + shown * period_ms)
    # Periods that stand in a ratio of small numbers leave a constant open.
    assert np.ptp(late[len(late) // 4 :]) < 2.0
    assert abs(late).max() < every_ms / 2


def test_reads_that_are_missed_lose_no_renewal() -> None:
    at = reads(200, 100.0)
    at = at[np.random.default_rng(2).uniform(size=len(at)) > 0.1]
    times, shown = given(at, np.floor((at - 41.0) / 105.0))
    late = abs(times - (41.0 + shown * 105.0))
    # At the very moment of a renewal, nothing shows which of two a reading after a missed one has.
    assert np.mean(late > 2.0) < 0.005


def test_a_counter_whose_clock_drifts_is_followed() -> None:
    """The period is 200 ppm longer at the end."""
    renewals = np.cumsum(np.full(6000, 105.0) * (1 + np.linspace(0, 2e-4, 6000)))
    at = reads(600, 100.0)
    numbers = np.searchsorted(renewals, at)
    times, shown = given(at, numbers.astype(float))
    late = times - np.concatenate(([0.0], renewals))[shown.astype(int)]
    assert abs(late[len(late) // 4 :]).max() < 5.0


@pytest.mark.parametrize("period_ms", [20.0, 0.0])
def test_readings_of_a_faster_counter_keep_their_times(period_ms: float) -> None:
    at = reads(60, 100.0)
    times, shown = given(at, np.floor(at / period_ms) if period_ms else at * 1000)
    assert times == pytest.approx(at, abs=1e-5)
    assert len(shown) == len(at)


def test_a_counter_that_is_hardly_slower_than_its_reader_is_followed_from_the_first_value_that_comes_twice() -> None:
    """The time from a renewal to its reading falls by 0.3 ms from reading to reading. After 32 s, it is 0."""
    at = reads(400, 100.0, unsteady_ms=0.3, seed=2)
    numbers = np.floor((at + 95.0) / 100.3)
    times, shown = given(at, numbers)
    assert (np.diff(times) > 0).all()
    assert (np.diff(shown) > 0).all()
    late = abs(times - (shown * 100.3 - 95.0))
    assert late[shown > 500].max() < 10.0
    assert late[shown > 1500].max() < 2.0


def test_values_that_repeat_at_random_keep_the_times_of_their_readings() -> None:
    at = reads(120, 100.0)
    values = np.cumsum(np.random.default_rng(3).uniform(size=len(at)) > 0.3)
    times, shown = given(at, values.astype(float))
    assert np.isin(times.round(3), at.round(3)).all()
    assert shown[-1] > 0.8 * values[-1]


def test_a_counter_that_stands_still_for_some_seconds_has_the_same_renewals_after_that() -> None:
    at = reads(120, 100.0)
    numbers = np.floor((at - 41.0) / 130.0)
    held = (at > 60_000) & (at < 64_000)
    numbers[held] = numbers[held][0]
    times, shown = given(at, numbers)
    after = shown > 64_500 / 130.0
    assert after.sum() > 0.9 * (120_000 - 64_500) / 130.0
    assert abs(times - (41.0 + shown * 130.0))[after].max() < 2.0
