from collections import deque
from collections.abc import Hashable

import numpy as np
import pytest

from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.backlog import MOST_DEEP, Backlog, ForeignExecutions


class Marks:
    """A stream whose marks are passed when a test says so."""

    device_uuid = "GPU-0"

    def __init__(self) -> None:
        self.passed: dict[int, int] = {}
        self._next = 0

    def record(self) -> int:
        self._next += 1
        return self._next

    def resolve(self, mark: int) -> int | None:
        return self.passed.get(mark)


def begun(
    name: str, start: int, end: int = 0, *, parent: Execution | None = None, device: Hashable = None
) -> Execution:
    found = Execution(name, parent, None, device)
    found.start_ns, found.end_ns = start, end
    return found


def everywhere(_: Hashable) -> bool:
    return True


def taken(backlog: Backlog, since: int, until: int) -> list[tuple[str, int, int, str | None]]:
    found = backlog.activities(everywhere, since, until)
    around = [None if i < 0 else found.regions[i] for i in found.parents.tolist()]
    return list(zip(found.regions, found.starts.tolist(), found.ends.tolist(), around, strict=True))


def test_what_ended_is_told_once_and_kept_until_it_is_let_go() -> None:
    backlog, first, second = Backlog(), begun("a", 10, 20), begun("b", 15)
    assert backlog.collect(deque([first, second])).executions == [first]
    assert backlog.collect(deque()).executions == []
    assert taken(backlog, 0, 30) == [("a", 10, 20, None), ("b", 15, 30, None)]
    second.end_ns = 40
    assert backlog.collect(deque()).executions == [second]
    assert backlog.remove_joined(20, latest_ns=100, abandoned_ns=0).executions == [first]
    assert taken(backlog, 20, 50) == [("b", 15, 40, None)]
    assert backlog.remove_joined(40, latest_ns=100, abandoned_ns=0).executions == [second]
    assert len(backlog) == 0


@pytest.mark.parametrize("ends", [[1, 2, 3], [7, 8, 9], [1, 8, 2, 9], [8, 1], [1, 99, 8, 2], []])
def test_executions_are_removed_in_any_order_of_their_ends(ends: list[int]) -> None:
    backlog, made = Backlog(), [begun(str(end), 0, end) for end in ends]
    backlog.collect(deque(made))
    gone = [end <= 5 or end > 50 for end in ends]
    removed = backlog.remove_joined(5, latest_ns=50, abandoned_ns=0)
    assert removed.executions == [one for one, is_gone in zip(made, gone, strict=True) if is_gone]
    assert removed.ends.tolist() == [one.end_ns for one in removed.executions]
    assert backlog.ended == [one for one, is_gone in zip(made, gone, strict=True) if not is_gone]
    assert backlog.ends.tolist() == [one.end_ns for one in backlog.ended]


def test_only_what_overlaps_the_stretch_is_given() -> None:
    backlog = Backlog()
    backlog.collect(deque([begun("before", 0, 10), begun("across", 5, 15), begun("after", 30, 40), begun("runs", 35)]))
    assert taken(backlog, 10, 30) == [("across", 5, 15, None)]


def test_parent_that_is_gone_is_replaced_by_the_nearest_that_is_there() -> None:
    backlog, outer = Backlog(), begun("outer", 1)
    middle = begun("middle", 2, 5, parent=outer)
    inner = begun("inner", 4, 20, parent=middle)
    backlog.collect(deque([outer, middle, inner]))
    assert taken(backlog, 0, 30)[-2:] == [("inner", 4, 20, "middle"), ("outer", 1, 30, None)]
    backlog.remove_joined(5, latest_ns=100, abandoned_ns=0)
    assert taken(backlog, 5, 30) == [("inner", 4, 20, "outer"), ("outer", 1, 30, None)]


def test_executions_that_name_devices_are_given_to_those_alone() -> None:
    backlog = Backlog()
    backlog.collect(deque([begun("default", 0, 10), begun("second", 0, 10, device=1), begun("both", 1, device=(0, 1))]))
    first = backlog.activities(lambda device: device != 1, 0, 20)
    second = backlog.activities(lambda device: device is not None, 0, 20)
    assert list(first.regions) == ["default", "both"]
    assert list(second.regions) == ["second", "both"]


def test_a_device_that_is_named_after_the_execution_was_queued_is_met_while_it_runs() -> None:
    backlog, running = Backlog(), begun("train", 1)
    backlog.collect(deque([running]))
    assert backlog.named == set()
    running.mark_start(Marks())
    backlog.collect(deque())
    assert backlog.named == {"GPU-0"}


def test_execution_whose_stream_is_behind_waits_for_its_marks() -> None:
    backlog, stream = Backlog(), Marks()
    late = begun("late", 10)
    late.mark_start(stream)
    late.end_mark, late.end_ns = stream.record(), 20
    assert backlog.collect(deque([late])).executions == [late]
    assert taken(backlog, 0, 50) == []
    stream.passed[1] = 30
    assert taken(backlog, 0, 50) == [("late", 30, 50, None)]
    stream.passed[2] = 45
    backlog.collect(deque())
    assert taken(backlog, 0, 50) == [("late", 30, 45, None)]
    assert backlog.behind == []


def test_execution_that_its_stream_never_passes_is_given_up() -> None:
    backlog, dead = Backlog(), begun("dead", 10)
    dead.mark_start(Marks())
    dead.end_ns = 20
    backlog.collect(deque([dead]))
    assert backlog.remove_joined(100, latest_ns=200, abandoned_ns=20).executions == []
    assert backlog.remove_joined(100, latest_ns=200, abandoned_ns=21).executions == [dead]


def test_what_ended_in_the_future_is_let_go_since_the_clock_was_set_back() -> None:
    backlog, odd = Backlog(), begun("odd", 10, 1_000)
    backlog.collect(deque([odd]))
    assert backlog.remove_joined(20, latest_ns=999, abandoned_ns=0).executions == [odd]


@pytest.mark.parametrize("most", [0, 3, 10])
def test_no_more_than_a_number_are_kept_and_the_oldest_go(most: int) -> None:
    backlog = Backlog()
    backlog.collect(deque(begun(f"r{i}", i, i + 1) for i in range(5)))
    assert backlog.drop(most) == max(0, 5 - most)
    assert [row[0] for row in taken(backlog, 0, 10)] == [f"r{i}" for i in range(5)][-most:][: min(most, 5)]


def test_a_chain_of_executions_that_outlive_each_other_is_cut() -> None:
    backlog = Backlog()
    chain = [begun("r", 0, 10)]
    for i in range(MOST_DEEP + 5):
        chain.append(begun("r", i, i + 10, parent=chain[-1]))
        backlog.collect(deque([chain[-1]]))
    depth, at = 0, chain[-1].parent
    while at is not None:
        depth, at = depth + 1, at.parent
    assert depth <= MOST_DEEP


def test_rows_of_other_processes_share_an_execution_until_one_has_a_parent() -> None:
    backlog, shared, failing = Backlog(), Execution("a", device=("GPU-0",)), Execution("b", device=("GPU-0",))
    failing.failed = True
    times = np.array([10, 20, 30]), np.array([15, 25, 35])
    backlog.foreign.append(ForeignExecutions([shared, failing, shared], *times, np.arange(5, 8), []))
    ended = backlog.collect(deque())
    assert [(e.name, e.start_ns, e.end_ns, e.failed) for e in ended.separate()] == [
        ("a", 10, 15, False),
        ("b", 20, 25, True),
        ("a", 30, 35, False),
    ]
    assert backlog.named == {("GPU-0",)}
    outer, inner = failing.at(20, 25), shared.at(30, 35)
    inner.parent = outer
    assert len(backlog.remove_joined(15, latest_ns=100, abandoned_ns=0).executions) == 1
    gone = (5, shared.at(10, 15))
    backlog.foreign.append(ForeignExecutions([], *(np.zeros(0, np.int64),) * 3, [gone, (6, outer), (7, inner)]))
    assert not backlog.collect(deque()).executions
    assert taken(backlog, 0, 50) == [("b", 20, 25, None), ("a", 30, 35, "b")]
    assert [e.start_ns for e in backlog.all_executions()] == [20, 30]
