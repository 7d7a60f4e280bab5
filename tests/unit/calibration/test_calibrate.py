"""A simulated GPU, calibrated on a clock that the test turns: what is found, what is kept, and what uses it."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from gpu_profile import clock as clocks
from gpu_profile.calibration import calibrate as module
from gpu_profile.calibration.calibrate import Calibration, calibrate
from gpu_profile.calibration.loop import Checked
from gpu_profile.calibration.renewals import Estimate
from gpu_profile.calibration.workers import FrameworkWorker, LoadWorker, SimulatedWorker
from gpu_profile.catalogue import Tier
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, ProcessUse, Sample
from gpu_profile.cli import commands
from gpu_profile.clock import Waitable
from gpu_profile.driver import Driver, simulated
from gpu_profile.driver.grammar import open_driver
from gpu_profile.driver.own_process import OwnIds
from gpu_profile.driver.simulated import SimulatedQueue, Work
from gpu_profile.driver.simulated.sensors import FOLLOWED_NS, LATE_NS, Sensors
from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.timing.expected import DevicePrior
from gpu_profile.regions.session.sensor_priors import kept_calibration, sensor_priors, sensors_path
from gpu_profile.testing import FakeClock
from gpu_profile.units import nanoseconds

#: What simulated sensors show is so old.
PUBLISHED_MS = 2.0


class Bench:
    """One simulated GPU with its driver."""

    def __init__(self, directory: Path, model: str) -> None:
        self.clock = FakeClock()
        self.node = simulated.create(directory / "node", f'[[device]]\nmodel = "{model}"\n', clock=self.clock)
        self.driver: Driver = open_driver(f"simulated:{self.node}", clock=self.clock)
        self.device: Device = self.driver.devices()[0]

    def worker(self) -> LoadWorker:
        return SimulatedWorker(str(self.node), self.device.uuid, self.clock)

    def calibrated(self) -> Calibration:
        return calibrate(self.driver, self.device, self.worker, self.clock, say=lambda _: None)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_PROFILE_CACHE", str(path := tmp_path_factory.mktemp("cache")))
        yield path


@pytest.fixture(scope="module", params=["H200 SXM", "A10G"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("bench"), request.param)
    yield made
    made.driver.close()


@pytest.fixture(scope="module")
def found(bench: Bench, home: Path) -> Calibration:
    assert home.is_dir()
    return bench.calibrated()


def near(estimate: Estimate, truth: float, slack: float = 0.1) -> bool:
    return abs(estimate.value - truth) <= estimate.half_width + slack


# ---------------------------------------------------------------------- what is found


def test_every_sensor_of_a_simulated_gpu_is_found_as_it_was_made(bench: Bench, found: Calibration) -> None:
    model = SimulatedQueue(bench.node, clock=bench.clock).model
    energy, average = found.responses[rows.ENERGY], found.responses[rows.POWER_AVERAGE]
    assert near(energy.period, 100.0, 0.01)
    assert near(energy.lag, PUBLISHED_MS)
    assert (energy.shape, energy.part_time, average.shape) == ("interval", 1.0, "mean")
    assert near(average.window, 1000.0)
    power = found.responses[rows.POWER]
    assert power.shape == "exponential"
    assert near(power.window, FOLLOWED_NS / 1e6, 0.3)
    assert near(power.lag, LATE_NS / 1e6, 1.0)
    assert near(energy.base, model.idle_w, 0.5)
    assert all(each.reason == "" for each in found.responses.values())
    assert all(near(ratio, 1.0, 0.002) for ratios in found.ratios().values() for ratio in ratios)
    if rows.UTILIZATION in found.responses:
        assert near(found.responses[rows.UTILIZATION].window, model.utilization_window_ns / 1e6, 0.3)


def test_the_loop_that_was_held_out_is_told_within_its_intervals(found: Calibration) -> None:
    told = [each for each in found.checked if not each.reason]
    assert {each.signal for each in told} >= {"energy"}
    assert {each.region for each in told} == {"products", "copies"}
    assert found.missed == ""


def test_power_samples_that_say_more_are_told_in_the_joules_of_the_counter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An H200 says 1 to 1.5 % more."""
    as_made = Sensors.power_samples

    def more(sensors: Sensors, t_ns: int, after_ns: int) -> tuple[Ints, Ints]:
        ends, mw = as_made(sensors, t_ns, after_ns)
        return ends, np.rint(mw * 1.04).astype(np.int64)

    monkeypatch.setattr(Sensors, "power_samples", more)
    monkeypatch.setattr(module, "_CHIPS_S", 15.0)
    bench = Bench(tmp_path, "H200 SXM")
    found = bench.calibrated()
    bench.driver.close()
    assert [ratio.value for ratio in found.ratios()["power"]] == pytest.approx([1.04, 1.04], abs=0.002)
    told = {each.region: each for each in found.checked if each.signal == "power"}
    assert set(told) == {"products", "copies"}
    assert [each.reason for each in told.values()] == ["", ""]
    assert found.missed == ""


def test_what_is_kept_is_found_again_for_this_gpu_and_this_driver_alone(bench: Bench, found: Calibration) -> None:
    assert found.keep() == ""
    version = bench.driver.version
    content = kept_calibration(bench.device, version)
    assert content is not None
    assert content == json.loads(json.dumps(found.to_json()))
    known = sensor_priors(bench.device, version)
    energy = known.sensors[rows.ENERGY].sensor
    assert (energy.period_ns / 1e6, energy.lag_ns / 1e6) == pytest.approx((100.0, PUBLISHED_MS), abs=0.2)
    assert known.untrusted == ""
    assert known.whole
    # Under another driver, what holds for such boards.
    other = sensor_priors(bench.device, version + "1").sensors
    assert other == DevicePrior.of_board(bench.device.name).sensors
    assert known.sensors[rows.POWER].stamped
    assert known.sensors[rows.POWER] not in other.values()


# ---------------------------------------------------------------------- the command


def test_the_command_says_what_it_found_and_doctor_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(clocks, "SYSTEM_CLOCK", clock)
    assert home.is_dir()
    node = simulated.create(tmp_path / "node", '[[device]]\nmodel = "A10G"\n', clock=clock)
    backend = ["--backend", f"simulated:{node}"]
    monkeypatch.setattr(module, "_CHIPS_S", 20.0)
    done = CliRunner().invoke(commands, ["calibrate", *backend], catch_exceptions=False, standalone_mode=False)
    assert "energy" in done.output, done.output
    assert "since the renewal before" in done.output
    assert re.search(r"energy +100\.000 ms", done.output), "the driver has the same clock"
    assert "loop, copies: energy" in done.output
    assert done.return_value == 0
    told = CliRunner().invoke(commands, ["doctor", *backend], standalone_mode=False)
    assert "sensors" in told.output
    assert "calibrated on" in told.output


def test_a_result_that_cannot_be_stored_is_printed_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Calibration
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPU_PROFILE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(module, "calibrate", lambda *_, **__: found)
    node = simulated.create(tmp_path / "node", '[[device]]\nmodel = "A10G"\n')
    done = CliRunner().invoke(commands, ["calibrate", "--backend", f"simulated:{node}"], standalone_mode=False)
    assert str(done.exception) == f"the calibration cannot be stored: {tmp_path}/file/sensors: Not a directory"
    assert "since the renewal before" in done.output


def refused(arguments: Sequence[str]) -> str:
    done = CliRunner().invoke(commands, ["calibrate", *arguments], standalone_mode=False)
    assert isinstance(done.exception, GpuProfileError), done.output
    return str(done.exception)


def test_the_command_takes_one_whole_gpu_that_can_be_read_often(tmp_path: Path) -> None:
    two = simulated.create(tmp_path / "two", '[[device]]\nmodel = "A10G"\n[[device]]\nmodel = "A10G"\n')
    assert "one GPU at a time" in refused(["--backend", f"simulated:{two}"])
    assert "there is no GPU to calibrate" in refused(["--backend", "none"])


# ---------------------------------------------------------------------- what must not be


class Busy:
    """A driver of a GPU that somebody else uses."""

    version = "1"

    def __init__(self, pids: Sequence[int] = (), utilization: int = 0) -> None:
        self._pids, self._utilization, self.clock = pids, utilization, FakeClock()

    def processes(self, device: Device) -> list[ProcessUse]:
        return [ProcessUse(pid) for pid in self._pids]

    def read(self, device: Device, tier: Tier) -> list[Sample]:
        now = self.clock.now_ns()
        return [Sample(rows.UTILIZATION, now - 10**8, now, self._utilization)]

    def boundary(self, device: Device) -> list[Sample]:
        return []

    drain = boundary


def never() -> Any:
    raise AssertionError("a load was put on a GPU that others use")


@pytest.mark.parametrize(
    ("driver", "said"), [(Busy([1]), r"processes 1\b"), (Busy(utilization=30), "30% busy")], ids=["processes", "work"]
)
def test_a_gpu_that_others_use_is_left_alone(driver: Busy, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        calibrate(driver, Device("GPU-1"), never, driver.clock, say=lambda _: None)  # type: ignore[arg-type]


@pytest.fixture
def h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "_CHIPS_S", 10.0)
    made = Bench(tmp_path, "H200 SXM")
    yield made
    made.driver.close()


class Others:
    """Work of another process that begins at `begin_s` and ends at `end_s`: 10 of every 50 ms."""

    def __init__(self, bench: Bench, begin_s: float, end_s: float) -> None:
        self._queue = SimulatedQueue(bench.node, bench.device.uuid, clock=bench.clock)
        start_ns = self._next_ns = bench.clock.now_ns() + nanoseconds(begin_s)
        end_ns, wait = start_ns + nanoseconds(end_s - begin_s), bench.clock.wait

        def waits(event: Waitable, timeout_s: float) -> bool:
            now = bench.clock.now_ns()
            if self._next_ns <= now < end_ns:
                self._next_ns = now + 50_000_000
                self._queue.launch(Work(seconds=0.010))
            return wait(event, timeout_s)

        bench.clock.wait = waits  # type: ignore[method-assign]


@pytest.mark.parametrize(("begin_s", "end_s"), [(4.0, 99.0), (5.0, 12.0), (25.0, 99.0)], ids=["all", "chips", "loop"])
def test_work_of_processes_that_the_driver_does_not_list_is_seen_whenever_it_begins(
    h200: Bench, monkeypatch: pytest.MonkeyPatch, begin_s: float, end_s: float
) -> None:
    monkeypatch.setattr(module, "own_ids", lambda: OwnIds(frozenset({os.getpid()}), None, on_host=False))
    Others(h200, begin_s, end_s)
    with pytest.raises(UsageError, match=r"\d+% busy by others' work: calibrate it when it is idle"):
        h200.calibrated()


@pytest.mark.parametrize("on_host", [True, False])
def test_a_process_that_is_there_for_a_while_only_ends_the_calibration(
    h200: Bench, monkeypatch: pytest.MonkeyPatch, on_host: bool
) -> None:
    """In a container the driver may list this process under an unknown PID: only a second process is another one."""
    ids = OwnIds(frozenset({os.getpid()}), os.getpid() if on_host else None, on_host)
    monkeypatch.setattr(module, "own_ids", lambda: ids)
    began_ns = h200.clock.now_ns()

    def processes(_: Device) -> list[ProcessUse]:
        seconds = (h200.clock.now_ns() - began_ns) / 1e9
        mine = [ProcessUse(os.getpid() if on_host else 77)] if seconds > 2 else []
        return mine + ([ProcessUse(4242)] if 10 < seconds < 12 else [])

    monkeypatch.setattr(h200.driver, "processes", processes)
    with pytest.raises(UsageError, match=r"is used by others \(processes (77, )?4242\)"):
        h200.calibrated()
    assert 10 <= (h200.clock.now_ns() - began_ns) / 1e9 <= 12


def test_a_process_listed_before_the_load_is_another_one_in_a_container_too(
    h200: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "own_ids", lambda: OwnIds(frozenset({1}), None, on_host=False))
    monkeypatch.setattr(h200.driver, "processes", lambda _: [ProcessUse(77)])
    with pytest.raises(UsageError, match=r"is used by others \(processes 77\)"):
        calibrate(h200.driver, h200.device, never, h200.clock, say=lambda _: None)


def test_a_timing_that_changes_before_the_loop_is_kept_with_its_reason(
    h200: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_made, began_ns = Sensors.energy_mj, h200.clock.now_ns()

    def changed(sensors: Sensors, t_ns: int, loaded_ns: int) -> int:
        return as_made(sensors, t_ns - 60_000_000 if t_ns > began_ns + 20_000_000_000 else t_ns, loaded_ns)

    monkeypatch.setattr(Sensors, "energy_mj", changed)
    found = h200.calibrated()
    assert found.responses[rows.ENERGY].reason == "the readings of the loop contradict its timing"
    assert rows.ENERGY not in DevicePrior.of(json.loads(json.dumps(found.to_json()))).sensors


@pytest.mark.parametrize(("factor", "missed"), [(0.8, False), (1.1, True)], ids=["throttled", "more"])
def test_a_board_that_draws_less_in_the_loop_than_before_does_not_make_it_untrusted(
    h200: Bench, monkeypatch: pytest.MonkeyPatch, factor: float, missed: bool
) -> None:
    """Throttling lowers the power. Nothing in idle time between the loads shows work that adds to it."""
    counted, sampled = Sensors.energy_mj, Sensors.power_samples
    from_ns = h200.clock.now_ns() + 20_000_000_000

    def energy(sensors: Sensors, t_ns: int, loaded_ns: int) -> int:
        whole, before = counted(sensors, t_ns, loaded_ns), counted(sensors, min(t_ns, from_ns), loaded_ns)
        return before + round(factor * (whole - before))

    def power(sensors: Sensors, t_ns: int, after_ns: int) -> tuple[Ints, Ints]:
        ends, mw = sampled(sensors, t_ns, after_ns)
        return ends, np.rint(mw * np.where(ends > from_ns, factor, 1.0)).astype(np.int64)

    monkeypatch.setattr(Sensors, "energy_mj", energy)
    monkeypatch.setattr(Sensors, "power_samples", power)
    found = h200.calibrated()
    told = {each.region: each for each in found.checked if each.signal == "energy" and not each.reason}
    assert set(told) == {"products", "copies"}
    assert all(each.estimate == pytest.approx(factor * each.truth, rel=0.03) for each in told.values())
    assert bool(found.missed) == missed


def test_what_misses_in_the_loop_makes_a_gpu_untrusted(bench: Bench, found: Calibration, home: Path) -> None:
    assert home.is_dir()
    wrong = Checked("copies", "energy", 300.0, 2.0, 380.0, 1.0, "")
    assert wrong.missed
    assert not wrong._replace(reason="lock-step").missed
    doubted = found._replace(missed=module._missed((wrong,)), driver_version="another")
    assert doubted.keep() == ""
    known = sensor_priors(bench.device, "another")
    assert known.untrusted.startswith("pooled numbers of this GPU are not trusted: in its calibration, energy of")


def test_a_device_that_marks_nothing_is_no_calibration(tmp_path: Path) -> None:
    made = Bench(tmp_path, "A10G")
    worker = made.worker()

    class Deaf:
        device_uuid = made.device.uuid

        def record(self) -> object:
            return object()

        def resolve(self, mark: object) -> int | None:
            return None

    worker.stream = Deaf()
    with pytest.raises(GpuProfileError, match="has not run what was launched for seconds"):
        calibrate(made.driver, made.device, lambda: worker, made.clock, say=lambda _: None)
    made.driver.close()


def test_without_a_framework_there_is_no_load_on_a_real_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs PyTorch or CuPy"):
        FrameworkWorker(0, FakeClock())


KEPT = (
    '{"schema": 1, "missed": "", "made_ns": 0, "signals": {"energy": '
    '{"reason": "", "shape": "mean", "period_ms": [%s, 0], "lag_ms": [%s, 0], "window_ms": [0, 0]}}}'
)


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"schema": 1}', '{"schema": 2, "signals": {}, "missed": ""}',
        '{"schema": 1, "signals": {"energy": {}}, "missed": ""}',
        '{"schema": 1, "signals": {"nothing": {"reason": ""}}, "missed": ""}',
        KEPT % (100, "NaN"),
        KEPT % ("1e9", 0),
        KEPT % (-100, 0),
        KEPT % ('"far"', 0),
        (KEPT % (100, 0)).replace('"made_ns": 0, ', ""),
        (KEPT % (100, 0)).replace('"made_ns": 0', '"made_ns": 1e40'),
        (KEPT % (100, 0)).replace('"made_ns": 0', '"made_ns": NaN'),
        (KEPT % (100, 0)).replace('"made_ns": 0', '"made_ns": "today"'),
    ],
)  # fmt: skip
def test_a_file_that_holds_something_else_is_as_if_it_were_not_there(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PROFILE_CACHE", str(tmp_path))
    device = Device("GPU-1", name="A10G")
    path = sensors_path(device, "1")
    assert path is not None
    path.parent.mkdir()
    path.write_text(content)
    assert sensor_priors(device, "1").sensors == {}
