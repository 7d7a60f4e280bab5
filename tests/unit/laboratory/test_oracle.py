"""The oracle where its answer is known in closed form, and where nobody could have one."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from laboratory.oracle import Target, judge
from laboratory.programs import Program, Region, Stamps, Unmarked
from laboratory.recordings import OUTSIDE, Case
from laboratory.rows import program
from laboratory.sensors import COUNTER, GPM, Sensor


def test_one_region_that_never_stops_is_known_as_well_as_the_mean_of_its_readings() -> None:
    made = Program((Region("a", 50.0, 400.0, spread=0.0),), fixed=True, gap_ms=(0.0, 0.0))
    sensor = Sensor(("power_average",), "mean", window_ms=100.0, noise=0.01)
    run = Case(made, (sensor,), 30.0, 1).run()
    inside = sensor.sees(run.readings[0][3].renewals, 32_100, 32_100 + 292_000).sum()
    known = judge(run)["a", "power"]
    assert known.truth == pytest.approx(400.0)
    assert known.half_width == pytest.approx(1.96 * 4.0 / math.sqrt(inside), rel=0.02)
    assert known.answerable


def test_energies_add_up_to_the_whole() -> None:
    run = Case(replace(program(3), unmarked=Unmarked(0.05, bursts_per_min=10)), (COUNTER,), 20.0, 3).run()
    energies = {key: known.truth for key, known in judge(run).items() if key[1] == "energy"}
    recorded = run.world.power[30_000:].sum() / 10_000
    assert (OUTSIDE, "energy") in energies
    assert sum(energies.values()) == pytest.approx(recorded, rel=1e-3)


@pytest.mark.parametrize("loop_ms", [50.0, 100.0])
def test_nobody_can_tell_regions_of_a_loop_in_lock_step_apart(loop_ms: float) -> None:
    made = program(1, fixed=True, loop_ms=loop_ms, gap_ms=(0.2, 0.2), stamps=Stamps((0.0, 0.0)))
    known = judge(Case(made, (COUNTER,), 30.0, 1).run())
    assert not any(known[f"r{k}", "power"].answerable for k in range(6))


def test_a_loop_that_drifts_against_the_sensor_is_known_but_for_the_errors_of_stamps() -> None:
    def loop(stamps: Stamps) -> Mapping[tuple[str, str], Target]:
        made = program(1, fixed=True, loop_ms=99.0, gap_ms=(0.2, 0.2), stamps=stamps)
        return judge(Case(made, (COUNTER,), 60.0, 1).run())

    exact, late = loop(Stamps((0.0, 0.0))), loop(Stamps((0.2, 1.0), tail=0.02))
    for k in range(6):
        assert exact[f"r{k}", "power"].truth == late[f"r{k}", "power"].truth
        assert exact[f"r{k}", "power"].half_width * 3 < late[f"r{k}", "power"].half_width


def test_four_times_the_time_halves_the_half_width() -> None:
    short, long = (judge(Case(program(4), (COUNTER, GPM), seconds, 4).run()) for seconds in (20.0, 80.0))
    for key in (("r0", "power"), ("r1", "busy"), ("r2", "sm")):
        assert short[key].half_width / long[key].half_width == pytest.approx(2.0, rel=0.35)
