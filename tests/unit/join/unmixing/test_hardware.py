"""Six kernels of an H200 told apart by the driver's own power samples: see `tests/data/hardware/h200/README.md`.

Truth is what each kernel drew alone, by the energy counter. Products of matrices draw more in bursts than the 700 W
that the board holds them to when they run alone: theirs has no truth here.
"""

from functools import cache

import pytest
from support.hardware import KERNELS, pool_of

from gpu_profile.catalogue.signals import ENERGY, POWER
from gpu_profile.join.unmixing.pools.pooled import Pooled

ALONE_W = {"copy": 571.0, "reduce": 560.0, "gather": 266.0}
#: A board is warmer in one program than in another.
WARMTH = 0.04


@cache
def told(part: str) -> dict[str, Pooled]:
    pool = pool_of(part)
    assert pool.unexpected == []
    return {kernel: pool.pooled(kernel) for kernel in KERNELS}


def answered(part: str, signal: object) -> int:
    return sum(not pooled.rates[signal].reason for pooled in told(part).values())  # type: ignore[index]


def test_in_random_order_they_are_narrower_than_the_counter_and_right() -> None:
    assert answered("random", POWER) == len(KERNELS)
    narrower = [pooled.energy_source is POWER for pooled in told("random").values()]
    assert sum(narrower) >= 4
    for kernel, watts in ALONE_W.items():
        rate = told("random")[kernel].rates[POWER]
        assert rate.half_width <= 20
        assert abs(rate.value - watts) <= rate.half_width + WARMTH * watts, kernel


@pytest.mark.parametrize(("part", "by_counter", "by_samples"), [("fixed", 0, 5), ("locked", 0, 3), ("starved", 5, 6)])
def test_they_answer_where_the_counter_has_too_few_readings(part: str, by_counter: int, by_samples: int) -> None:
    assert answered(part, ENERGY) <= by_counter
    assert answered(part, POWER) >= by_samples
    for kernel, watts in ALONE_W.items():
        rate = told(part)[kernel].rates[POWER]
        if not rate.reason:
            assert abs(rate.value - watts) <= 2 * rate.half_width + WARMTH * watts, kernel
