from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from gpu_profile.analysis.costs import EngineCounters, engine_counters, settled
from gpu_profile.errors import UsageError
from gpu_profile.testing import FakeClock

TEXT = """\
# TYPE gpu_profile_build_info gauge
gpu_profile_build_info{version="1",driver="simulated 580"} 1
# TYPE gpu_profile_serving_energy_joules counter
gpu_profile_serving_energy_joules_total{engine="a",tenant="x",phase="prefill"} 10
gpu_profile_serving_energy_joules_total{engine="a",tenant="y",phase="prefill"} 5
gpu_profile_serving_energy_joules_total{engine="a",phase="decode"} 40
gpu_profile_serving_energy_joules_total{engine="b",phase="decode"} 1000
gpu_profile_serving_device_time_seconds_total{engine="a",phase="decode"} 3
gpu_profile_serving_energy_unallocated_joules_total{engine="a",reason="idle"} 7
gpu_profile_serving_energy_unallocated_joules_total{engine="b",reason="idle"} 8
gpu_profile_serving_tokens_total{engine="a",tenant="x",phase="decode"} 12
gpu_profile_serving_requests_total{engine="a",tenant="x"} 2
gpu_profile_serving_requests_total{engine="a",tenant="y"} 3
gpu_profile_serving_phase_half_width_ratio{engine="a",phase="decode"} 0.01
gpu_profile_serving_waiting{engine="a"} 4
gpu_profile_serving_device{engine="a",hw_id="GPU-1"} 1
gpu_profile_serving_device{engine="a",hw_id="GPU-2"} 1
gpu_profile_serving_device{engine="b",hw_id="GPU-3"} 1
gpu_profile_device_info{hw_id="GPU-1",hw_name="H200"} 1
gpu_profile_device_info{hw_id="GPU-2",hw_name="H200"} 1
gpu_profile_device_info{hw_id="GPU-3",hw_name="A10G"} 1
"""
COUNTERS = EngineCounters(
    "a", {"prefill": 15, "decode": 40}, {"decode": 3}, {"decode": 12}, {"decode": 0.01}, {"idle": 7}, 5, 4, True,
    "2 x H200",
)  # fmt: skip


def test_an_engines_counters_are_summed_over_tenants() -> None:
    assert engine_counters(TEXT, "a") == COUNTERS
    alone = "\n".join(line for line in TEXT.splitlines() if 'engine="b"' not in line)
    assert engine_counters(alone) == COUNTERS


@pytest.mark.parametrize(
    ("text", "engine", "says"),
    [
        (TEXT, "", "several engines: choose one with --engine: a, b"),
        (TEXT, "c", "no engine 'c': there is a, b"),
        ("", "", "no engine with GPUs; start the exporter with --serving"),
        ('gpu_profile_serving_waiting{engine="a"} 0', "a", "no engine with GPUs"),
        ("<html>", "", "not in Prometheus' text format"),
    ],
)
def test_a_scrape_without_the_engine_is_an_error(text: str, engine: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        engine_counters(text, engine)


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
        return replace(now, unallocated_j={"idle": idle} if now.unallocated_j else {})

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
        ([COUNTERS], "4 iterations of a still wait for the ends of their requests, after 20 s"),
        ([replace(REST, unallocated_j={})], "the energy of a is not shared out: is it never idle?, after 20 s"),
        ([REST, "gone"], "gone, after 20 s"),
        ([replace(REST, energy_j={})], "engine a has no costs yet: run the benchmark once to warm up"),
        ([replace(REST, tokens={"decode": float(n)}) for n in range(30)], "other requests are running, after 20 s"),
    ],
)
def test_counters_that_do_not_settle_are_an_error(scrapes: list[EngineCounters | str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        settled(reading(scrapes), FakeClock(), 20)
    assert str(caught.value) == says
