"""Why a rank is late, from recordings in which that is known."""

import json
from dataclasses import replace

import pytest
from support.analysis import T0
from support.ranks import LATE, late_job

from gpu_profile.analysis import analyse
from gpu_profile.analysis.ranks.causes import LateCause, RankGpu, lateness
from gpu_profile.analysis.views.data import of_analysis
from gpu_profile.analysis.views.text import render
from gpu_profile.report.as_json import to_json

ALIKE = [RankGpu(busy=0.8, clock_hz=1.7e9, power_limit_w=700.0, generation=5.0, lanes=16.0)] * 3


@pytest.mark.parametrize("cause", LATE)
def test_the_cause_of_a_late_rank_is_found(cause: LateCause) -> None:
    (found,) = analyse(late_job(cause, ranks=3, steps=40)).ranks
    assert found.slowest.rank == 1
    assert found.late is not None
    assert found.late.cause is cause
    assert found.late.since_ns is None


def test_it_is_told_with_its_facts_and_its_beginning() -> None:
    analysis = analyse(late_job(LateCause.POWER_LIMIT, ranks=3, from_step=30))
    (found,) = analysis.ranks
    assert found.late is not None
    # Steps of 205 ms come before.
    assert found.late.since_ns == pytest.approx(T0 + 30 * 205e6, abs=1e9)
    text = render(analysis)
    assert "step: rank 1 is late, since 6." in text
    assert "Cause: power limit; its power limit is" in text
    (told,) = json.loads(to_json(of_analysis(analysis)))["ranks"]
    assert told["late"]["cause"] == "power_limit"
    assert told["late"]["since_ns"] == found.late.since_ns


def test_a_job_whose_ranks_are_alike_has_no_cause() -> None:
    (found,) = analyse(late_job(LateCause.HOST, ranks=3, steps=20, from_step=1000)).ranks
    assert not found.differ
    assert found.late is None


@pytest.mark.parametrize(
    ("late", "late_s", "expected"),
    [
        # Throttling of all of them is no cause of one being late.
        (RankGpu(busy=0.8, clock_hz=1.7e9, throttled={"sw_power_cap": 0.9}), 1.2, LateCause.UNKNOWN),
        (RankGpu(busy=0.8, clock_hz=1.5e9, throttled={"sync_boost": 0.99}), 1.2, LateCause.THROTTLED),
        # A clock that is lower by a twentieth makes nothing longer by a half; nor does a limit without a lower clock.
        (RankGpu(busy=0.8, clock_hz=1.6e9, throttled={"sync_boost": 0.99}), 1.5, LateCause.UNKNOWN),
        (RankGpu(busy=0.8, clock_hz=1.7e9, power_limit_w=500.0), 1.5, LateCause.UNKNOWN),
        # A share by another method is not comparable.
        (RankGpu(bounded=(0.5, 0.01)), 1.6, LateCause.UNKNOWN),
        # A lower link is no cause of a longer computation if the clock is.
        (RankGpu(busy=0.85, clock_hz=1.2e9, lanes=8.0), 1.4, LateCause.CLOCK),
        # A lower limit is no cause of waiting for the host.
        (RankGpu(busy=0.5, power_limit_w=500.0), 1.6, LateCause.HOST),
        (RankGpu(busy=0.5, generation=3.0), 1.6, LateCause.LINK),
        (RankGpu(), 1.5, LateCause.UNKNOWN),
    ],
)
def test_a_difference_is_a_cause_only_where_the_time_is_lost(late: RankGpu, late_s: float, expected: LateCause) -> None:
    others = [
        RankGpu(
            busy=0.8, clock_hz=1.7e9, power_limit_w=700.0, generation=5.0, lanes=16.0, throttled={"sw_power_cap": 0.85}
        )
    ] * 3
    assert lateness(late, others, late_s, 1.0)[0] is expected


def test_unknown_values_of_others_are_no_difference() -> None:
    uncertain = "it is uncertain whether its GPU or its host takes longer"
    assert lateness(ALIKE[0], [RankGpu()] * 3, 1.5, 1.0) == (LateCause.UNKNOWN, uncertain)
    # Of a small excess, an uncertain busy share cannot say where it arises: a difference is a fact, and no cause.
    slower = replace(ALIKE[0], busy=0.82, busy_half_width=0.05, clock_hz=1.2e9)
    assert lateness(slower, ALIKE, 1.06, 1.0) == (LateCause.UNKNOWN, f"{uncertain}; its clock is 71 % of the others'")
    assert lateness(replace(slower, busy_half_width=0.001), ALIKE, 1.06, 1.0)[0] is LateCause.CLOCK
    cause, facts = lateness(ALIKE[0], ALIKE, 1.5, 1.0)
    assert cause is LateCause.UNKNOWN
    assert facts.startswith("its GPU works longer")
