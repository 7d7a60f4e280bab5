"""Ends that are later than starts by the same time always: the windows show that, and the stamps do not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from laboratory.curves import World
from laboratory.kinds import Staged
from laboratory.programs import Stamps
from laboratory.rows import outcomes, program
from laboratory.score import Outcome
from laboratory.sensors import COUNTER, GPM

from gpu_profile.catalogue.signals import ENERGY, GRAPHICS
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.solving.lateness import LateEnds
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Pieces
from gpu_profile.join.unmixing.windows.shortened import shortened

US = 1000


def active(*stretches: tuple[int, int, int]) -> ActiveTime:
    columns, starts, ends = (np.array(each, np.int64) for each in zip(*stretches, strict=True))
    alone = columns.astype(np.int16)
    return ActiveTime.of(Pieces(np.arange(len(starts)), starts, ends), alone, alone)


def stretches(time: ActiveTime) -> list[tuple[int, int, int]]:
    return list(zip(time.alone.tolist(), time.starts.tolist(), time.ends.tolist(), strict=True))


@pytest.mark.parametrize(
    ("by_ns", "expected"),
    [
        (0, [(1, 100, 200), (2, 210, 300)]),
        (20, [(1, 110, 190), (2, 220, 290)]),
        # None is shorter than 0.
        (120, [(1, 150, 150), (2, 255, 255)]),
    ],
)
def test_executions_are_shorter_at_both_ends(by_ns: int, expected: list[tuple[int, int, int]]) -> None:
    assert stretches(shortened(active((1, 100, 200), (2, 210, 300)), by_ns)) == expected


def test_the_time_beside_an_inner_execution_goes_to_the_outer_one() -> None:
    nested = active((1, 0, 100), (2, 100, 200), (1, 200, 300), (3, 300, 400))
    assert stretches(shortened(nested, 20)) == [(1, 10, 110), (2, 110, 190), (1, 190, 290), (3, 310, 390)]
    # The inner one has no time left.
    assert stretches(shortened(nested, 120)) == [(1, 60, 160), (2, 160, 160), (1, 160, 240), (3, 350, 350)]


def test_executions_that_overlap_stay_in_order_of_start() -> None:
    both = shortened(active((1, 0, 100), (2, 4, 8), (3, 5, 200)), 20)
    assert stretches(both) == [(2, 6, 6), (1, 10, 90), (3, 15, 190)]


def loss(difference_us: int, weight: float, time: ActiveTime) -> float:
    """Of windows that determine the difference with this weight."""
    return weight * (100_000 - int((time.ends - time.starts)[0]) / US - difference_us) ** 2


def compared(*sensors: tuple[int, float], effect: float = 1.0, by_stamps_us: int = 0) -> int:
    """The largest possible difference, in us, if the scatter of stamps allows one of `by_stamps_us`."""
    lateness = LateEnds()
    for lead, (difference_us, weight) in zip((ENERGY, GRAPHICS), sensors, strict=False):
        lateness.compare(lead, effect, active((1, 0, 100_000 * US)), partial(loss, difference_us, weight))
    return round(float(lateness.possible_ns(np.array([by_stamps_us * US]))[0]) / US)


def test_a_difference_counts_only_if_the_evidence_against_none_is_very_strong() -> None:
    assert compared() == 0
    # None has twice a log likelihood that is worse by 40, by 16 and by 9.
    assert compared((500, 40 / 500**2)) == 400
    assert compared((-500, 40 / 500**2)) == 0
    assert compared((500, 16 / 500**2)) == 800
    assert compared((500, 9 / 500**2)) == 0
    assert compared((0, 1.0)) == 0


def test_executions_that_work_for_much_less_than_their_length_have_pauses_and_no_late_end() -> None:
    assert compared((1100, 400 / 1100**2)) == 800
    assert compared((1300, 400 / 1300**2)) == 0
    assert compared((5000, 400 / 5000**2)) == 0


def test_the_evidence_of_all_sensors_adds_up() -> None:
    assert compared((500, 9 / 500**2), (500, 9 / 500**2)) == 800
    assert compared((500, 40 / 500**2), (0, 160 / 500**2)) == 0


def test_windows_rule_out_differences_that_the_scatter_of_stamps_allows() -> None:
    assert compared(by_stamps_us=700) == 700
    # A region's own may be three times the largest mean, which is 1.96 standard deviations, here of 40 and 120 us.
    assert compared((0, 1 / 40**2), by_stamps_us=700) == pytest.approx(3 * 1.96 * 40, abs=1)
    assert compared((0, 1 / 120**2), by_stamps_us=700) == 700
    assert compared((0, 1 / 120**2), by_stamps_us=100) == 100
    # The likeliest difference, 100 us, is between two that are compared.
    assert 3 * (100 + 1.96 * 40) <= compared((100, 1 / 40**2), by_stamps_us=800) < 780
    assert compared((0, 1 / 2000**2), by_stamps_us=700) == 700


def test_windows_that_repeat_each_other_are_weaker_evidence() -> None:
    assert compared((500, 40 / 500**2), effect=2.5) == 800
    assert compared((500, 40 / 500**2), effect=4.0) == 0
    assert compared((500, 40 / 500**2), effect=np.inf) == 0


def test_larger_differences_than_an_unlikely_one_are_not_compared() -> None:
    tried: list[int] = []

    def noted(time: ActiveTime) -> float:
        tried.append(100_000 - int((time.ends - time.starts)[0]) // US)
        return loss(0, 1.0, time)

    LateEnds().compare(ENERGY, 1.0, active((1, 0, 100_000 * US)), noted)
    assert tried == [0, 200]


def answers(seed: int, late_ms: float) -> list[Outcome]:
    """The answers about regions of 1 to 5 ms in random order. Ends are always late by `late_ms`."""
    pauses_ms = late_ms + 0.1, late_ms + 2.0
    made = program(seed, count=3 if seed % 2 else 5, length_ms=(1.0, 5.0), gap_ms=pauses_ms)

    def late(_: World, host: Ints) -> Ints:
        result: Ints = host + np.array([[0], [round(late_ms * 1e6)]])
        return result

    case = Staged(replace(made, stamps=Stamps((0.0, 0.05))), (COUNTER, GPM), 40.0, seed, late=late)
    return [each for each in outcomes("late", case) if each.quantity in {"power", "busy"}]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_constant_lateness_of_ends_causes_no_confident_error(seed: int) -> None:
    given = [each for each in answers(seed, 0.7) if each.answer.value is not None]
    assert given
    assert not [(each.region, each.quantity, each.half_widths) for each in given if each.confidently_wrong]


def test_exact_stamps_are_not_taken_for_stamps_of_late_ends() -> None:
    given = answers(0, 0.0)
    assert all(each.answer.half_width is not None for each in given)
    assert max(each.answer.half_width / each.target.scale for each in given if each.answer.half_width) < 0.15
