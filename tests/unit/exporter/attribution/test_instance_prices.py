"""Shares of MIG instances in the energy of their GPU: right within their intervals, or refused."""

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

import numpy as np
import pytest

from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.attribution.instance_prices import HORIZON_NS, InstancePrices
from gpu_profile_exporter.attribution.instance_windows import ACTIVITIES, EnergyParts, PowerWindow

SECONDS, LATEST = 300, 10
IDLE_W = 75.0
#: Noise of the energy of a second in J: the counter's last renewal is up to 0.1 s ago.
NOISE_J = 3.0
DRAWN = np.random.default_rng(3).random((1000, 8))
#: The activities of an instance in a second, as the device has them and as GPM reports them.
Course = Callable[[int], tuple[float, ...]]


class World(NamedTuple):
    """The answer about the last 10 s, their energy, and the true energy of each instance in J."""

    parts: EnergyParts
    joules: float
    truth: Mapping[str, float]

    @property
    def given(self) -> dict[Hashable, float]:
        return {group: share * self.joules for group, share in self.parts.groups.items()}

    def half_width(self, group: str) -> float:
        """In J."""
        return self.parts.half_widths[group] * self.joules


def world(
    courses: Mapping[str, Course], watts: Mapping[str, Callable[[int], float]], seconds: int = SECONDS,
    reported: Mapping[str, Course] | None = None, groups: Mapping[str, str] | None = None, late: float = 0.0,
) -> World:  # fmt: skip
    """Instances with courses of activity, each with its W at activity 1 of the multiprocessors.

    The counter is `late` by a share of a second.
    """
    prices, noise = InstancePrices(), np.random.default_rng(seconds).normal(0, NOISE_J, seconds)
    truth, joules = dict.fromkeys(courses, 0.0), 0.0
    for second in range(seconds):
        own = {name: watts[name](second) * course(second)[0] for name, course in courses.items()}
        beside = max(0, second - 1 if late > 0 else second + 1)
        beside_j = sum(watts[name](beside) * course(beside)[0] for name, course in courses.items())
        window_j = IDLE_W + sum(own.values()) * (1 - abs(late)) + beside_j * abs(late) + float(noise[second])
        activity = {name: course(second) for name, course in {**courses, **(reported or {})}.items()}
        prices.add([PowerWindow(second * NS_PER_S, (second + 1) * NS_PER_S, window_j, activity)])
        if second >= seconds - LATEST:
            joules += window_j
            truth = {name: truth[name] + own[name] for name in truth}
    end_ns = seconds * NS_PER_S
    parts = prices.parts(end_ns - LATEST * NS_PER_S, end_ns, groups or {name: name for name in courses})
    return World(parts, joules, truth)


def drawn(column: int, most: float = 0.9) -> Course:
    """Activities that differ in each second."""
    return lambda second: (
        most * DRAWN[second, column],
        0.3 * most * DRAWN[second, column],
        0.4 * DRAWN[second, column] ** 2,
    )


def steady(sm: float) -> Course:
    return lambda _: (sm, 0.3 * sm, 0.2 * sm)


def always(watts: float) -> Callable[[int], float]:
    return lambda _: watts


A_AND_B = {"a": always(300.0), "b": always(150.0)}


def test_an_instance_that_needs_twice_the_energy_for_the_same_activity_has_it() -> None:
    parts, joules, truth = one = world({"a": drawn(0), "b": drawn(1)}, A_AND_B)
    for name in "ab":
        assert one.given[name] == pytest.approx(truth[name], abs=one.half_width(name))
        assert one.given[name] == pytest.approx(truth[name], rel=0.05)
    assert parts.idle is not None
    assert parts.idle * joules == pytest.approx(IDLE_W * LATEST, rel=0.1)
    assert sum(parts.groups.values()) + parts.idle == pytest.approx(1)


def test_seven_instances_have_their_shares() -> None:
    names = "abcdefg"
    one = world(
        {name: drawn(place) for place, name in enumerate(names)},
        {name: always(30.0 + 10 * place) for place, name in enumerate(names)},
    )
    assert set(one.given) == set(names)
    within = [abs(one.given[name] - one.truth[name]) <= one.half_width(name) for name in names]
    assert sum(within) >= 6  # half-widths are those of 95 %


@pytest.mark.parametrize(
    ("a", "b", "right"),
    [
        (drawn(0), drawn(0), ""),
        (drawn(0), lambda second: (DRAWN[second, 0] + 0.005 * DRAWN[second, 1], 0.0, 0.0), ""),
        (steady(0.8), steady(0.3), ""),
        (steady(0.8), drawn(1), "b"),  # its idle power and A's are one constant
    ],
)
def test_instances_with_the_same_course_are_refused(a: Course, b: Course, right: str) -> None:
    one = world({"a": a, "b": b}, A_AND_B)
    assert set(one.given) == set(right)
    for name in right:
        assert one.given[name] == pytest.approx(one.truth[name], rel=0.05)


def test_instances_of_one_holder_are_one_part_though_their_courses_are_the_same() -> None:
    watts = {**A_AND_B, "c": always(100.0)}
    one = world({"a": drawn(0), "b": drawn(0), "c": drawn(2)}, watts, groups={"a": "pod", "b": "pod", "c": "other"})
    assert one.given["pod"] == pytest.approx(one.truth["a"] + one.truth["b"], rel=0.05)
    assert one.given["other"] == pytest.approx(one.truth["c"], rel=0.05)


@pytest.mark.parametrize(
    "lie",
    [drawn(5), steady(0.0), lambda second: (0.9 * DRAWN[second - 3, 1], 0.0, 0.0)],
    ids=["noise", "nothing", "late"],
)
def test_an_activity_that_is_not_the_device_s_refuses_all(lie: Course) -> None:
    one = world({"a": drawn(0), "b": drawn(1)}, A_AND_B, reported={"b": lie})
    assert one.parts == (None, {}, {})


def test_a_scale_that_lies_does_not_matter() -> None:
    half: Course = lambda second: tuple(each / 2 for each in drawn(1)(second))  # noqa: E731
    one = world({"a": drawn(0), "b": drawn(1)}, A_AND_B, reported={"b": half})
    assert one.given["b"] == pytest.approx(one.truth["b"], rel=0.05)


@pytest.mark.parametrize("ago", [5, 20, 100])
def test_a_program_with_other_prices_is_refused_until_the_old_windows_are_gone(ago: int) -> None:
    def changed(second: int) -> float:
        return 150.0 if second < SECONDS - ago else 450.0

    one = world({"a": drawn(0), "b": drawn(1)}, {"a": always(300.0), "b": changed})
    assert not one.given
    later = world({"a": drawn(0), "b": drawn(1)}, {"a": always(300.0), "b": changed}, SECONDS + HORIZON_NS // NS_PER_S)
    assert later.given["b"] == pytest.approx(later.truth["b"], rel=0.05)


def test_prices_that_grow_with_the_activity_are_refused() -> None:
    """Constant prices would need an idle power of 0, and give one instance too much."""

    def course(second: int, column: int, least: float) -> float:
        return float(least + 0.4 * DRAWN[second, column])

    one = world(
        {"a": lambda s: (course(s, 0, 0.5),) * 3, "b": lambda s: (course(s, 1, 0.3),) * 3},
        {"a": lambda s: 600 * course(s, 0, 0.5) ** 2, "b": lambda s: 300 * course(s, 1, 0.3) ** 2},
    )
    assert one.parts == (None, {}, {})


@pytest.mark.parametrize("ago", [20, 50])
@pytest.mark.parametrize("factor", [0.5, 1.3])
def test_a_program_with_slightly_other_prices_is_refused_or_within_its_interval(ago: int, factor: float) -> None:
    """Though a change of the price of few windows hardly changes the prices of all."""

    def course(second: int, column: int) -> tuple[float, ...]:
        return steady(0.8 * (DRAWN[second // 7, column] > 0.4))(second)

    def changed(second: int) -> float:
        return 150.0 * (1 if second < SECONDS - ago else factor)

    one = world({"a": lambda s: course(s, 0), "b": lambda s: course(s, 1)}, {"a": always(300.0), "b": changed})
    for name in one.truth.keys() & one.given.keys():
        assert one.given[name] == pytest.approx(one.truth[name], abs=one.half_width(name))


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_energy_that_is_not_proportional_to_the_activity_is_refused_or_within_its_interval(power: float) -> None:
    def watts(column: int) -> Callable[[int], float]:
        return lambda second: float(150 * drawn(column)(second)[0] ** (power - 1))

    one = world({name: drawn(at) for at, name in enumerate("abc")}, {name: watts(at) for at, name in enumerate("abc")})
    for name in one.truth.keys() & one.given.keys():
        assert one.given[name] == pytest.approx(one.truth[name], abs=one.half_width(name))


@pytest.mark.parametrize("shift", [-0.1, 0.1])
def test_a_counter_that_is_late_or_early_takes_no_energy_from_the_instances(shift: float) -> None:
    one = world({"a": drawn(0), "b": drawn(1)}, A_AND_B, late=shift)
    assert set(one.given) == {"a", "b"}
    for name in "ab":
        assert one.given[name] == pytest.approx(one.truth[name], abs=one.half_width(name))


def test_a_program_that_changed_in_the_middle_of_the_windows_widens_the_interval() -> None:
    watts = {"a": always(300.0), "b": lambda s: 150.0 if s < SECONDS // 2 else 180.0}
    changed, same = (world({"a": drawn(0), "b": drawn(1)}, each) for each in (watts, A_AND_B))
    assert changed.parts.half_widths["b"] > 3 * same.parts.half_widths["b"]
    assert changed.given["b"] == pytest.approx(changed.truth["b"], abs=2 * changed.half_width("b"))


def test_without_work_all_energy_is_that_of_the_idle_device() -> None:
    course: Course = lambda second: (0.9, 0.3, 0.2) if second % 50 < 30 else (0.0, 0.0, 0.0)  # noqa: E731
    one = world({"a": course, "b": steady(0.0)}, A_AND_B)
    assert one.given == {"a": 0, "b": 0}
    assert one.parts.idle == pytest.approx(1)


def test_few_windows_and_windows_elsewhere_are_no_answer() -> None:
    assert world({"a": drawn(0), "b": drawn(1)}, A_AND_B, 50).parts.idle is None
    prices = InstancePrices()
    prices.add(PowerWindow(s * NS_PER_S, (s + 1) * NS_PER_S, 100.0, {"a": (0.5,) * len(ACTIVITIES)}) for s in range(99))
    assert prices.parts(99 * NS_PER_S, 109 * NS_PER_S, {"a": "a"}) == (None, {}, {})
    # The clock was set back.
    prices.add([PowerWindow(0, NS_PER_S, 100.0, {})])
    assert prices.parts(0, NS_PER_S, {"a": "a"}) == (None, {}, {})
