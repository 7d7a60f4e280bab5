import numpy as np
import pytest

from gpu_profile.analysis.costs import BenchmarkResult, render_costs, whole_costs
from gpu_profile.analysis.devices import timeline_of
from gpu_profile.catalogue.samples import Device, Interval
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS
from gpu_profile.errors import UsageError
from gpu_profile.history.timeline import Timeline
from gpu_profile.recording import Columns
from gpu_profile.units import NS_PER_S

T0 = 1_767_225_600 * NS_PER_S
COMMAND = Interval(T0, T0 + 45 * NS_PER_S)
RESULT = BenchmarkResult(100, 50_000, 10_000, 30.0, {"model_id": "m"})


def gpu(uuid: str = "GPU-a", *, until_s: float = 45.0) -> Timeline:
    """100 W for 10 s, 500 W for 30 s, 100 W again."""
    times_s = np.arange(0.0, until_s + 0.05, 0.1)
    joules = np.interp(times_s, [0.0, 10.0, 40.0, 45.0], [0.0, 1000.0, 16_000.0, 16_500.0])
    at = T0 + (times_s * NS_PER_S).astype(np.int64)
    values = np.array([ENERGY.quanta(each) for each in joules.tolist()], np.int64)
    return timeline_of(Device(uuid, index=0, name="H200"), {ENERGY.key: Columns(at, at, values)}, [])


def test_the_run_is_where_the_energy_of_its_length_is_highest() -> None:
    costs = whole_costs([gpu(), gpu("GPU-b")], COMMAND, RESULT)
    assert costs.energy_j == {"requests": pytest.approx(30_000), "prefill": None, "decode": None}
    assert costs.start_ns == pytest.approx(T0 + 10 * NS_PER_S, abs=0.11 * NS_PER_S)
    assert costs.token_j("requests") == pytest.approx(3.0)
    assert costs.per_request(costs.device_s) == 0.6
    assert costs.idle_j == pytest.approx(3000)
    assert costs.settings == {"GPUs": "2 x H200", "model_id": "m"}
    assert "prefill and decode: whole GPUs were measured" in render_costs(costs)


@pytest.mark.parametrize(
    ("timeline", "length_s", "says"),
    [
        (gpu(), 60.0, "the result is of 60.0 s, and the command took 45.0 s: another run?"),
        (gpu(until_s=30.0), 30.0, "samples of the energy of H200 cover only"),
        (
            Timeline(Device("GPU-c"), [GRAPHICS], capacity=2),
            30.0,
            "GPU-c: its driver reports neither energy nor power; choose GPUs with --device",
        ),
    ],
)
def test_energy_that_was_not_measured_is_an_error(timeline: Timeline, length_s: float, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("?", "[?]")):
        whole_costs([timeline], COMMAND, BenchmarkResult(1, 1, 1, length_s))
