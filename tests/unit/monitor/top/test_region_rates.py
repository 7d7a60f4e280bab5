import pytest
from unit.monitor.top.scene import COUNTED, exposition

from gpu_profile.monitor.top.region_rates import MOST_SERIES, WINDOW_NS, RegionRates, ScrapeError, region_values
from gpu_profile.units import NS_PER_S


def calls(region: str, value: object, *, regime: str = "UNKNOWN", **labels: str) -> str:
    more = "".join(f',{key}="{each}"' for key, each in labels.items())
    return f'gpu_profile_region_calls_total{{region="{region}",regime="{regime}"{more}}} {value}\n'


def after(*scrapes: str, step_s: int = 2) -> RegionRates:
    rates = RegionRates()
    for number, text in enumerate(scrapes):
        rates.take(number * step_s * NS_PER_S, region_values(text))
    return rates


def test_one_scrape_gives_no_rate() -> None:
    (line,) = after(calls("a", 5)).lines()
    assert (line.name, line.calls, line.regime) == ("a", None, "")


def test_rates_are_growth_by_the_time_between_first_and_last_scrape() -> None:
    forward, train = after(exposition(0), exposition(1), step_s=60).lines()
    assert (forward.name, train.name) == ("forward", "train step")
    got = (train.calls, train.joules, train.joules_uncertain, train.busy, train.busy_uncertain, train.regime)
    assert got == pytest.approx((14.0, 70 / 60, 210.0, 2 / 60, 0.5, COUNTED["train step"][-1]))
    assert forward.joules_uncertain == 0.0


def test_series_of_several_devices_are_summed_and_the_regime_is_that_of_most_new_calls() -> None:
    def scrape(*values: int) -> str:
        rows = (("HOST_BOUND", "A"), ("MEMORY_BOUND", "A"), ("MEMORY_BOUND", "B"))
        return "".join(
            calls("a", value, regime=regime, hw_id=device) for value, (regime, device) in zip(values, rows, strict=True)
        )

    (line,) = after(scrape(1000, 1, 1), scrape(1002, 3, 2)).lines()
    assert (line.calls, line.regime) == (2.5, "MEMORY_BOUND")
    (line,) = after(scrape(1000, 1, 1), scrape(1000, 1, 1)).lines()
    assert (line.calls, line.regime) == (0.0, ""), "no call, no regime"


def test_a_counter_that_restarts_began_at_0_and_a_new_one_has_no_growth_yet() -> None:
    (line,) = after(calls("a", 100), calls("a", 6)).lines()
    assert line.calls == 3.0
    a, b = after(calls("a", 100), calls("a", 100) + calls("b", 8)).lines()
    assert (a.calls, b.calls) == (0.0, None)
    a, b = after(calls("a", 100), calls("a", 100) + calls("b", 8), calls("a", 100) + calls("b", 12)).lines()
    assert (a.calls, b.calls) == (0.0, 1.0)


@pytest.mark.parametrize("lost", ["", calls("a", "NaN"), calls("b", 1)])
def test_a_series_that_is_missing_from_one_scrape_has_grown_since_its_last_value(lost: str) -> None:
    line, *_ = after(calls("a", 100_000), lost, calls("a", 100_008)).lines()
    assert (line.name, line.calls) == ("a", 2.0)


def test_a_series_that_was_not_seen_within_the_window_is_dropped_and_begins_anew() -> None:
    other = calls("b", 1)
    scrapes = [calls("a", 100_000) + other, *[other] * 3]
    assert [line.name for line in after(*scrapes[:3], step_s=30).lines()] == ["a", "b"]
    assert [line.name for line in after(*scrapes, step_s=30).lines()] == ["b"]
    a, _ = after(*scrapes, calls("a", 100_008) + other, step_s=30).lines()
    assert a.calls is None
    a, _ = after(scrapes[0], other, calls("a", 100_008) + other, step_s=40).lines()
    assert a.calls is None


def test_the_window_begins_anew_after_a_gap_that_is_longer() -> None:
    rates = after(calls("a", 0), calls("a", 10))
    rates.take(2 * NS_PER_S + WINDOW_NS + 1, region_values(calls("a", 5000)))
    assert (rates.window_s, rates.lines()[0].calls) == (0.0, None)
    rates.take(4 * NS_PER_S + WINDOW_NS + 1, region_values(calls("a", 5004)))
    assert (rates.window_s, rates.lines()[0].calls) == (2.0, 2.0)


def test_the_number_of_series_is_limited() -> None:
    def page(first: int, count: int) -> str:
        return "".join(calls(f"r{first + n:06}", 1) for n in range(count))

    with pytest.raises(ScrapeError, match=f"it has {MOST_SERIES + 1} series of regions"):
        region_values(page(0, MOST_SERIES + 1))
    lines = after(page(0, MOST_SERIES), page(MOST_SERIES - 1, 2)).lines()
    assert len(lines) == MOST_SERIES
    assert [lines[0].name, lines[-1].name, lines[-2].calls] == ["r000001", f"r{MOST_SERIES:06}", 0.0]


def test_a_sum_that_contains_infinity_is_unknown() -> None:
    def page(value: object) -> str:
        return calls("a", value, hw_id="A") + calls("a", 4, hw_id="B") + calls("b", 1)

    a, b = after(page("+Inf"), page("+Inf")).lines()
    assert (a.calls, a.regime, b.calls) == (None, "", 0.0)
    assert after(page(3), page("+Inf")).lines()[0].calls is None
    assert after(page("+Inf"), page(1000)).lines()[0].calls == 0.0, "infinity is no value to grow from"
    huge = [calls("a", each, hw_id="A") + calls("a", each, hw_id="B") for each in (0, 1.5e308)]
    assert after(*huge).lines()[0].calls is None


def test_the_window_is_the_last_minute() -> None:
    rates = after(*(calls("a", 10 * min(n, 5)) for n in range(50)))
    assert rates.window_s == 60
    assert rates.lines()[0].calls == 0.0


def test_regions_of_services_have_their_names_in_front() -> None:
    (line,) = after(calls("a", 1, service_name="shop")).lines()
    assert line.name == "shop/a"


def test_other_metrics_and_values_that_no_counter_has_are_left_out() -> None:
    assert after('gpu_profile_region_calls_total{regime="X"} 1\nhw_power_watts{region="a"} 3\n').lines() == ()
    assert after(calls("a", "NaN") + calls("c", -1)).lines() == ()


@pytest.mark.parametrize("text", ["<html>no metrics</html>", 'a{b="c} 1', "x y z\n"])
def test_another_format_is_an_error(text: str) -> None:
    with pytest.raises(ScrapeError, match="not in Prometheus' text format"):
        region_values(text)


def test_a_page_that_ends_in_another_format_changes_nothing() -> None:
    rates = after(calls("a", 100), calls("a", 102))
    before = rates.lines()
    with pytest.raises(ScrapeError):
        rates.take(4 * NS_PER_S, region_values(calls("a", 5000) + "x y z\n"))
    assert rates.lines() == before
    rates.take(4 * NS_PER_S, region_values(calls("a", 104)))
    assert rates.lines()[0].calls == 1.0
