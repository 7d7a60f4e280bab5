from types import SimpleNamespace
from typing import Any

from gpu_profile.catalogue.samples import Device, Interval, Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, MEMORY_USED, POWER_AVERAGE
from gpu_profile.cli.outcome import RunOutcome
from gpu_profile.history.timeline import Timeline

MS = 1_000_000
T0 = 1_767_225_600_000_000_000


def outcome(length_ns: int, *timelines: Timeline) -> RunOutcome:
    states = [SimpleNamespace(timeline=timeline, up=True) for timeline in timelines]
    watch: Any = SimpleNamespace(states=states, interval_s=0.2, recorder=None, problem="", driver_name="nvml")
    return RunOutcome(["true"], 0, Interval(T0, T0 + length_ns), watch, None, since_ns=T0)


def looked_back(index: int) -> Timeline:
    """A device whose first reading came after the command: only its power looks back over the run."""
    timeline = Timeline(Device(f"GPU-{index}", index=index, name="NVIDIA H200"), [POWER_AVERAGE, MEMORY_USED])
    timeline.append([Sample(POWER_AVERAGE, T0 - 500 * MS, T0 + 500 * MS, POWER_AVERAGE.quanta(75.0))])
    timeline.append([Sample(MEMORY_USED, T0 + 500 * MS, T0 + 500 * MS, 0)])
    return timeline


def test_a_command_that_ends_before_the_first_reading_gets_one_line_for_each_gpu() -> None:
    lines = outcome(MS, *map(looked_back, range(5))).text().splitlines()
    assert lines == [f"[GPU {i}] NVIDIA H200: nothing measured, 1.00 ms are too short for readings" for i in range(5)]


def test_an_idle_gpu_has_its_coverage_beside_its_energy_unless_it_is_whole() -> None:
    timelines = [Timeline(Device(f"GPU-{i}", index=i, name="NVIDIA H200"), [GRAPHICS, ENERGY]) for i in range(3)]
    for timeline, ends_ms in zip(timelines, (1000, 1000, 600), strict=True):
        for at in range(0, ends_ms, 100):
            timeline.append([Sample(GRAPHICS, T0 + at * MS, T0 + (at + 100) * MS, 0)])
    *_, whole, part = outcome(1000 * MS, *timelines).text().splitlines()
    assert whole == "[GPU 1] NVIDIA H200: idle"
    assert part == "[GPU 2] NVIDIA H200: idle | coverage: 60.0%"


def test_lines_of_devices_fold_to_the_terminal() -> None:
    text = outcome(MS, looked_back(0)).text(width=40)
    assert text.splitlines() == ["[GPU 0] NVIDIA H200: nothing measured,", "  1.00 ms are too short for readings"]


def test_only_the_device_that_was_read_in_time_has_a_report() -> None:
    read = Timeline(Device("GPU-a", index=0, name="NVIDIA H200"), [GRAPHICS, ENERGY])
    for at in range(0, 1000, 100):
        read.append([Sample(GRAPHICS, T0 + at * MS, T0 + (at + 100) * MS, GRAPHICS.quanta(0.5))])
    *lines, last = outcome(1000 * MS, read, looked_back(1)).text().splitlines()
    assert lines[0] == "[GPU 0] NVIDIA H200"
    assert "  util.gpu: mean 50.0% | p50 50.0% | p95 50.0% | max 50.0%" in lines
    assert last.startswith("[GPU 1] NVIDIA H200: nothing measured, ")
    assert sum(line.startswith("[GPU") for line in lines) == 1
