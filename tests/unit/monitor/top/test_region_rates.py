import pytest
from unit.monitor.top.scene import COUNTED, exposition

from gpu_profile.monitor.top.region_rates import RegionRates
from gpu_profile.units import NS_PER_S


def calls(region: str, value: object, *, regime: str = "UNKNOWN", **labels: str) -> str:
    more = "".join(f',{key}="{each}"' for key, each in labels.items())
    return f'gpu_profile_region_calls_total{{region="{region}",regime="{regime}"{more}}} {value}\n'


def after(*scrapes: str, step_s: int = 2) -> RegionRates:
    rates = RegionRates()
    for number, text in enumerate(scrapes):
        rates.take(number * step_s * NS_PER_S, text)
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


def test_a_counter_that_restarts_or_is_new_began_at_0() -> None:
    (line,) = after(calls("a", 100), calls("a", 6)).lines()
    assert line.calls == 3.0
    a, b = after(calls("a", 100), calls("a", 100) + calls("b", 8)).lines()
    assert (a.calls, b.calls) == (0.0, 4.0)


def test_the_window_is_the_last_minute() -> None:
    rates = after(*(calls("a", 10 * min(n, 5)) for n in range(50)))
    assert rates.window_s == 60
    assert rates.lines()[0].calls == 0.0


def test_regions_of_services_have_their_names_in_front() -> None:
    (line,) = after(calls("a", 1, service_name="shop")).lines()
    assert line.name == "shop/a"


def test_other_metrics_and_values_that_no_counter_has_are_left_out() -> None:
    assert after('gpu_profile_region_calls_total{regime="X"} 1\nhw_power_watts{region="a"} 3\n').lines() == ()
    assert after(calls("a", "NaN") + calls("b", "+Inf") + calls("c", -1)).lines() == ()


@pytest.mark.parametrize("text", ["<html>no metrics</html>", 'a{b="c} 1', "x y z\n"])
def test_another_format_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the parser's own words
        RegionRates().take(0, text)
