import threading
from dataclasses import dataclass, field

import pytest

from gpu_profile.clock import SYSTEM_CLOCK, Alarm, StepWatch, Waitable
from gpu_profile.testing import START_NS, FakeClock
from gpu_profile.units import NS_PER_S


@pytest.mark.parametrize("make", [Alarm, threading.Event])
def test_an_alarm_is_an_event(make: type[Alarm]) -> None:
    alarm = make()
    assert not alarm.is_set()
    assert not alarm.wait(0)
    alarm.set()
    alarm.set()
    assert alarm.is_set()
    assert alarm.wait(0)
    assert alarm.wait(60)
    assert alarm.is_set()
    alarm.clear()
    alarm.clear()
    assert not alarm.is_set()
    assert not alarm.wait(-1)


def test_an_alarm_wakes_the_thread_that_waits_for_it() -> None:
    alarm, woken = Alarm(), []
    thread = threading.Thread(target=lambda: woken.append(SYSTEM_CLOCK.wait(alarm, 1e9)))
    thread.start()
    alarm.set()
    thread.join(10)
    assert woken == [True]


def test_both_clocks_wait_for_an_alarm(clock: FakeClock) -> None:
    alarm: Waitable = Alarm()
    before = clock.now_ns()
    assert not clock.wait(alarm, 5)
    assert clock.now_ns() - before == 5_000_000_000
    assert not SYSTEM_CLOCK.wait(alarm, 0)
    assert isinstance(alarm, Alarm)
    alarm.set()
    assert clock.wait(alarm, 5)
    assert SYSTEM_CLOCK.wait(alarm, 60)
    assert clock.now_ns() - before == 5_000_000_000


@pytest.mark.parametrize("ahead_s", [0.002, 0.1, 3600.0, -0.002, -3600.0])
def test_a_step_is_noticed_once_with_its_size_and_its_place(ahead_s: float) -> None:
    clock = FakeClock()
    watch = StepWatch(clock)
    clock.advance(5)
    assert watch.step() is None
    clock.advance(1)
    clock.set_forward(ahead_s)
    clock.advance(2)
    step = watch.step()
    assert step is not None
    assert step.ahead_ns == round(ahead_s * NS_PER_S)
    assert (step.before.now_ns, step.after.now_ns) == (START_NS + 5 * NS_PER_S, START_NS + 8 * NS_PER_S + step.ahead_ns)
    assert step.set_ns == step.ahead_ns
    clock.advance(1)
    assert watch.step() is None


def test_a_suspension_is_a_step_and_no_setting() -> None:
    clock = FakeClock()
    watch = StepWatch(clock)
    clock.suspend(60)
    clock.set_forward(2)
    step = watch.step()
    assert step is not None
    assert (step.ahead_ns, step.set_ns) == (62 * NS_PER_S, 2 * NS_PER_S)


def test_the_system_s_suspended_time_is_constant_while_it_runs() -> None:
    assert SYSTEM_CLOCK.suspended_ns() == pytest.approx(SYSTEM_CLOCK.suspended_ns(), abs=10_000_000)


def test_a_clock_that_runs_a_little_fast_takes_no_step() -> None:
    clock = FakeClock()
    watch = StepWatch(clock)
    for _ in range(1000):
        clock.advance(1)
        clock.set_forward(0.0005)
        assert watch.step() is None


@dataclass
class InterruptedClock(FakeClock):
    """Between two of its readings, some seconds pass."""

    pauses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def now_ns(self) -> int:
        if self.pauses:
            self.advance(self.pauses.pop())
        return super().now_ns()


@pytest.mark.parametrize("interrupted", [1, 4, 12])
def test_a_thread_that_is_interrupted_between_the_clocks_sees_no_step_and_misses_none(interrupted: int) -> None:
    clock = InterruptedClock()
    watch = StepWatch(clock)
    clock.pauses = [0.05] * interrupted
    assert [watch.step() for _ in range(3)] == [None] * 3
    clock.pauses = [0.05] * interrupted
    clock.set_forward(1.5)
    steps = [step for _ in range(4) if (step := watch.step()) is not None]
    assert [step.ahead_ns for step in steps] == [1_500_000_000]
