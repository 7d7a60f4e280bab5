"""What a reader says of its driver and devices arrives whole."""

from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

from gpu_profile.driver import simulated
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.reader.child import ReaderLoop
from gpu_profile_exporter.reader.heartbeat import Heartbeat
from gpu_profile_exporter.reader.intake import Intake
from gpu_profile_exporter.reader.settings import HOME, ReaderSettings
from gpu_profile_exporter.reader.wire import Incoming, send


def test_a_drivers_versions_and_its_devices_identity_arrive_as_they_were_said(tmp_path: Path, clock: FakeClock) -> None:
    node = simulated.create(tmp_path / "node", clock=clock)
    settings = ReaderSettings(
        f"simulated:{node}", 0.1, ("core",), processes=False, out_fd=-1, orders_fd=-1, where_fd=-1
    )
    reading = ReaderLoop(settings, Heartbeat.create(), clock)
    intake = Intake(interval_s=0.1, clock=clock)
    supervisor: Any = SimpleNamespace(key=HOME, only=None, stale_since=None, uuids=set(), leave=())
    try:
        reading.step()
        listed = [state.device for state in reading.states.values()]
        for message in through_a_file(reading.news(clock.now_ns())):
            intake.take(supervisor, message)
    finally:
        reading.close()
    assert intake.driver is not None
    assert intake.listens
    assert intake.driver.name == intake.driver.origin == f"simulated:{node}"
    assert intake.driver.versions == {
        "hw.driver_version": intake.driver.version,
        "nvml.version": f"13.{intake.driver.version}",
        "cuda.version": "13.0",
    }
    assert [state.device for state in intake.states.values()] == listed
    assert {"mig.instance", "mig.profile"} <= set(listed[-1].identity)
    for states in reading.states, intake.states:
        found = [can for state in states.values() for can in state.capabilities.values()]
        assert len({id(can) for can in found}) == len(set(found))  # one object for all devices
    assert [state.capabilities for state in intake.states.values()] == [
        state.capabilities for state in reading.states.values()
    ]


def through_a_file(messages: list[Any]) -> list[Any]:
    incoming = Incoming()
    found: list[Any] = []
    for message in messages:
        with TemporaryFile() as file:
            send(file.fileno(), message)
            file.seek(0)
            found += incoming.feed(file.read())
    return found
