import threading

import pytest

from gpu_profile.clock import SYSTEM_CLOCK, Alarm, Waitable
from gpu_profile.testing import FakeClock


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
