"""A session's threads: when they start, pause, and end."""

import threading
import time
from collections.abc import Iterator

import pytest
from support.programs import until

from gpu_profile import region
from gpu_profile.clock import Waitable
from gpu_profile.driver.null import NullDriver
from gpu_profile.errors import GpuBackendError
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session
from gpu_profile.testing import START_NS, FakeClock


class Opening:
    """Opens drivers without devices, and counts them."""

    def __init__(self) -> None:
        self.opened: list[NullDriver] = []
        self.closed = 0

    def __call__(self) -> NullDriver:
        opening = self

        class Driver(NullDriver):
            def close(self) -> None:
                opening.closed += 1

        self.opened.append(Driver())
        return self.opened[-1]


@pytest.fixture
def opening() -> Opening:
    return Opening()


class FastClock:
    """A clock by which 30 s pass in a tenth of one."""

    speed = 300

    def elapsed_ns(self) -> int:
        return self.now_ns()

    def suspended_ns(self) -> int:
        return 0

    def now_ns(self) -> int:
        return START_NS + self.speed * time.monotonic_ns()

    def wait(self, event: Waitable, timeout_s: float) -> bool:
        return event.wait(max(0.0, timeout_s) / self.speed)


@pytest.fixture
def live(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A process's session with threads of its own, which soon is idle."""
    process.configure(clock=FastClock())
    live = Session(opening, clock=process.settings().clock, interval_s=1.0)
    monkeypatch.setattr(process, "current", live)
    yield live
    live.stop()
    process.configure()


def test_session_samples_from_the_first_region_until_it_is_idle_and_again_from_the_next(
    live: Session, opening: Opening
) -> None:
    assert opening.opened == []
    with region("first", span=False):
        until(lambda: live.active and opening.opened, "sampling")
        started = live.clock.now_ns()
        until(lambda: live.clock.now_ns() - started > 100e9, "a long region")
        assert live.active
    until(lambda: not live.active, "idle")
    assert live.joiner.verdicts.calls == {("first", "UNKNOWN", ""): 1}
    before = len(opening.opened)
    assert opening.closed == before
    with region("second", span=False):
        until(lambda: live.active and len(opening.opened) > before, "sampling again")
    until(lambda: not live.active, "idle again")
    assert opening.closed == len(opening.opened)
    assert live.joiner.verdicts.calls == {("first", "UNKNOWN", ""): 1, ("second", "UNKNOWN", ""): 1}


def test_region_that_begins_while_sampling_ends_is_found(live: Session, opening: Opening) -> None:
    """It saw a running session, and so did not wake it."""
    with region("first", span=False):
        pass
    stopping, slow = threading.Event(), threading.Event()
    stop = live.sampler.stop

    def slowly(timeout_s: float = 2.0) -> None:
        stopping.set()
        slow.wait(10)
        stop(timeout_s)

    live.sampler.stop = slowly  # type: ignore[method-assign]
    try:
        assert stopping.wait(30)
        assert live.active
        before = len(opening.opened)
        with region("meanwhile", span=False):
            slow.set()
            until(lambda: len(opening.opened) > before, "sampling again")
    finally:
        live.sampler.stop = stop  # type: ignore[method-assign]
    until(lambda: ("meanwhile", "UNKNOWN", "") in live.joiner.verdicts.calls, "counted")


def test_stop_ends_both_threads_and_closes_the_driver(live: Session, opening: Opening) -> None:
    stopped: list[str] = []
    live.on_stop.append(lambda: stopped.append("stopped"))
    with region("step", span=False):
        until(lambda: opening.opened, "sampling")
    live.stop()
    assert stopped == ["stopped"]
    assert opening.closed == len(opening.opened)
    assert not {"gpu-profile-join", "gpu-profile-sampler"} & {thread.name for thread in threading.enumerate()}
    assert live.joiner.verdicts.calls == {("step", "UNKNOWN", ""): 1}


def test_pause_does_not_end_a_recording(live: Session, opening: Opening) -> None:
    stopped: list[str] = []
    live.on_stop.append(lambda: stopped.append("stopped"))
    with region("step", span=False):
        pass
    until(lambda: not live.active, "idle")
    assert stopped == []


def test_process_that_may_have_no_more_threads_runs_its_regions_unmeasured(
    live: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(3):
        with region("step", span=False) as running:
            pass
        assert running.end_ns
    assert live.ignoring
    assert len(live.began) == 0
    assert [r.message for r in caplog.records] == ["gpu-profile: regions are not measured: can't start new thread"]


def test_missing_driver_is_told_after_its_first_answer(clock: FakeClock) -> None:
    def refuse() -> NullDriver:
        raise GpuBackendError("no GPU driver. Looked for NVML")

    missing = Session(refuse, clock=clock)
    assert missing.missing_driver() == "the driver has not answered within 10 s"
    missing.sampler.step()
    assert missing.missing_driver() == "no GPU driver. Looked for NVML"
    there = Session(NullDriver, clock=clock)
    there.sampler.step()
    assert there.missing_driver() == ""


class Recorded(NullDriver):
    """A driver by this name, of samples that another one read, which come `lag_s` late."""

    name: str  # type: ignore[misc]

    def __init__(self, name: str, recorded: str = "", lag_s: float = 0.0) -> None:
        super().__init__()
        self.name, self.recorded_driver, self.lag_s = name, recorded, lag_s  # type: ignore[misc]


@pytest.mark.parametrize(
    ("driver", "looked"),
    [
        (Recorded("nvml"), True),
        (Recorded("node:/run", "nvml"), True),
        (Recorded("node:/run", "simulated:/node"), False),
        (Recorded("replay:/dir", "nvml"), False),
        (Recorded("simulated:/node"), False),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_a_framework_s_streams_are_looked_for_where_its_gpus_are_read_by_whomever(
    driver: Recorded, looked: bool, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(Session, "seek_stream", lambda _: seen.append("looked"))
    session = Session(lambda: driver, clock=clock)
    session.sampler.step(force=True)
    session.settle()
    assert bool(seen) is looked
    session.sampler.stop()


@pytest.mark.parametrize(("lag_s", "ended_s", "waited_s"), [(1.3, 0.2, 1.1), (1.3, 5.0, 0.0), (0.0, 0.2, 0.0)])
def test_who_ends_waits_for_samples_that_come_late_as_long_as_they_can_be(
    lag_s: float, ended_s: float, waited_s: float, clock: FakeClock
) -> None:
    session = Session(lambda: Recorded("node:/run", "nvml", lag_s), clock=clock)
    session.sampler.step(force=True)
    execution = Execution("step")
    execution.start_ns = START_NS
    execution.end_ns = START_NS + 1
    session.began.append(execution)
    clock.advance(ended_s)
    session._take_last_sample(0.5)
    assert (clock.now_ns() - START_NS) / 1e9 == pytest.approx(ended_s + waited_s, abs=1e-6)
    session.sampler.stop()
