"""A search for timings computes in short turns beside a program, and finds the same."""

import threading
from collections.abc import Callable

import pytest
from support.hardware import H100

from gpu_profile.analysis import analyse
from gpu_profile.join.unmixing.turns import Turns, give_way
from gpu_profile.recording import read_recording


class Hurry(threading.Event):
    """Counts the pauses, and takes none."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        return False


def turns(used: list[float], *, pressing: bool = False) -> tuple[Turns, Hurry]:
    made = Turns(lambda: pressing, used_s=lambda: used[0])
    made.hurry = hurry = Hurry()
    return made, hurry


def apart(work: Callable[[], None]) -> None:
    """In a thread of its own: turns are a thread's."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_turn_is_followed_by_a_pause_of_four_times_its_length() -> None:
    used = [0.0]
    made, hurry = turns(used)

    def work() -> None:
        made.begin()
        for _ in range(5):
            used[0] += 0.0003
            give_way()
        used[0] += 0.010
        give_way()

    apart(work)
    assert hurry.pauses == pytest.approx([4 * 0.0012, 4 * 0.0103])


def test_there_is_no_pause_where_work_presses_and_none_in_another_thread() -> None:
    used = [0.0]
    made, hurry = turns(used, pressing=True)

    def work() -> None:
        used[0] += 1.0
        give_way()

    def begun() -> None:
        made.begin()
        work()

    apart(begun)
    apart(work)
    assert hurry.pauses == []


def test_a_search_is_in_turns_of_milliseconds_and_finds_the_same() -> None:
    """On what an H100 recorded of training: its searches took 0.2 s and more at a time."""
    recording = read_recording(H100 / "joint" / "training")
    made = Turns()
    made.hurry = hurry = Hurry()
    found = []

    def work() -> None:
        made.begin()
        found.append(analyse(recording))

    apart(work)
    plain = analyse(recording)
    assert [use.summary for use in found[0].regions] == [use.summary for use in plain.regions]
    lengths = [pause / 4 for pause in hurry.pauses]
    assert len(lengths) > 100
    assert sorted(lengths)[len(lengths) // 2] < 0.01
