"""The NVML driver over a shared library in C: its own calls, structs and symbols, as a real one would meet them."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pynvml
import pytest
from support.nvml_stub.build import SONAME, CannotBuildError, Stub, build, child_environment, installed

from gpu_profile.catalogue import ALL_GROUPS, Tier, signal
from gpu_profile.catalogue.memory import ECC_COUNTS, ECC_KINDS, SPARE_ROWS
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, SM, THROTTLES_SEEN, UTILIZATION
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.errors import DeviceLost
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import START_NS, FakeClock
from gpu_profile.units import NS_PER_S

PACKAGES = str(Path(__file__).parents[2] / "instrumentation")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("stub"), soname=False)
    except CannotBuildError as error:
        pytest.skip(str(error))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START_NS + 3600 * NS_PER_S)


class World:
    """The stub, the driver over it, and one clock for both."""

    def __init__(self, stub: Stub, clock: FakeClock, control: Path) -> None:
        self.stub, self.clock, self._control = stub, clock, control
        stub.set_time(clock.now_ns())
        self.driver = NvmlDriver(clock=clock)

    def pass_(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.stub.set_time(self.clock.now_ns())

    def faults(self, *lines: str) -> None:
        # Another file in its place: two changes within one tick of the file system's clock are two all the same.
        changed = self._control.with_suffix(".new")
        changed.write_text("".join(f"{line}\n" for line in lines))
        changed.replace(self._control)


@pytest.fixture
def make(library: Path, clock: FakeClock, tmp_path: Path) -> Iterator[Callable[..., World]]:
    entered = []

    def go(**settings: object) -> World:
        context = installed(library, control=tmp_path / "control", **settings)
        entered.append(context)
        made = World(context.__enter__(), clock, tmp_path / "control")
        drivers.append(made.driver)
        return made

    drivers: list[NvmlDriver] = []
    yield go
    for driver in drivers:
        driver.close()
    for context in reversed(entered):
        context.__exit__(None, None, None)
    assert pynvml.nvmlLib is None or "stub" not in str(pynvml.nvmlLib)


def of(samples: list[Sample], key: str) -> list[Sample]:
    return [sample for sample in samples if sample.signal.key == key]


# ---------------------------------------------------------------------- what there is


def test_all_gpus_are_found_with_what_they_are(make: Callable[..., World]) -> None:
    devices = make(gpus=8).driver.devices()
    assert [device.index for device in devices] == list(range(8))
    assert len({device.uuid for device in devices}) == 8
    assert devices[3].pci_bus_id == "00000000:13:00.0"
    assert (devices[0].name, devices[0].memory_bytes) == ("Stub GPU 80GB", 80 << 30)
    assert (devices[0].clock_max_hz, devices[0].nvlink_bytes_per_s) == (1_980_000_000, 450_000_000_000)


@pytest.mark.parametrize("gpm", [0, 1])
def test_every_signal_can_be_read_gpm_where_the_gpu_has_it(make: Callable[..., World], gpm: int) -> None:
    world = make(gpus=1, gpm=gpm)
    driver = NvmlDriver(clock=world.clock, groups=ALL_GROUPS)
    device = driver.devices()[0]
    capabilities = driver.capabilities(device)
    missing = {row.key: found.reason for row, found in capabilities.items() if not found.available}
    assert {key for key, reason in missing.items() if "the driver counts it" in reason} == {
        row.key for row in THROTTLES_SEEN
    }
    lacking = {key for key in missing if not key.startswith("throttle_seen")}
    assert {missing[key] for key in lacking} == (set() if gpm else {"needs Hopper or newer"})
    assert {signal(key).tier for key in lacking} == (set() if gpm else {Tier.GPM})
    read = [*driver.boundary(device)]
    world.pass_(1.0)
    read += [one for tier in (Tier.FAST, Tier.SLOW, Tier.RARE) for one in driver.read(device, tier)]
    read += [*driver.drain(device), *driver.boundary(device)]
    assert {one.signal for one in read} == {row for row, found in capabilities.items() if found.available}
    assert driver.errors == {}
    driver.close()


def test_structs_and_scopes_arrive_where_they_belong(make: Callable[..., World]) -> None:
    world = make(gpus=2)
    driver = NvmlDriver(clock=world.clock, groups=ALL_GROUPS)
    device = driver.devices()[1]
    values = {one.signal.key: one.value for tier in Tier for one in driver.read(device, tier)}
    assert [values[f"ecc_sram_{unit}"] for unit in ("l2", "sm", "pcie", "microcontroller", "other")] == [1, 2, 3, 4, 5]
    assert [values[f"ecc_{count}_{kind}_sram"] for kind in ECC_KINDS for count in ECC_COUNTS] == [0, 1, 10, 11]
    assert [values[f"nvlink_{link}_errors_crc"] for link in range(18)] == list(range(18))
    assert [values[f"c2c_{link}_errors_interrupt"] for link in range(10)] == list(range(10))
    assert (values["fabric_state"], values["fabric_status"], values["fabric_health"]) == (3, 0, 0xAA)
    assert values["fabric_health_summary"] == 1
    assert [values[f"spare_rows_{spare}"] for spare in SPARE_ROWS] == [2550, 4, 3, 2, 1]
    assert (values["repair_pending_channel"], values["repair_pending_tpc"]) == (1, 0)
    assert (values["addressing_mode"], values["confidential_compute"]) == (2, 1)
    assert (values["remapped_banks_active"], values["remapped_banks_inactive"]) == (3, 2)
    assert (values["temperature_margin"], values["temperature_margin_limit_shutdown"]) == (-1, -8)
    assert [values[f"temperature_limit_{name}"] for name in ("shutdown", "slowdown", "mem_max", "gpu_max")] == [
        95,
        94,
        93,
        92,
    ]
    assert (values["bar1_total"], values["bar1_used"]) == (128 << 10, 2)
    assert values["power_module_average"] == values["power_average"] + 120_000
    assert values["nvlink_3_rx"] == values["nvlink_rx"] // 18
    driver.close()


def test_one_process_a_gpu_is_told_with_its_memory_and_its_share_since_the_last_call(
    make: Callable[..., World],
) -> None:
    world = make(gpus=2, period_s=3, busy=0.3)
    device = world.driver.devices()[1]
    (use,) = world.driver.processes(device)
    assert (use.pid, use.memory_bytes, use.utilization) == (4001, 5 << 30, None)
    for _ in range(4):
        before = world.clock.now_ns()
        world.pass_(4)
        (use,) = world.driver.processes(device)
        truth = world.stub.busy_ns(1, before, world.clock.now_ns()) / (4 * NS_PER_S)
        # Both ends lie up to a sample's period (1/6 s) earlier.
        assert use.utilization == pytest.approx(truth, abs=1 / 24 + 0.005)


# ---------------------------------------------------------------------- what is read


def test_energy_and_busy_time_come_out_as_the_library_knows_them(make: Callable[..., World]) -> None:
    world = make(gpus=2, period_s=1.7, busy=0.4)
    device = world.driver.devices()[1]
    samples = list(world.driver.read(device, Tier.FAST)) + list(world.driver.drain(device))
    start = world.clock.now_ns()
    for _ in range(40):
        world.pass_(0.25)
        samples += [*world.driver.read(device, Tier.FAST), *world.driver.drain(device)]
    end = world.clock.now_ns()
    readings = of(samples, "energy")
    truth = world.stub.energy_mj(1, end) - world.stub.energy_mj(1, start)
    assert readings[-1].value - readings[0].value == truth
    windows = [sample for sample in of(samples, "utilization") if sample.t_end_ns > start]
    assert all(a.t_end_ns == b.t_start_ns for a, b in pairwise(windows))
    measured = sum(sample.value / 100 * (sample.t_end_ns - sample.t_start_ns) for sample in windows)
    first, last = windows[0].t_start_ns, windows[-1].t_end_ns
    # Whole per cents of windows: within half of one on average, and here far less.
    assert measured == pytest.approx(world.stub.busy_ns(1, first, last), rel=0.01)
    assert last > end - NS_PER_S // 6 - 1000


def test_the_buffer_is_read_in_the_two_calls_that_the_binding_makes_and_gives_the_same_rows(
    make: Callable[..., World],
) -> None:
    world = make(gpus=1)
    device = world.driver.devices()[0]
    world.driver.drain(device)
    before = world.stub.calls()["nvmlDeviceGetSamples"]
    seen_us = world.clock.now_ns() // 1000
    world.pass_(2.0)
    ours = of(list(world.driver.drain(device)), "utilization")
    assert world.stub.calls()["nvmlDeviceGetSamples"] == before + 2 * 2, "of utilisation, and of power"
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    _, theirs = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, seen_us)
    expected = [(row.timeStamp * 1000, row.sampleValue.uiVal) for row in theirs]
    assert [(sample.t_end_ns, sample.value) for sample in ours][-len(expected) :] == expected
    assert len(expected) >= 11


def test_a_gpm_window_is_the_share_of_time_in_which_the_gpu_was_busy(make: Callable[..., World]) -> None:
    world = make(gpus=1, gpm=1, period_s=0.7, busy=0.5)
    device = world.driver.devices()[0]
    assert world.driver.boundary(device) == []
    start = world.clock.now_ns() // 10**8 * 10**8
    world.pass_(2.0)
    found = {sample.signal: sample for sample in world.driver.boundary(device)}
    share = world.stub.busy_ns(0, start, start + 2 * NS_PER_S) / (2 * NS_PER_S)
    assert found[GRAPHICS].value == pytest.approx(share * 10_000, abs=1)
    assert found[SM].value == pytest.approx(0.8 * share * 10_000, abs=1)
    assert (found[SM].t_start_ns, found[SM].t_end_ns) == (world.clock.now_ns() - 2 * NS_PER_S, world.clock.now_ns())


# ---------------------------------------------------------------------- what goes wrong


def test_a_lost_gpu_leaves_the_others_alone_and_comes_back(make: Callable[..., World]) -> None:
    world = make(gpus=3)
    sampler = Sampler(lambda: world.driver, clock=world.clock)
    sampler.step(force=True)

    def up() -> list[bool]:
        world.pass_(1.1)
        sampler.step(force=True)
        return [state.up for state in sampler.states.values()]

    assert up() == [True, True, True]
    world.faults("lost 1")
    assert up() == [True, False, True]
    assert "fell off the bus" in list(sampler.states.values())[1].reason
    with pytest.raises(DeviceLost):
        world.driver.read(list(sampler.states.values())[1].device, Tier.FAST)
    marks = [timeline.watermark_ns([ENERGY]) for timeline in sampler.timelines]
    assert marks[0] == marks[2] == world.clock.now_ns()
    world.faults()
    assert up() == [True, True, True]


def test_a_function_can_fail_on_one_gpu_and_an_xid_is_told_once(make: Callable[..., World]) -> None:
    world = make(gpus=2)
    devices = list(world.driver.devices())
    for device in devices:
        world.driver.read(device, Tier.SLOW)
    world.faults(f"error 0 nvmlDeviceGetTemperature {pynvml.NVML_ERROR_UNKNOWN}", "xid 1 79")
    found = [{sample.signal.key for sample in world.driver.read(device, Tier.SLOW)} for device in devices]
    assert ["temperature" in keys for keys in found] == [False, True]
    (event,) = world.driver.events()
    assert (event.device, event.code) == (devices[1].uuid, 79)
    assert world.driver.events() == []


def test_a_call_that_hangs_in_c_holds_up_its_thread_alone_and_ends_with_the_fault(make: Callable[..., World]) -> None:
    world = make(gpus=2)
    first, second = list(world.driver.devices())
    world.driver.read(first, Tier.FAST)
    world.driver.read(second, Tier.FAST)
    other = NvmlDriver(clock=world.clock)
    world.faults("hang 1 nvmlDeviceGetFieldValues 60")
    thread = threading.Thread(target=world.driver.read, args=(second, Tier.FAST), daemon=True)
    thread.start()
    started = time.monotonic()
    assert other.read(Device(first.uuid), Tier.FAST)
    assert thread.is_alive()
    world.faults()
    thread.join(10)
    assert not thread.is_alive()
    assert time.monotonic() - started < 10
    other.close()


def test_a_call_can_be_made_slow(make: Callable[..., World]) -> None:
    world = make(gpus=1)
    device = world.driver.devices()[0]
    world.faults("hang * nvmlDeviceGetUtilizationRates 0.05")
    handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
    started = time.monotonic()
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu <= 100
    assert time.monotonic() - started >= 0.05


# ---------------------------------------------------------------------- another process

CHILD = """
import json
from gpu_profile.catalogue import Tier
from gpu_profile.driver.grammar import open_driver
driver = open_driver("auto")
devices = driver.devices()
values = {s.signal.key: s.value for s in driver.read(devices[0], Tier.FAST)}
print(json.dumps([driver.name, len(devices), driver.version, values["energy"]]))
"""


def test_a_child_finds_the_stub_where_it_would_find_the_drivers_library(library: Path) -> None:
    named = build(library.parent / "named")
    assert named.name == SONAME
    environment = {**child_environment(named, gpus=3), "PYTHONPATH": PACKAGES}
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment, check=True)
    name, gpus, version, energy = json.loads(done.stdout)
    assert (name, gpus, version) == ("nvml", 3, "580.126-stub")
    assert energy > 0


def test_without_a_compiler_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CannotBuildError, match="no C compiler"):
        build(tmp_path)


def test_utilisation_follows_the_wave_with_the_sensors_lag(make: Callable[..., World]) -> None:
    world = make(gpus=1, period_s=4, busy=0.5)
    handle = pynvml.nvmlDeviceGetHandleByUUID(world.driver.devices()[0].uuid)
    seen = []
    for _ in range(80):
        world.pass_(0.05)
        seen.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    assert {0, 100} <= set(seen)
    assert 35 <= seen.count(100) <= 45
    assert UTILIZATION.window_ns == NS_PER_S // 6
