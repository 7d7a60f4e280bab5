import pytest

from gpu_profile.analysis import Comparison, Difference, Outcome, parse_gate
from gpu_profile.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("decode.energy > +5%", ("decode", "energy", 1, 0.05, "")),
        ("decode.energy>5%", ("decode", "energy", 1, 0.05, "")),
        (" decode . duration < -10 % ", ("decode", "duration", -1, -0.1, "")),
        ("decode.p95 > +2.5ms", ("decode", "p95", 1, 0.0025, "s")),
        ("decode.p50 > 3 us", ("decode", "p50", 1, 3e-6, "s")),
        ("decode.busy > −1s", ("decode", "busy", 1, -1.0, "s")),
        ("decode.energy/item > .5 kJ", ("decode", "energy/item", 1, 500.0, "J")),
        ('"train step.v1".busy > 0%', ("train step.v1", "busy", 1, 0.0, "")),
        ("'a \"b\"'.energy < -1 J", ('a "b"', "energy", -1, -1.0, "J")),
        ("decode.failures > +1.5 pp", ("decode", "failures", 1, 0.015, "1")),
        ("modèle.energy > 1%", ("modèle", "energy", 1, 0.01, "")),
    ],
)
def test_a_condition_is_read(text: str, expected: tuple[object, ...]) -> None:
    gate = parse_gate(text)
    assert (gate.region, gate.quantity, gate.sign, pytest.approx(gate.bound), gate.unit) == expected
    assert gate.text == text


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "no name of a region; write it like 'decode.energy > +5%'"),
        (".energy > 5%", 1, "no name of a region"),
        ("'decode.energy > 5%", 1, "no name of a region"),
        ("''.energy > 5%", 1, "no name of a region"),
        ("decode", 7, "'.' and a quantity expected"),
        ("decode energy > 5%", 8, "'.' and a quantity expected"),
        ("decode.enrgy > 5%", 8, "no quantity 'enrgy'; did you mean 'energy'?"),
        ("train.step.energy > 5%", 7, "no quantity 'step'; there is duration, p50, p95, busy, energy"),
        ("decode.energy 5%", 15, "'>' or '<' expected"),
        ("decode.energy >= 5%", 15, "'>' or '<' expected"),
        ("decode.energy > five", 17, "a signed number expected"),
        ("decode.energy > nan%", 17, "a signed number expected"),
        ("decode.energy > +5", 19, "'%' or one unit expected"),
        ("decode.energy > +5% now", 19, "'%' or one unit expected"),
        ("decode.energy > +5 s", 20, "no unit 's' here; it is % or J (mJ, kJ, ...)"),
        ("decode.failures > +5%", 21, "no unit '%' here; it is pp (points in %)"),
        ("decode.energy > +5pp", 19, "no unit 'pp' here; it is % or J"),
        ("decode.duration > +5 min", 22, "no unit 'min' here; it is % or s (ms, ks, ...)"),
    ],
)
def test_a_bad_condition_is_told_with_its_place_and_the_reason(text: str, column: int, says: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_gate(text)
    assert str(error.value).startswith(f"--fail-on {text!r}: column {column}: {says}")


def difference(
    interval: tuple[float, float] | None = None, relative: tuple[float, float] | None = None, quantity: str = "energy"
) -> Difference:
    return Difference("decode", quantity, "J", 10.0, 11.0, interval, relative)


@pytest.mark.parametrize(
    ("text", "found", "outcome"),
    [
        ("decode.energy > +5%", difference(relative=(0.051, 0.2)), Outcome.HOLDS),
        ("decode.energy > +5%", difference(relative=(0.05, 0.2)), Outcome.NOT),
        ("decode.energy > +5%", difference(relative=(-0.1, 0.2)), Outcome.NOT),
        ("decode.energy < -5%", difference(relative=(-0.3, -0.06)), Outcome.HOLDS),
        ("decode.energy < -5%", difference(relative=(-0.3, -0.04)), Outcome.NOT),
        ("decode.energy > +1 J", difference(interval=(1.1, 3.0), relative=(0.0, 0.0)), Outcome.HOLDS),
        ("decode.energy > +1 J", difference(interval=(0.9, 3.0), relative=(5.0, 9.0)), Outcome.NOT),
        ("decode.energy > +5%", difference(interval=(1.0, 2.0)), Outcome.UNTOLD),
        ("decode.energy > +5%", difference(), Outcome.UNTOLD),
    ],
)
def test_a_condition_holds_if_the_whole_interval_lies_beyond_the_bound(
    text: str, found: Difference, outcome: Outcome
) -> None:
    assert parse_gate(text).judge(found) is outcome


def test_a_condition_finds_its_difference_or_says_where_the_region_is() -> None:
    comparison = Comparison((difference(relative=(0.0, 0.1)),), ("old",), ("new",), ())
    assert parse_gate("decode.energy > 1%").find(comparison) is comparison.differences[0]
    for text, says in (
        ("old.energy > 1%", "only the first recording has the region 'old'"),
        ("new.energy > 1%", "only the second recording has the region 'new'"),
        ("dcode.energy > 1%", "no region 'dcode'; did you mean 'decode'?"),
        ("zzz.energy > 1%", "no region 'zzz'; there is decode"),
    ):
        with pytest.raises(UsageError) as error:
            parse_gate(text).find(comparison)
        assert says in str(error.value)


def test_a_quantity_per_item_that_nobody_told_cannot_be_judged() -> None:
    comparison = Comparison((difference(relative=(0.0, 0.1)),), (), (), ())
    gate = parse_gate("decode.busy/item > 1%")
    found = gate.find(comparison)
    assert gate.judge(found) is Outcome.UNTOLD
    assert found.reason == "A and B: no execution reported its items"
