"""Energy of MIG instances: from a simulated node, and from samples that are incomplete."""

from functools import partial
from pathlib import Path

import pytest
from support.mig import gpu_with, mig_node, phase
from unit.exporter.settings import served

from gpu_profile.catalogue import SIGNALS
from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.attribution.instance_windows import ACTIVITIES, GpuWindows
from gpu_profile_exporter.node import ExporterNode

#: Both keep all multiprocessors resident while they run. The instructions of the first need twice the power.
DENSE, SPARSE = (partial(phase, compute=share, memory=0.0, precision="fp32") for share in (0.7, 0.27))
SECOND = NS_PER_S


def test_an_instance_with_twice_the_power_at_the_same_activity_has_its_true_energy(tmp_path: Path) -> None:
    dense = [DENSE(13, 0.9), DENSE(7, 0.2)]
    sparse = [SPARSE(5, 0.9), SPARSE(11, 0.1)]
    with mig_node(tmp_path, gpu_with(dense, sparse)) as node:
        node.run(80)
        start_ns, before = node.clock.now_ns(), dict(node.joules())
        node.run(80)
        grown = {name: joules - before.get(name, 0.0) for name, joules in node.joules().items()}
        gpu, *instances = node.true_joules(start_ns, node.clock.now_ns())
    assert instances[0] / instances[1] > 3  # 2 by the power, the rest by the time
    assert grown["job1"] == pytest.approx(instances[0], rel=0.03)
    assert grown["job2"] == pytest.approx(instances[1], rel=0.03)
    assert grown["idle"] == pytest.approx(gpu - sum(instances), rel=0.03)
    assert sum(grown.values()) == pytest.approx(gpu, rel=0.01)


def test_instances_in_step_are_not_separated(tmp_path: Path) -> None:
    with mig_node(tmp_path, gpu_with(*[[phase(13, 0.9), phase(7, 0.2)]] * 2)) as node:
        node.run(80)
        joules = node.joules()
    assert joules["shared"] > 0
    assert not {"job1", "job2"} & set(joules)


def test_an_instance_that_comes_and_goes_leaves_no_energy_with_the_others(tmp_path: Path) -> None:
    """Though it works before the exporter lists it, and until it is removed."""
    others = [phase(13, 0.9), phase(7, 0.2)], [SPARSE(5, 0.9), SPARSE(11, 0.1)]
    third = ["duration_s = 93", phase(37, 0.8), "duration_s = 1000"]
    with mig_node(tmp_path, gpu_with(*others, third)) as node:
        last = node.uuids[-1]
        hidden = {last}
        node.rounds._choose = lambda _, devices: {each.uuid for each in devices} - hidden
        node.run(90)
        truth_ns, before = node.clock.now_ns(), dict(node.joules())
        node.run(7)
        hidden.clear()  # created at 93 s, and listed up to 5 s later
        node.run(33)
        hidden.add(last)
        node.run(20)
        after = node.joules()
        gpu, *instances = node.true_joules(truth_ns, node.clock.now_ns())
    grown = {name: joules - before.get(name, 0.0) for name, joules in after.items()}
    assert sum(grown.values()) == pytest.approx(gpu, rel=0.02)
    assert grown["changed"] > 0
    for name, true_j in zip(("job1", "job2", "job3"), instances, strict=True):
        assert grown.get(name, 0.0) <= 1.1 * true_j


def energy(*readings: tuple[float, float]) -> list[int]:
    """Readings of the counter: seconds and J."""
    number = SIGNALS.index(ENERGY)
    return [part for at, j in readings for part in (number, int(at * SECOND), int(at * SECOND), round(j * 1000))]


def activity(*rows: tuple[float, float, float]) -> list[int]:
    """All activities with the same value: start and end in seconds, and value."""
    numbers = [SIGNALS.index(signal) for signal in ACTIVITIES]
    return [
        part
        for a, b, value in rows
        for number in numbers
        for part in (number, int(a * SECOND), int(b * SECOND), round(value * 10_000))
    ]


def test_windows_end_with_readings_of_gpm_and_have_their_energy() -> None:
    windows = GpuWindows()
    windows.add_energy(energy(*((at / 10, at * 10.0) for at in range(41))))
    windows.add_activity("a", activity(*((at / 4, at / 4 + 0.25, 0.5) for at in range(2, 12))))
    windows.add_activity("b", activity((0.3, 3.1, 0.25)))
    (one, two) = windows.settled(["a", "b"])
    # The first second of `a` is incomplete.
    assert (one.start_ns, one.end_ns) == (int(1.0 * SECOND), 2 * SECOND)
    assert two.end_ns == 3 * SECOND
    assert two.joules == pytest.approx(100)
    assert one.activity == {"a": pytest.approx((0.5,) * 3), "b": pytest.approx((0.25,) * 3)}
    assert windows.settled(["a", "b"]) == []


def test_a_window_of_which_an_instance_has_a_part_is_left_out() -> None:
    windows = GpuWindows()
    windows.add_energy(energy(*((at / 10, at * 10.0) for at in range(61))))
    windows.add_activity("a", activity(*((float(at), at + 1.0, 0.5) for at in range(6))))
    windows.add_activity("b", activity((0.0, 1.5, 1.0)))  # removed at 1.5 s
    windows.add_activity("c", activity((3.5, 6.0, 1.0)))  # created before 3.5 s
    ends = {window.end_ns // SECOND: set(window.activity) for window in windows.settled(["a", "c"])}
    assert ends == {1: {"a", "b"}, 3: {"a"}, 5: {"a", "c"}, 6: {"a", "c"}}


def test_a_pause_in_the_readings_of_an_instance_is_not_taken_for_its_absence() -> None:
    """Its energy would be the others'."""
    windows = GpuWindows()
    windows.add_energy(energy(*((at / 10, at * 10.0) for at in range(81))))
    windows.add_activity("a", activity(*((float(at), at + 1.0, 0.5) for at in range(8))))
    windows.add_activity("b", activity((0.0, 2.0, 1.0)))
    ends = [window.end_ns // SECOND for window in windows.settled(["a", "b"])]
    windows.add_activity("b", activity((6.0, 8.0, 1.0)))
    ends += [window.end_ns // SECOND for window in windows.settled(["a", "b"])]
    assert ends == [1, 2, 7, 8]


def test_no_window_spans_a_reset_of_the_counter_or_a_step_of_the_clock() -> None:
    windows = GpuWindows()
    hour = 3600
    windows.add_activity("a", activity(*((hour + at, hour + at + 1.0, 0.5) for at in range(6))))
    windows.add_energy(energy(*((hour + at, j) for at, j in ((0, 500), (1, 600), (2.5, 10), (4, 160), (6, 360)))))
    settled = windows.settled(["a"])
    assert [(w.end_ns // SECOND - hour, w.joules) for w in settled] == [(4, 150.0), (5, 100.0), (6, 100.0)]
    # An hour back.
    windows.add_activity("a", activity(*((float(at), at + 1.0, 0.5) for at in range(6))))
    windows.add_energy(energy(*((at, at * 100.0) for at in range(7))))
    assert len(windows.settled(["a"])) == 6


def test_without_gpm_on_every_instance_there_are_no_windows() -> None:
    windows = GpuWindows()
    windows.add_energy(energy((0, 0), (5, 500)))
    windows.add_activity("a", activity((0.0, 5.0, 0.5)))
    windows.add_activity("b", [])
    assert windows.settled(["a", "b"]) == []
    assert windows.settled(["a", "c"]) == []


def test_the_exporter_passes_the_samples_of_its_readers_on(tmp_path: Path) -> None:
    node = ExporterNode(served(["--driver", "none", "--attribution-job-mapping-dir", str(tmp_path)]))
    assert node._attribution is not None
    assert node._attribution.take_samples in node.readers.sample_sinks
