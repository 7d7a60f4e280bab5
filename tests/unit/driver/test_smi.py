import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.catalogue import SIGNALS, Tier
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device
from gpu_profile.driver import Driver
from gpu_profile.driver.smi import SmiDriver, parse_table
from gpu_profile.errors import DeviceLost, GpuBackendError
from gpu_profile.testing import START_NS, FakeClock

MS = 1_000_000
A = "GPU-8a4c2f10-1111-2222-3333-444455556666"
B = "GPU-0b9d7e21-1111-2222-3333-444455556666"


class FakeSmi:
    """Answers a query by field name, one dictionary per device; a field that no device has is not known to it."""

    def __init__(self, *devices: dict[str, str]) -> None:
        self.devices = [{**BASE, **device} for device in devices]
        self.started = 0
        self.answer: subprocess.CompletedProcess[str] | Exception | None = None

    def __call__(self, command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        self.started += 1
        program, query, output = command
        assert (program, output) == ("nvidia-smi", "--format=csv,noheader,nounits")
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        fields = query.removeprefix("--query-gpu=").split(",")
        for field in fields:
            if not all(field in device for device in self.devices):
                text = f'Field "{field}" is not a valid field to query.\n\n'
                return subprocess.CompletedProcess(command, 2, text, "")
        lines = [", ".join(device[field] for field in fields) for device in self.devices]
        return subprocess.CompletedProcess(command, 0, "\n".join(lines) + "\n", "")


BASE = {
    "uuid": A,
    "index": "0",
    "name": "NVIDIA A100-SXM4-40GB",
    "pci.bus_id": "00000000:07:00.0",
    "memory.total": "40960",
    "driver_version": "580.65.06",
    "utilization.gpu": "37",
    "utilization.memory": "12",
    "memory.used": "1024",
    "memory.reserved": "634",
    "power.draw": "95.42",
    "temperature.gpu": "41",
    "clocks.sm": "1410",
    "clocks.mem": "1215",
}
SECOND_GPU = {"uuid": B, "index": "1", "utilization.gpu": "99"}


def test_devices_are_what_nvidia_smi_lists() -> None:
    driver: Driver = SmiDriver(run=FakeSmi({}, SECOND_GPU), clock=FakeClock())
    first, second = driver.devices()
    assert first == Device(
        A, index=0, name="NVIDIA A100-SXM4-40GB", pci_bus_id="00000000:07:00.0", memory_bytes=40 << 30
    )
    assert (second.uuid, second.index) == (B, 1)
    assert (driver.name, driver.version) == ("smi", "580.65.06")
    driver.close()


def test_values_come_in_the_quanta_of_the_catalogue_at_the_moment_of_reading(clock: FakeClock) -> None:
    driver = SmiDriver(run=FakeSmi({}), clock=clock)
    (device,) = driver.devices()
    samples = [*driver.read(device, Tier.FAST), *driver.read(device, Tier.SLOW)]
    assert {sample.signal: sample.value for sample in samples} == {
        rows.UTILIZATION: 37,
        rows.MEMORY_CONTROLLER: 12,
        rows.POWER_AVERAGE: 95_420,
        rows.MEMORY_USED: 1024,
        rows.MEMORY_RESERVED: 634,
        rows.TEMPERATURE: 41,
        rows.CLOCK_SM: 1410,
        rows.CLOCK_MEMORY: 1215,
    }
    assert {sample.t_end_ns for sample in samples} == {START_NS}
    assert list(driver.read(device, Tier.GPM)) == []


def test_one_process_serves_all_devices_and_tiers_of_a_tick() -> None:
    smi, clock = FakeSmi({}, SECOND_GPU), FakeClock()
    driver = SmiDriver(run=smi, clock=clock)
    devices = driver.devices()
    values = []
    for tick in range(1, 4):
        for tier in (Tier.FAST, Tier.SLOW):
            values += [driver.read(device, tier)[0].value for device in devices]
        assert smi.started == tick
        clock.advance(0.1)
    assert values[:2] == [37, 99]


def test_a_table_that_is_too_old_is_not_served_to_anyone() -> None:
    smi, clock = FakeSmi({}, SECOND_GPU), FakeClock()
    driver = SmiDriver(run=smi, clock=clock)
    first, second = driver.devices()
    driver.read(first, Tier.FAST)
    clock.advance(0.6)
    assert driver.read(second, Tier.FAST)[0].t_end_ns == clock.now_ns()
    assert smi.started == 2


def test_window_means_cover_the_time_since_the_last_reading_and_at_most_their_window(clock: FakeClock) -> None:
    driver = SmiDriver(run=FakeSmi({}), clock=clock)
    (device,) = driver.devices()
    spans = []
    for step in (0.0, 0.05, 0.0, 5.0, 0.1):
        clock.advance(step)
        spans.append(
            [
                (sample.t_end_ns - sample.t_start_ns) / MS
                for sample in driver.read(device, Tier.FAST)
                if sample.signal is rows.POWER_AVERAGE
            ]
        )
    assert spans == [[1000], [50], [], [1000], [100]]


def test_a_clock_that_is_set_back_starts_windows_afresh(clock: FakeClock) -> None:
    driver = SmiDriver(run=FakeSmi({}), clock=clock)
    (device,) = driver.devices()
    driver.read(device, Tier.FAST)
    clock._now_ns -= 3600 * 1000 * MS
    sample = driver.read(device, Tier.FAST)[0]
    assert (sample.t_start_ns, sample.t_end_ns) == (clock.now_ns() - sample.signal.window_ns, clock.now_ns())


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("[N/A]", "N/A"),
        ("N/A", "N/A"),
        ("[Not Supported]", "Not Supported"),
        ("[Unknown Error]", "Unknown Error"),
        ("ERR!", "nvidia-smi could not read it (ERR!)"),
        ("", "empty"),
        ("soon", "nvidia-smi says 'soon'"),
        ("nan", "nvidia-smi says 'nan'"),
        ("1e999", "nvidia-smi says '1e999'"),
        ("99999999", "nvidia-smi says '99999999'"),
    ],
)
def test_what_nvidia_smi_cannot_tell_is_absent_with_its_reason(cell: str, reason: str) -> None:
    driver = SmiDriver(run=FakeSmi({"power.draw": cell}), clock=FakeClock())
    (device,) = driver.devices()
    assert [sample.signal for sample in driver.read(device, Tier.FAST)] == [rows.UTILIZATION, rows.MEMORY_CONTROLLER]
    capability = driver.capabilities(device)[rows.POWER_AVERAGE]
    assert (capability.available, capability.reason) == (False, reason)


def test_capabilities_tell_of_every_signal_of_the_catalogue() -> None:
    driver = SmiDriver(run=FakeSmi({}), clock=FakeClock())
    (device,) = driver.devices()
    capabilities = driver.capabilities(device)
    assert list(capabilities) == list(SIGNALS)
    assert capabilities[rows.UTILIZATION].available
    assert capabilities[rows.ENERGY].reason == "not read from nvidia-smi; needs NVML"
    gone = driver.capabilities(Device("GPU-gone"))
    assert not any(each.available for each in gone.values())


def test_a_field_that_an_older_nvidia_smi_does_not_know_is_never_asked_for_again() -> None:
    smi, clock = FakeSmi({}), FakeClock()
    del smi.devices[0]["memory.reserved"]
    driver = SmiDriver(run=smi, clock=clock)
    assert smi.started == 2
    (device,) = driver.devices()
    assert rows.MEMORY_RESERVED not in [sample.signal for sample in driver.read(device, Tier.SLOW)]
    assert driver.capabilities(device)[rows.MEMORY_RESERVED].reason == "this nvidia-smi has no field memory.reserved"
    clock.advance(1)
    driver.read(device, Tier.SLOW)
    assert smi.started == 3


@pytest.mark.parametrize("uuid", ["[GPU is lost]", "[Unknown Error]"])
def test_a_lost_device_never_hides_the_others(uuid: str) -> None:
    smi, clock = FakeSmi({}, SECOND_GPU), FakeClock()
    driver = SmiDriver(run=smi, clock=clock)
    first, second = driver.devices()
    smi.devices[0]["uuid"] = uuid
    clock.advance(1)
    with pytest.raises(DeviceLost, match=f"{A}: no longer listed"):
        driver.read(first, Tier.FAST)
    assert driver.read(second, Tier.FAST)[0].value == 99
    assert list(driver.devices()) == [second]


def test_a_device_that_nvidia_smi_calls_lost_is_lost() -> None:
    smi, clock = FakeSmi({}), FakeClock()
    driver = SmiDriver(run=smi, clock=clock)
    (device,) = driver.devices()
    smi.devices[0]["power.draw"] = "[GPU is lost]"
    clock.advance(1)
    with pytest.raises(DeviceLost, match="lost, says nvidia-smi"):
        driver.read(device, Tier.FAST)
    assert list(driver.devices()) == []


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (FileNotFoundError(2, "No such file"), "nvidia-smi not found on PATH: install the NVIDIA driver"),
        (PermissionError(13, "Permission denied"), "nvidia-smi cannot be run: Permission denied"),
        (subprocess.TimeoutExpired("nvidia-smi", 10), "nvidia-smi did not end within 10 s"),
        (
            subprocess.CompletedProcess([], 9, "NVIDIA-SMI has failed because it couldn't talk.\nMore.\n", ""),
            r"nvidia-smi failed \(exit 9\): NVIDIA-SMI has failed because it couldn't talk\.$",
        ),
        (subprocess.CompletedProcess([], 255, "", "\nboom\n"), r"nvidia-smi failed \(exit 255\): boom"),
        (subprocess.CompletedProcess([], 1, "", ""), "it said nothing"),
        (subprocess.CompletedProcess([], 0, "No devices were found\n", ""), "line 1: 1 values where 14 were asked for"),
        (subprocess.CompletedProcess([], 0, ",".join("x" * 14), ""), "line 1: not the UUID of a GPU: 'x'"),
        (subprocess.CompletedProcess([], 2, 'Field "uuid" is not a valid field to query.', ""), 'Field "uuid"'),
    ],
)
def test_a_failing_nvidia_smi_is_one_line_that_says_why(
    failure: Exception | subprocess.CompletedProcess[str], message: str
) -> None:
    smi = FakeSmi({})
    smi.answer = failure
    with pytest.raises(GpuBackendError, match=message) as raised:
        SmiDriver(run=smi, clock=FakeClock())
    assert "\n" not in str(raised.value)


def test_no_gpu_is_no_device_and_no_error() -> None:
    driver = SmiDriver(run=FakeSmi(), clock=FakeClock())
    assert (list(driver.devices()), driver.version) == ([], "")


def _program(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = directory / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_the_program_on_path_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"{A}, 0, A100, 0:07:00.0, 40960, 580, 1, 2, 3, 4, 5.5, 6, 7, 8"
    _program(tmp_path, monkeypatch, f"[ $# = 2 ] && printf '{line}\\n\\377' | head -n 1")
    (device,) = SmiDriver().devices()
    assert (device.uuid, device.memory_bytes) == (A, 40 << 30)


def test_a_program_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, monkeypatch, "exec tail -f /dev/null")
    monkeypatch.setattr("gpu_profile.driver.smi._TIMEOUT_S", 0.05)
    with pytest.raises(GpuBackendError, match=r"did not end within 0\.05 s"):
        SmiDriver()


def test_a_missing_program_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpuBackendError, match="nvidia-smi not found on PATH"):
        SmiDriver()


FIELDS = list(BASE)
cells = st.one_of(
    st.text(st.characters(blacklist_characters=",\n"), max_size=12),
    st.sampled_from(["[N/A]", "[]", "[", "ERR!", "[GPU is lost]", A, "GPU-", "-1", "9" * 400, "1.5", "٣", "1_0"]),
    st.integers().map(str),
    st.floats().map(str),
)
tables = st.lists(st.lists(cells, min_size=len(FIELDS), max_size=len(FIELDS)).map(",".join), max_size=3).map("\n".join)


@given(st.one_of(st.text(), tables))
def test_any_text_is_a_table_or_a_gpu_backend_error(text: str) -> None:
    try:
        table = parse_table(text, FIELDS)
    except GpuBackendError as error:
        assert "\n" not in str(error)  # noqa: PT017 - most texts raise it, some do not
    else:
        for row in table.values():
            assert row.values.keys().isdisjoint(row.absent)
            assert len(row.values) + len(row.absent) == 8
            assert all(abs(value) <= signal.limit for signal, value in row.values.items())
            assert all(row.absent.values())
