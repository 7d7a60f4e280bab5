from collections.abc import Callable

import pytest

from gpu_profile.catalogue import SIGNALS, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, Sample
from gpu_profile.driver import Capability
from gpu_profile.monitor.top.readings import device_line
from gpu_profile.monitor.top.snapshot import BIN_NS, DeviceLine
from gpu_profile.report.devices import device_label
from gpu_profile.sampling.sampler import DeviceState
from gpu_profile.testing import START_NS
from gpu_profile.units import NS_PER_S

GPU = Device("GPU-a", index=3, name="NVIDIA H100", memory_bytes=80 << 30)
STEP_NS = NS_PER_S // 10


def state_of(device: Device = GPU) -> DeviceState:
    return DeviceState.of(device, {row: Capability(available=True) for row in SIGNALS}, 7000)


def feed(
    state: DeviceState, signal: Signal, value: Callable[[float], float], *, until_s: float, from_s: float = 0.0
) -> None:
    """Samples every 0.1 s, with the value in base units at each second."""
    samples = []
    for number in range(round(from_s * 10) + 1, round(until_s * 10) + 1):
        end = START_NS + number * STEP_NS
        samples.append(
            Sample(signal, end - STEP_NS if signal.window_ns else end, end, signal.quanta(value(number / 10)))
        )
    state.timeline.append(samples, START_NS + round(until_s * NS_PER_S))


def line_at(state: DeviceState, seconds: float, *, late_s: float = 0.0) -> DeviceLine:
    return device_line(state, START_NS + round(seconds * NS_PER_S), order=0, late_s=late_s)


def test_means_are_of_the_last_second_and_instants_the_newest() -> None:
    state = state_of()
    feed(state, rows.UTILIZATION, lambda t: 0.9 if t > 9 else 0.1, until_s=10)
    feed(state, rows.POWER, lambda t: 300 if t > 9.5 else 100, until_s=10)
    feed(state, rows.TEMPERATURE, lambda t: 40 + t, until_s=10)
    feed(state, rows.MEMORY_USED, lambda _: 1 << 30, until_s=10)
    line = line_at(state, 10.2)
    assert line.utilisation == pytest.approx(0.9)
    assert line.power_w == pytest.approx(200)
    assert (line.temperature, line.memory_bytes, line.memory_total_bytes) == (50, 1 << 30, 80 << 30)
    assert (line.sm, line.power_limit_w, line.clock_hz, line.throttles) == (None, None, None, None)


def test_activity_counters_come_before_the_utilisation() -> None:
    state = state_of()
    feed(state, rows.UTILIZATION, lambda _: 1.0, until_s=5)
    feed(state, rows.GRAPHICS, lambda _: 0.25, until_s=5)
    assert line_at(state, 5).utilisation == pytest.approx(0.25)


def test_old_readings_are_unknown_and_only_as_old_as_the_driver_is_late() -> None:
    state = state_of()
    feed(state, rows.UTILIZATION, lambda _: 0.5, until_s=10)
    feed(state, rows.TEMPERATURE, lambda _: 40, until_s=10)
    assert line_at(state, 13.9).utilisation == 0.5
    assert line_at(state, 14.1).utilisation is None
    assert line_at(state, 14.1).temperature is None
    assert line_at(state, 14.1, late_s=1.3).utilisation == 0.5
    assert line_at(state, 14.1).busy.columns(1, line_at(state, 14.1).busy.end) == [0.5], "the history stays"


def test_a_device_that_is_down_has_a_reason_a_history_and_no_values() -> None:
    state = state_of()
    feed(state, rows.UTILIZATION, lambda _: 0.5, until_s=10)
    feed(state, rows.POWER_LIMIT, lambda _: 700, until_s=10)
    state.take_event(Event(GPU.uuid, START_NS, "xid", 79))
    state.up, state.reason = False, "it fell off the bus"
    line = line_at(state, 10)
    assert (line.up, line.reason, line.xid) == (False, "it fell off the bus", 79)
    assert (line.utilisation, line.power_limit_w) == (None, None)
    assert line.power_scale_w == 700
    assert sum(line.busy.covered_ns) == 10 * NS_PER_S


def test_the_last_minute_has_every_sample_and_gaps() -> None:
    state = state_of()
    feed(state, rows.UTILIZATION, lambda _: 0.0, until_s=20)
    feed(state, rows.UTILIZATION, lambda t: 1.0 if t % 1 > 0.5 else 0.0, from_s=30, until_s=70)
    # A sampler that reads again after a gap has no row for it.
    history = line_at(state, 70).busy
    assert history.end * BIN_NS == START_NS + 70 * NS_PER_S
    seconds = history.columns(60, history.end)
    assert seconds[:10] == [0.0] * 10
    assert seconds[10:20] == [None] * 10
    assert seconds[20:] == pytest.approx([0.5] * 40, abs=0.11)
    quarters = history.columns(240, history.end)
    assert max(each for each in quarters if each is not None) == 1.0


def test_reasons_for_low_clocks_are_shares_of_the_last_second_the_largest_first() -> None:
    state = state_of()
    power, heat, *_ = rows.THROTTLES
    feed(state, power, lambda t: 0.2 * t, until_s=5)
    feed(state, heat, lambda t: 0.7 * t, until_s=5)
    throttles = line_at(state, 5).throttles
    assert throttles is not None
    assert [name for name, _ in throttles] == ["sw heat", "power cap"]
    assert [share for _, share in throttles] == pytest.approx([0.7, 0.2], abs=1e-6)
    feed(state, power, lambda _: 1.0, from_s=5, until_s=7)
    feed(state, heat, lambda _: 3.5, from_s=5, until_s=7)
    assert line_at(state, 7).throttles == ()


def test_the_label_is_the_index_and_the_instance() -> None:
    assert device_label(GPU) == "3"
    assert device_label(Device("MIG-b", parent="GPU-a", kind=DeviceKind.MIG, index=3, mig_instance=2)) == "3/2"
    assert device_label(Device("GPU-0123456789", index=None)) == "GPU-0123"
