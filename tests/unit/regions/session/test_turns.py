"""A search for timings computes in short turns beside a program, and finds the same."""

import threading
from collections.abc import Callable

import pytest
from support.hardware import H100

from gpu_profile.analysis import analyse
from gpu_profile.join.unmixing.windows.pauses import yield_to_program
from gpu_profile.recording import read_recording
from gpu_profile.regions.session.turns import HurryingLock, Turns


class Awaited(threading.Event):
    """Counts the pauses, and takes none."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        if not self.is_set():
            self.pauses.append(timeout)
        return False


def turns(used: list[float], *, pressing: bool = False) -> tuple[Turns, Awaited]:
    made = Turns(lambda: pressing, used_s=lambda: used[0])
    made._awaited = awaits_kernels = Awaited()
    return made, awaits_kernels


def apart(work: Callable[[], None]) -> None:
    """In a thread of its own: turns are a thread's."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_turn_is_followed_by_a_pause_of_nine_times_its_length() -> None:
    used = [0.0]
    made, awaits_kernels = turns(used)

    def work() -> None:
        made.begin()
        for _ in range(5):
            used[0] += 0.0003
            yield_to_program()
        used[0] += 0.003
        yield_to_program()
        used[0] += 0.250
        yield_to_program()

    apart(work)
    assert awaits_kernels.pauses == pytest.approx([9 * 0.0012, 9 * 0.0033, 0.1]), "none is longer than 100 ms"


def test_nothing_comes_between_two_turns_for_which_another_thread_waits_nor_into_itself() -> None:
    used, called = [0.0], list[bool]()

    def between() -> None:
        called.append(made.interrupted)
        turn()

    def turn() -> None:
        used[0] += 0.01
        yield_to_program()

    made = Turns(lambda: True, between, used_s=lambda: used[0])

    def work() -> None:
        made.begin()
        turn()
        with made.hurried():
            turn()
        turn()

    apart(work)
    assert called == [True, True]
    assert not made.interrupted


def test_there_is_no_pause_where_work_presses_and_none_in_another_thread() -> None:
    used = [0.0]
    made, awaits_kernels = turns(used, pressing=True)

    def work() -> None:
        used[0] += 1.0
        yield_to_program()

    def begun() -> None:
        made.begin()
        work()

    apart(begun)
    apart(work)
    assert awaits_kernels.pauses == []


def test_a_search_is_in_turns_of_milliseconds_and_finds_the_same() -> None:
    """On what an H100 recorded of training: its searches took 0.2 s and more at a time."""
    recording = read_recording(H100 / "joint" / "training")
    made = Turns()
    made._awaited = awaits_kernels = Awaited()
    found = []

    def work() -> None:
        made.begin()
        found.append(analyse(recording))

    apart(work)
    plain = analyse(recording)
    assert [use.summary for use in found[0].regions] == [use.summary for use in plain.regions]
    assert len(awaits_kernels.pauses) > 100
    assert max(awaits_kernels.pauses) <= 0.1


def test_nobody_pauses_while_somebody_waits_and_each_who_waited_ends_his_own_hurry() -> None:
    used = [0.0]
    made, awaits_kernels = turns(used)

    def work() -> None:
        made.begin()
        used[0] += 0.002
        yield_to_program()

    with made.hurried():
        with pytest.raises(ZeroDivisionError), made.hurried():
            raise ZeroDivisionError
        apart(work)
        assert awaits_kernels.pauses == []
    apart(work)
    assert awaits_kernels.pauses == pytest.approx([0.018])


def test_who_waits_for_the_lock_hurries_who_holds_it_and_may_take_it_twice() -> None:
    made = Turns()
    lock, held, hurried = HurryingLock(made), threading.Event(), threading.Event()

    def hold() -> None:
        with lock, lock:
            held.set()
            assert made._awaited.wait(60)
            hurried.set()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    assert not made._awaited.is_set()
    with lock:
        assert hurried.is_set()
    thread.join()
    assert not made._awaited.is_set()
