from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from unit.analysis.costs.runs import BEFORE

from gpu_profile.analysis.costs import EngineCounters
from gpu_profile.cli.meters import settled
from gpu_profile.errors import UsageError
from gpu_profile.testing import FakeClock

COUNTERS = replace(BEFORE, waiting=4)


def reading(scrapes: list[EngineCounters | str]) -> Callable[[], EngineCounters]:
    """Gives the scrapes in turn, the last one with more and more idle energy. A text is an error."""
    idle = 0.0

    def each() -> Iterator[EngineCounters | str]:
        yield from scrapes
        while True:
            yield scrapes[-1]

    following = each()

    def read() -> EngineCounters:
        nonlocal idle
        now, idle = next(following), idle + 1.0
        if isinstance(now, str):
            raise UsageError(now)
        return replace(now, unallocated_j={"idle": idle, "unexplained": 3 + idle / 1e6} if now.unallocated_j else {})

    return read


REST = replace(COUNTERS, waiting=0)


def test_counters_are_settled_after_they_rest_and_nothing_waits() -> None:
    clock = FakeClock()
    more = replace(REST, energy_j={"prefill": 20, "decode": 50})
    now = settled(reading([COUNTERS, COUNTERS, REST, "no answer", more]), clock, 60)
    assert (now.energy_j, now.waiting) == (more.energy_j, 0)
    assert clock.elapsed_ns() == 11e9  # the fourth second brings the last growth; then 7 s of rest


@pytest.mark.parametrize(
    ("scrapes", "says"),
    [
        ([COUNTERS], "4 iterations of e still wait for the ends of their requests, after 20 s"),
        ([replace(REST, unallocated_j={})], "the energy of e is not shared out: is it never idle?, after 20 s"),
        ([REST, "gone"], "gone, after 20 s"),
        ([replace(REST, energy_j={})], "engine e has no costs yet: run the benchmark once to warm up"),
        (
            [replace(REST, tokens={"decode": float(n)}) for n in range(30)],
            "other requests or programs are running, after 20 s",
        ),
    ],
)
def test_counters_that_do_not_settle_are_an_error(scrapes: list[EngineCounters | str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        settled(reading(scrapes), FakeClock(), 20)
    assert str(caught.value) == says
