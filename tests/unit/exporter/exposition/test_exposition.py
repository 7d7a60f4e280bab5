import math
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from support.exporter import IDENTITY, OF_A_LOST_DEVICE, FakeDriver, of, read_all, scrape, series, step_for
from support.nodes import node_of

from gpu_profile.catalogue import METRICS, SIGNALS, Kind, Signal, Tier, metric_of
from gpu_profile.catalogue import metrics as m
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.catalogue.self_metrics import SELF_METRICS
from gpu_profile.driver import simulated
from gpu_profile.driver.grammar import open_driver
from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.sampling.periods import RARE_S
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.naming.schemes import NAMES, choose
from gpu_profile_exporter.readings.health import lifetime_ns
from gpu_profile_exporter.readings.readings import base

A = Device("GPU-a", index=0, name='NVIDIA "A"', pci_bus_id="00000000:01:00.0", memory_bytes=80 << 30)
B = Device("GPU-b", index=1, name="NVIDIA B", memory_bytes=24 << 30)
MIG = Device("MIG-c", parent="GPU-a", kind=DeviceKind.MIG, index=0, name="NVIDIA A MIG 1g", memory_bytes=10 << 30)

#: Something for every signal: the row's position, within its limit.
EVERYTHING = {row: max(row.lowest, min(i + 1, row.limit)) for i, row in enumerate(SIGNALS)}


class World:
    """A node of fake devices."""

    def __init__(self, *devices: Device, values: Mapping[Signal, int] = EVERYTHING, interval_s: float = 0.1) -> None:
        self.clock = FakeClock()
        self.driver = FakeDriver(self.clock, devices or (A, B), dict(values))
        self.sampler = Sampler(lambda: self.driver, interval_s=interval_s, clock=self.clock, retention_s=60)

    def run(self, seconds: float) -> dict[str, float]:
        step_for(self.sampler, self.clock, seconds)
        return self.series()

    def series(self) -> dict[str, float]:
        return series(scrape(self.sampler, self.clock))


@pytest.fixture
def world() -> World:
    return World(A)


def test_every_signals_metric_is_published_when_the_driver_can_read_everything() -> None:
    found = {name.partition("{")[0] for name in World().run(40)}
    assert {metric_of(row).prometheus for row in SIGNALS} <= found
    of_node = (m.STATUS, m.BUSY, m.OBSERVED, m.DEVICE_INFO, m.DEVICE_UP, m.SAMPLES, m.READ_ERRORS, m.DRIVER_UP)
    assert {metric.prometheus for metric in of_node} <= found
    assert found <= {metric.prometheus for metric in (*METRICS, *SELF_METRICS)}


def test_labels_are_those_that_the_catalogue_states() -> None:
    world = World(A, MIG)
    step_for(world.sampler, world.clock, 2)
    for reading in read_all(world.sampler, world.clock):
        assert set(reading.attributes) <= set(reading.metric.labels), reading.metric.otel
        assert all(reading.attributes.values()), reading.metric.otel


def test_values_are_in_base_units() -> None:
    values = {
        rows.MEMORY_USED: 40 << 10,
        rows.POWER: 412_345,
        rows.ENERGY: 7_001,
        rows.TEMPERATURE: 55,
        rows.CLOCK_SM: 1980,
        rows.UTILIZATION: 57,
    }
    found = World(A, values=values).run(2)
    assert found['hw_gpu_memory_usage_bytes{hw_id="GPU-a"}'] == 40 << 30
    assert found['hw_gpu_memory_limit_bytes{hw_id="GPU-a"}'] == 80 << 30
    assert found['hw_gpu_memory_utilization_ratio{hw_id="GPU-a"}'] == 0.5
    assert found['hw_power_watts{hw_id="GPU-a",hw_type="gpu"}'] == 412.345
    assert found['hw_energy_joules_total{hw_id="GPU-a",hw_type="gpu"}'] == 7.001
    assert found['hw_temperature_celsius{hw_id="GPU-a",hw_sensor_location="core",hw_type="gpu"}'] == 55
    assert found['nvidia_gpu_clock_hertz{hw_id="GPU-a",nvidia_gpu_clock_domain="sm"}'] == 1.98e9
    assert found['hw_gpu_utilization_ratio{hw_id="GPU-a",hw_gpu_task="general"}'] == 0.57


def test_every_quantum_is_a_whole_number_or_one_over_one() -> None:
    for row in SIGNALS:
        inverse = 1 / row.quantum
        assert row.quantum == int(row.quantum) if row.quantum >= 1 else math.isclose(inverse, round(inverse)), row.key
        assert base(row, 123) == pytest.approx(row.base(123), rel=1e-12)


@pytest.mark.parametrize(
    ("values", "source", "ratio"),
    [({rows.GRAPHICS: 2500, rows.UTILIZATION: 90}, "graphics", 0.25), ({rows.UTILIZATION: 90}, "utilization", 0.9)],
)
def test_busy_time_is_the_integral_of_the_best_source(values: Mapping[Signal, int], source: str, ratio: float) -> None:
    found = World(A, values=values).run(10)
    observed = found['gpu_profile_observed_seconds_total{hw_id="GPU-a"}']
    assert observed == pytest.approx(10, abs=0.15)
    assert found['gpu_profile_busy_seconds_total{hw_id="GPU-a"}'] == pytest.approx(observed * ratio, rel=1e-12)
    assert any(f'busy_source="{source}"' in name for name in found)


def test_a_counter_that_wraps_at_32_bits_is_published_as_its_growth(clock: FakeClock) -> None:
    rate = 3 << 30  # bytes per second: a wrap every 1.3 s
    driver = FakeDriver(clock, (A,), {rows.PCIE_RX: lambda t: int(t * rate) % rows.PCIE_RX.wraps_at})
    sampler = Sampler(lambda: driver, clock=clock, retention_s=60)
    totals = []
    for _ in range(4):
        step_for(sampler, clock, 15)
        found = series(scrape(sampler, clock))
        totals.append(found['hw_gpu_io_bytes_total{hw_id="GPU-a",network_io_direction="receive"}'])
    assert [(b - a) / 15 for a, b in pairwise(totals)] == pytest.approx([rate] * 3, rel=0.01)


def test_busy_time_is_absent_for_a_device_that_has_no_source() -> None:
    found = World(A, values={rows.POWER: 1000}).run(3)
    assert not any(name.startswith(("gpu_profile_busy", "gpu_profile_observed")) for name in found)
    assert not any("busy_source" in name for name in found)
    assert 'hw_power_watts{hw_id="GPU-a",hw_type="gpu"}' in found


def test_what_a_device_is_stands_in_its_info_and_empty_labels_are_left_out() -> None:
    found = World(A, MIG).run(1)
    info = next(name for name in found if name.startswith("gpu_profile_device_info") and "MIG-c" in name)
    assert 'hw_parent="GPU-a"' in info
    assert 'kind="mig"' in info
    assert 'hw_driver_version="1.2.3"' in info
    assert "pci_bus_id" not in info
    assert '=""' not in "".join(found)


def test_a_reading_that_is_not_renewed_vanishes_after_three_periods_and_at_least_2_s(world: World) -> None:
    world.run(2)
    world.driver.frozen = {rows.POWER, rows.TEMPERATURE}
    power = 'hw_power_watts{hw_id="GPU-a",hw_type="gpu"}'
    temperature = 'hw_temperature_celsius{hw_id="GPU-a",hw_sensor_location="core",hw_type="gpu"}'
    assert {power, temperature} <= world.run(1.7).keys()
    after_2_s = world.run(0.5).keys()
    assert power not in after_2_s
    assert temperature in after_2_s
    after_4_s = world.run(2).keys()
    assert temperature not in after_4_s
    assert 'hw_gpu_memory_usage_bytes{hw_id="GPU-a"}' in after_4_s


def test_busy_time_that_is_no_longer_measured_vanishes_too(world: World) -> None:
    world.run(2)
    world.driver.frozen = {rows.GRAPHICS, rows.UTILIZATION}
    assert "gpu_profile_busy_seconds_total" not in of("GPU-a", world.run(2.5))
    world.driver.frozen = set()
    assert "gpu_profile_busy_seconds_total" in of("GPU-a", world.run(0.3))


@pytest.mark.parametrize("interval_s", [0.01, 0.1, 1.0, 10.0])
def test_a_lifetime_is_three_periods_of_the_tier(interval_s: float) -> None:
    for row in SIGNALS:
        life_s = lifetime_ns(row, interval_s) / 1e9
        assert life_s >= max(2.0, 3 * interval_s)
        assert life_s <= max(3 * RARE_S if row.tier is Tier.RARE else 3.0, 3 * interval_s)


def test_a_lost_devices_values_vanish_at_once_and_the_others_stay() -> None:
    world = World(A, B)
    whole = of("GPU-b", world.run(2))
    world.driver.lost = {"GPU-a"}
    found = world.run(0.2)
    assert of("GPU-a", found) == OF_A_LOST_DEVICE
    assert found['gpu_profile_device_up{hw_id="GPU-a"}'] == 0
    assert found['hw_status{hw_id="GPU-a",hw_state="failed",hw_type="gpu"}'] == 1
    assert found['hw_status{hw_id="GPU-a",hw_state="ok",hw_type="gpu"}'] == 0
    assert found['gpu_profile_driver_errors_total{error_type="device_lost"}'] == 1
    assert found["gpu_profile_driver_up"] == 1
    assert of("GPU-b", found) == whole


def test_a_lost_device_comes_back_with_all_its_series(world: World) -> None:
    before = of("GPU-a", world.run(2))
    world.driver.lost = {"GPU-a"}
    world.run(5)
    world.driver.lost = set()
    found = world.run(2.5)
    assert of("GPU-a", found) == before
    assert found['hw_status{hw_id="GPU-a",hw_state="failed",hw_type="gpu"}'] == 0


def test_a_driver_that_goes_away_leaves_no_old_values() -> None:
    world = World(A, B)
    world.run(2)
    world.driver.gone = "the driver was unloaded"
    found = world.run(0.2)
    assert of("GPU-a", found) == OF_A_LOST_DEVICE
    assert found["gpu_profile_driver_up"] == 0


def test_a_driver_that_hangs_leaves_no_old_values(world: World) -> None:
    world.run(2)
    world.clock.advance(4)
    assert not of("GPU-a", world.series()) & {
        "hw_power_watts",
        "gpu_profile_busy_seconds_total",
        "hw_energy_joules_total",
    }
    world.clock.advance(2)
    found = world.series()
    assert found['gpu_profile_device_up{hw_id="GPU-a"}'] == 0
    assert found["gpu_profile_driver_up"] == 0


def test_before_the_first_reading_nothing_is_said_of_a_devices_state(world: World) -> None:
    world.sampler.open()
    found = world.series()
    assert of("GPU-a", found) == {"gpu_profile_device_info"}
    assert found["gpu_profile_driver_up"] == 0


def test_memory_errors_that_were_not_corrected_degrade_the_device() -> None:
    found = World(A, values={rows.ECC_UNCORRECTED: 1}).run(2)
    states = {name: value for name, value in found.items() if name.startswith("hw_status")}
    assert len(states) == 4
    assert states['hw_status{hw_id="GPU-a",hw_state="degraded",hw_type="gpu"}'] == 1
    assert sum(states.values()) == 1


def test_a_scrape_never_calls_the_driver() -> None:
    world = World(A, B)
    world.run(1)
    before = world.driver.calls
    world.series()
    assert world.driver.calls == before


def test_samples_are_counted_per_device_and_those_left_out_by_reason_never_fewer_when_a_slice_goes() -> None:
    world = World(A, MIG, values={rows.ENERGY: 5})
    found = world.run(2)
    assert found['gpu_profile_samples_total{hw_id="GPU-a"}'] >= 1
    assert found['gpu_profile_samples_dropped_total{reason="duplicate"}'] >= 2
    assert found['gpu_profile_samples_dropped_total{reason="late"}'] == 0
    world.driver.list = (A,)
    after = world.run(6)
    assert not of("MIG-c", after)
    assert after['gpu_profile_samples_dropped_total{reason="duplicate"}'] >= 2


def test_families_come_in_the_catalogues_order_with_help_and_type_and_without_timestamps() -> None:
    world = World(A, B)
    step_for(world.sampler, world.clock, 2)
    text = scrape(world.sampler, world.clock)
    order = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    catalogue = [metric.prometheus for metric in METRICS]
    assert [name for name in order if name in catalogue] == [name for name in catalogue if name in order]
    assert len(order) == len(set(order))
    assert text.count("# HELP") == len(order)
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"[a-z0-9_]+(\{.*\})? [-+.e0-9]+", line)
    assert scrape(world.sampler, world.clock) == text


def values(families: Iterable[Family]) -> set[tuple[str, tuple[tuple[str, str], ...], float]]:
    return {(s.name, tuple(sorted(s.labels.items())), s.value) for family in families for s in family.samples}


def test_both_formats_say_the_same() -> None:
    world = World(A, MIG)
    step_for(world.sampler, world.clock, 2)
    exposition = Exposition(lambda: read_all(world.sampler, world.clock), process=False)
    text, text_type = exposition.render("text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
    open_text, open_type = exposition.render("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert text_type.startswith("text/plain; version=0.0.4")
    assert open_type.startswith("application/openmetrics-text; version=1.0.0")
    assert open_text.endswith(b"# EOF\n")
    assert b"# UNIT hw_energy_joules joules" in open_text

    assert values(parse_text(text.decode())) == values(parse_openmetrics(open_text.decode()))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("names", NAMES)
def test_no_scheme_of_names_makes_families_or_series_that_clash(names: str) -> None:
    world = World(A, MIG)
    step_for(world.sampler, world.clock, 2)
    readings = read_all(world.sampler, world.clock)
    exposition = Exposition(lambda: readings, choose(names, hostname="node-1"))
    text, open_text = exposition.render()[0].decode(), exposition.render("application/openmetrics-text")[0].decode()
    samples = [s for family in parse_openmetrics(open_text) for s in family.samples]  # type: ignore[no-untyped-call]
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == len(lines) == len(series(text))
    assert not any(exposition.left_out.values())
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))


@pytest.mark.parametrize("model", MODELS)
def test_a_device_has_at_most_60_series_by_default(model: str, tmp_path: Path, clock: FakeClock) -> None:
    xids = "".join(f'[[fault]]\nkind = "xid"\nxid = {code}\nfrom_s = 3\n' for code in (48, 63))
    simulated.create(tmp_path / "node", node_of(model) + xids, clock=clock)
    sampler = Sampler(lambda: open_driver(f"simulated:{tmp_path / 'node'}", clock=clock), clock=clock)
    step_for(sampler, clock, 12)
    found = [name for name in series(scrape(sampler, clock)) if "hw_id=" in name]
    sampler.stop()
    assert sum("nvidia_gpu_xid_errors_total" in name for name in found) == 2
    assert len(found) <= 60


def test_the_exporter_tells_its_own_cpu_and_memory(world: World) -> None:
    text = Exposition(lambda: read_all(world.sampler, world.clock)).render()[0].decode()
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= series(text).keys()
    assert f'gpu_profile_build_info{{version="{IDENTITY.version}",driver="fake 1.2.3"}} 1.0' in text


def test_counters_are_counters_and_the_rest_are_gauges(world: World) -> None:
    step_for(world.sampler, world.clock, 2)
    kinds = dict(line.split()[2:4] for line in scrape(world.sampler, world.clock).splitlines() if "# TYPE" in line)
    for metric in METRICS:
        if metric.signals and all(row.kind is Kind.COUNTER for row in metric.signals):
            assert kinds[metric.prometheus] == "counter"
        elif metric.prometheus in kinds:
            assert kinds[metric.prometheus] == ("counter" if metric.prometheus.endswith("_total") else "gauge")
