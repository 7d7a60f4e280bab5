from dataclasses import replace

import pytest
from laboratory.found import FOUND
from laboratory.oracle import judge
from laboratory.recordings import Case, analysed
from laboratory.rows import ROWS, outcomes, program
from laboratory.sensors import COUNTER, GPM, H200, Readings

from gpu_profile.join.unmixing.solving.unmix import LOCK_STEP
from gpu_profile.units import NS_PER_S


@pytest.mark.parametrize("name", FOUND)
def test_no_case_that_was_found_has_a_confident_error_any_more(name: str) -> None:
    found = outcomes(name, FOUND[name])
    assert [outcome for outcome in found if outcome.confidently_wrong] == []


def test_a_counter_that_measures_an_eighth_of_its_period_gives_right_powers_in_a_loop() -> None:
    """Parts below 17 ms were not tried, and no longer one explained the readings: all powers were refused."""
    row = next(row for row in ROWS if "measures 13 of each 100 ms" in row.name)
    power = [outcome for outcome in row.outcomes(0) if outcome.quantity == "power"]
    assert [outcome.region for outcome in power if outcome.answer.value is None] == []
    assert max(outcome.half_widths or 0.0 for outcome in power) <= 1


def test_a_lag_above_all_boards_rules_out_none_that_boards_have() -> None:
    """Only lags near the best one were tried with rates that vary. Half a loop later, pauses explained the work."""
    row = next(row for row in ROWS if "loop of 416.9 ms" in row.name)
    power = [each for seed in (0, 1, 3) for each in row.outcomes(seed) if each.quantity == "power"]
    assert [each.seed for each in power if (each.half_widths or 0.0) > 1] == []


def test_executions_of_a_nanosecond_have_no_rates() -> None:
    """Their shares of windows are all rounding: rates of megawatts came of that, with half-widths below 0."""
    run = Case(program(3, count=3, gap_ms=(0.0, 2.0)), (COUNTER, GPM), 20.0, 3).run()
    starts = run.host[0]
    found = analysed(run._replace(host=(starts, starts + 1)))
    assert all((answer.half_width or 0.0) >= 0 for answer in found.values())
    assert [
        key for key, answer in found.items() if key[1] in {"power", "busy", "sm"} and answer.value is not None
    ] == []


def test_utilisation_that_stops_takes_nothing_from_what_goes_on() -> None:
    """Of busy time it had a third, and gave it out as all there was: 0.82 ±0.05 s for 2.49."""
    run = Case(program(1), H200, 60.0, 1).run()
    (sensor, signal, quantity, readings) = run.readings[-1]
    kept = readings.stamps_ns < 20 * NS_PER_S
    cut = Readings(
        readings.starts_ns[kept], readings.stamps_ns[kept], readings.values[kept],
        readings.renewals[kept], readings.noise[kept],
    )  # fmt: skip
    stopped = [*run.readings[:-1], (sensor, signal, quantity, cut)]
    answers = analysed(run._replace(readings=stopped))
    told = 0
    for (region, of), known in judge(run).items():
        answer = answers.get((region, of))
        if of == "busy_s" and answer is not None and answer.value is not None:
            told += 1
            assert abs(answer.value - known.truth) <= 2 * (answer.half_width or 0.0) + 0.05 * known.truth, region
    assert told == 6


def test_loops_without_pauses_in_step_with_a_part_time_sensor_are_refused_and_others_are_right() -> None:
    """Power that changed within the executions was up to 105 half-widths off: each window showed the same parts."""
    row = next(row for row in ROWS if "without pauses, power" in row.name)
    every = [outcome for seed in range(8) for outcome in row.outcomes(seed)]
    assert [outcome for outcome in every if outcome.confidently_wrong] == []
    power = {outcome.seed: outcome.answer for outcome in every if outcome.quantity == "power"}
    assert [power[seed].value for seed in (0, 2, 5, 6)] == [None] * 4
    assert all(LOCK_STEP in power[seed].reason for seed in (0, 2, 6))
    assert sum(power[seed].value is not None for seed in (1, 3, 4, 7)) >= 2


@pytest.mark.parametrize("part", [25, 50])
def test_loops_in_step_with_a_counter_that_may_measure_a_part_of_each_period_are_refused(part: int) -> None:
    """Loops of 50, 100 and 200 ms were up to 55 half-widths off. A known board's counter measures all of the time."""
    row = next(row for row in ROWS if f"counter measures {part} of each" in row.name and "without pauses" in row.name)
    every = [outcome for seed in range(8) for outcome in row.outcomes(seed)]
    assert [outcome for outcome in every if outcome.confidently_wrong] == []
    power = {outcome.seed: outcome.answer for outcome in every if outcome.quantity == "power"}
    in_step = {seed for seed, answer in power.items() if answer.value is None and LOCK_STEP in answer.reason}
    assert in_step == {0, 2, 5, 6}
    assert all(power[seed].value is not None for seed in (1, 3, 4, 7))


def test_a_counter_of_a_measured_board_gives_the_power_of_a_loop_in_step_with_it() -> None:
    row = next(row for row in ROWS if "counter measures 25 of each" in row.name and "without pauses" in row.name)
    case = replace(row.build(0), sensors=(COUNTER,))
    (power,) = (each for each in outcomes(row.name, case) if each.quantity == "power")
    assert power.answer.value is None
    assert LOCK_STEP in power.answer.reason
    (power,) = (each for each in outcomes(row.name, replace(case, board="NVIDIA H200")) if each.quantity == "power")
    assert power.answer.value == pytest.approx(power.target.truth, abs=power.answer.half_width)
