import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from support.drivers import A, B, FakeDriver
from support.programs import until

from gpu_profile.catalogue import Group, Signal
from gpu_profile.catalogue.samples import Device, Interval
from gpu_profile.catalogue.signals import THROTTLES
from gpu_profile.cli import watch as module
from gpu_profile.cli.watch import DeviceWatch
from gpu_profile.driver import Capability, Driver, grammar, simulated
from gpu_profile.errors import DeviceLost, GpuBackendError, UsageError
from gpu_profile.history.timeline import Column
from gpu_profile.join.reading import read
from gpu_profile.testing import FakeClock

NODE = '[[device]]\nmodel = "A10G"\n'


@pytest.fixture
def node(tmp_path: Path) -> str:
    return f"simulated:{simulated.create(tmp_path / 'node', NODE)}"


def everything(_: Driver, devices: Sequence[Device]) -> Sequence[Device]:
    return devices


def test_a_run_that_outlives_the_history_is_known_from_its_start(node: str) -> None:
    watch = DeviceWatch(node, interval_s=0.002, choose=everything, retention_s=0.01)
    started = time.time_ns()
    watch.keep_from(started)
    watch.start()

    def column() -> Column | None:
        return watch.states[0].timeline.column(THROTTLES[0]) if watch.states else None

    first: list[int] = []

    # A counter that is read anew each time has a row for each reading.
    def let_go() -> bool:
        found = column()
        if found is None or found.oldest_ns is None:
            return False
        first.append(found.oldest_ns)
        return found.oldest_ns > first[0] + 300_000_000

    until(let_go, "rows that were let go of")
    watch.finish()
    found = column()
    assert found is not None
    assert found.watermark_ns is not None
    assert found.oldest_ns is not None
    reading = read(found, Interval(started, found.watermark_ns))
    held, read_since = ((found.watermark_ns - a) / (found.watermark_ns - started) for a in (found.oldest_ns, first[0]))
    assert reading is not None
    assert reading.coverage > max(0.9 * read_since, held)


def test_a_driver_that_comes_later_is_read_from_then_on(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = threading.Event()
    real: Callable[..., Driver] = grammar.open_driver

    def opened(spec: str, **settings: object) -> Driver:
        if not there.is_set():
            raise GpuBackendError("not yet")
        return real(spec, **settings)

    monkeypatch.setattr(grammar, "open_driver", opened)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    watch = DeviceWatch(node, interval_s=0.05, choose=everything)
    watch.start()
    until(lambda: watch.answered, "the first answer")
    assert (watch.problem, watch.states) == ("not yet", [])
    with pytest.raises(GpuBackendError, match="not yet"):
        watch.require()
    there.set()
    until(lambda: bool(watch.states), "the driver")
    assert watch.problem == ""
    watch.finish()
    watch.finish()
    assert watch.sampler is not None
    assert not watch.sampler.running


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (None, {Group.CORE, Group.CORE_DETAIL, Group.MEDIA, Group.PCIE}),
        ({Group.LIMITS, Group.MEDIA}, {"core", "limits", "media"}),
    ],
)
def test_the_librarys_groups_are_read_unless_others_are_named(
    node: str, groups: set[str] | None, expected: set[str]
) -> None:
    watch = DeviceWatch(node, interval_s=0.05, choose=everything, groups=groups)
    watch.start()
    watch.require()
    until(lambda: bool(watch.states), "the driver")
    watch.stop()
    known = watch.states[0].capabilities
    assert {row.group for row, can in known.items() if can.available} == expected


def test_devices_that_were_chosen_wrongly_are_not_tried_again(node: str) -> None:
    asked = []

    def choose(_: Driver, devices: Sequence[Device]) -> Sequence[Device]:
        asked.append(len(devices))
        raise UsageError("no such device")

    watch = DeviceWatch(node, interval_s=0.05, choose=choose)
    watch.start()
    with pytest.raises(UsageError, match="no such device"):
        watch.require()
    watch.stop()
    assert asked == [1]


def test_a_driver_that_does_not_answer_is_required_for_so_long_only(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hangs(spec: str, **_: object) -> Driver:
        release.wait(60)
        raise GpuBackendError(spec)

    monkeypatch.setattr(grammar, "open_driver", hangs)
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    watch = DeviceWatch(node, interval_s=0.05, choose=everything, strict=True)
    watch.start()
    with pytest.raises(GpuBackendError, match=r"has not answered within 0\.05 s"):
        watch.require()
    watch.require(lambda: True)  # nobody waits any longer
    release.set()
    watch.stop()


def test_with_strict_one_of_the_devices_must_be_read_not_only_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(FakeClock(), [A, B], lost={A.uuid, B.uuid})
    monkeypatch.setattr(grammar, "open_driver", lambda *_, **__: driver)
    watch = DeviceWatch("nvml", interval_s=0.05, choose=everything, strict=True)
    watch.start()
    with pytest.raises(GpuBackendError, match=r"^no GPU can be read: it fell off the bus; it fell off the bus$"):
        watch.require()
    watch.stop()
    assert (watch.states, driver.closed) == ([], 1)
    driver.lost.discard(B.uuid)
    watch = DeviceWatch("nvml", interval_s=0.05, choose=everything, strict=True)
    watch.start()
    watch.require()
    watch.stop()


def test_why_there_is_no_device_is_told_where_all_are_lost_as_they_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(FakeClock(), [A])

    def capabilities(device: Device) -> Mapping[Signal, Capability]:
        raise DeviceLost(f"{device.uuid} fell off the bus")

    driver.capabilities = capabilities  # type: ignore[method-assign]
    monkeypatch.setattr(grammar, "open_driver", lambda *_, **__: driver)
    watch = DeviceWatch("nvml", interval_s=0.05, choose=everything)
    watch.start()
    watch.require()
    assert until(lambda: watch.why_unread == "GPU-A fell off the bus", "its reason")
    watch.stop()
    assert watch.states == []
