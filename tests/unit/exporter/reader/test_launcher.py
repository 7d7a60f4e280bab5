"""Readers are forked by one process, and are children of this one all the same."""

import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.programs import until
from unit.exporter.reader.pipes import Time

from gpu_profile_exporter.reader import launcher as module
from gpu_profile_exporter.reader.launcher import ANSWER_S, RENEW_S, Launcher
from gpu_profile_exporter.reader.launcher_process import LAUNCHER_NAME
from gpu_profile_exporter.reader.process import ReaderProcess
from gpu_profile_exporter.reader.processes import ReaderProcesses
from gpu_profile_exporter.reader.settings import COUNTER, HOME, LISTENER, ReaderSettings
from gpu_profile_exporter.reader.usage import stopped

SETTINGS = ReaderSettings("none", 0.1, (), False, -1, -1, -1)
NAMES = {HOME: "gpu-reader", LISTENER: "gpu-listener", COUNTER: "gpu-counter"}


class Node:
    """A launcher, and readers of no driver."""

    def __init__(self) -> None:
        self.launcher = Launcher()
        self.readers: list[ReaderProcess] = []

    def ask(self, *, other: int | None = None) -> ReaderProcess:
        """A reader that was asked for."""
        self.readers.append(
            ReaderProcess(ReaderSettings("none", 0.1, (), False, -1, -1, -1, other=other), self.launcher)
        )
        return self.readers[-1]

    def reader(self, *, other: int | None = None) -> ReaderProcess:
        """A reader that runs."""
        reader = self.ask(other=other)
        assert until(lambda: reader.exit_code is None and reader.pid and name(reader.pid) != LAUNCHER_NAME, "it runs")
        return reader

    @property
    def pid(self) -> int:
        """The launcher's."""
        assert self.launcher.pid is not None
        return self.launcher.pid

    def close(self) -> None:
        for reader in self.readers:
            reader.kill()
        self.launcher.close()
        for reader in self.readers:
            assert reader.wait(30)
            reader.close()


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.close()


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def speaks(reader: ReaderProcess) -> bool:
    return until(lambda: any(reader.messages()), "it says something") and reader.exit_code is None


def pipe_closed(reader: ReaderProcess) -> bool:
    return not list(reader.messages()) and reader.pipe_closed


@pytest.mark.parametrize("key", NAMES)
def test_a_reader_is_a_child_of_this_process_and_shows_what_it_is(node: Node, key: int) -> None:
    reader = node.reader(other=None if key == HOME else key)
    assert reader.pid is not None
    assert (parent(reader.pid), until(lambda: name(reader.pid or 0) == NAMES[key], "its name")) == (os.getpid(), True)
    os.kill(reader.pid, signal.SIGSEGV)
    assert reader.wait(30)
    assert reader.exit_code == -signal.SIGSEGV


def test_a_reader_that_ends_by_itself_tells_its_exit_code(node: Node) -> None:
    reader = node.reader()
    os.write(reader._orders, b"\xff" * 8)  # no message of ours
    assert reader.wait(30)
    assert reader.exit_code == 1


def test_a_process_that_says_nothing_more_shows_that_it_is_active(node: Node) -> None:
    reader = node.reader(other=LISTENER)
    assert speaks(reader)
    assert until(lambda: not list(reader.messages()) and reader.active > reader.heard + 1.0, "turns end")


def test_where_ends_of_children_are_ignored_readers_start_and_end_all_the_same(node: Node) -> None:
    """Whoever starts the exporter may have left it so; the launcher and its children would inherit it."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        reader = node.reader()
        assert speaks(reader)
        reader.kill()
        assert reader.wait(30)
        assert reader.exit_code == -signal.SIGKILL
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_the_launcher_runs_no_thread_and_ignores_what_is_sent_to_the_whole_group(node: Node) -> None:
    node.reader()
    assert len(list(Path(f"/proc/{node.pid}/task").iterdir())) == 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(node.pid, number)
    assert speaks(node.reader())


def test_readers_outlive_the_launcher_and_the_next_one_gets_another(node: Node) -> None:
    before, first = node.reader(), node.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: node.launcher.pid is None, "it has ended")
    assert speaks(before)
    assert speaks(node.reader())
    assert node.pid != first
    assert speaks(before)


def test_readers_asked_of_a_launcher_that_dies_count_as_killed(node: Node) -> None:
    node.reader()
    os.kill(node.pid, signal.SIGSTOP)
    asked = [node.ask(), node.ask()]
    os.kill(node.pid, signal.SIGKILL)
    assert [reader.wait(30) and reader.exit_code for reader in asked] == [-signal.SIGKILL] * 2
    assert all(until(lambda reader=reader: pipe_closed(reader), "its pipe ends") for reader in asked)


def test_a_launcher_that_does_not_answer_is_killed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.reader()
    fake = Time()
    monkeypatch.setattr(module, "time", fake)
    os.kill(node.pid, signal.SIGSTOP)
    reader = node.ask()
    fake.now += ANSWER_S - 1
    assert reader.exit_code is None
    assert node.launcher.pid is not None
    fake.now += 2
    assert until(lambda: reader.exit_code == -signal.SIGKILL, "the reader counts as killed")
    assert speaks(node.reader())


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_launcher_that_a_signal_stopped_or_ended_is_replaced_before_a_reader_is_requested(
    node: Node, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, first, fake = node.reader(), node.pid, Time()
    fake.now = time.monotonic()
    monkeypatch.setattr(module, "time", fake)
    os.kill(first, number)
    until(lambda: stopped(first) or node.launcher.pid is None, "it is stopped or has ended")
    reader = node.ask() if number == signal.SIGSTOP else before
    node.launcher.renew()
    assert node.launcher.pid is None, "not again and again, if its start fails"
    fake.now += RENEW_S
    node.launcher.renew()
    assert reader.exit_code == (-signal.SIGKILL if number == signal.SIGSTOP else None)
    second = node.pid
    node.launcher.renew()
    assert node.pid == second
    assert speaks(node.reader())
    assert node.pid == second
    assert speaks(before)


def test_an_answer_that_nobody_took_in_for_long_is_no_silence(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    first, fake = node.reader(), Time()
    monkeypatch.setattr(module, "time", fake)
    reader = node.ask()
    until(lambda: any(reader.messages()), "it runs, which this process has not been told yet")
    fake.now += 10 * ANSWER_S
    assert reader.exit_code is None
    assert reader.pid not in (None, first.pid)
    assert node.launcher.pid is not None


def test_a_reader_that_is_killed_before_it_runs_never_does(node: Node) -> None:
    node.reader()
    os.kill(node.pid, signal.SIGSTOP)
    reader = node.ask()
    reader.kill()
    assert not reader.wait(0.0)
    os.kill(node.pid, signal.SIGCONT)
    assert reader.wait(30)
    assert reader.exit_code == -signal.SIGKILL


def test_to_end_the_launcher_leaves_no_reader_that_was_killed(node: Node) -> None:
    node.reader()
    readers = [node.ask() for _ in range(5)]
    for reader in readers:
        reader.kill()
    node.launcher.close()
    assert all(reader.wait(30) for reader in readers)
    with pytest.raises(OSError, match="stopped"):
        node.ask()


def test_no_descriptor_leaks_from_reader_to_reader_nor_here_nor_in_the_launcher(node: Node) -> None:
    def idle() -> bool:
        """Whether the launcher has no more than its standard files and its socket: it closes a reader's after it."""
        return descriptors(node.pid) == 4

    kept = node.reader()
    assert speaks(kept)
    assert until(idle, "the launcher waits")
    gc.collect()  # what other tests left open is not closed in between
    before, each = descriptors(os.getpid()), set()
    for _ in range(50):
        reader = node.reader()
        assert speaks(reader)
        each.add(descriptors(reader.pid or 0))
        reader.kill()
        assert reader.wait(30)
        # The one that runs on holds no end of its pipe, nor does the launcher.
        assert until(lambda reader=reader: pipe_closed(reader), "its pipe ends")
        node.readers.remove(reader)
        reader.close()
    assert until(idle, "the launcher waits")
    assert descriptors(os.getpid()) == before
    assert each == {descriptors(kept.pid or 0)}
    assert not [one for one in Path(f"/proc/{kept.pid}/fd").iterdir() if "socket:" in str(one.readlink())]


FORK = """
import os
fork = os.fork
def refuse():
    if os.path.exists({file!r}):
        raise BlockingIOError(11, "no more processes")
    return fork()
os.fork = refuse
"""


def test_why_no_reader_can_be_started_is_told_until_one_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (full := tmp_path / "full").touch()
    (tmp_path / "sitecustomize.py").write_text(FORK.format(file=os.fspath(full)))
    monkeypatch.syspath_prepend(tmp_path)
    processes = ReaderProcesses(None, lambda _: SETTINGS)
    processes.want(HOME)
    assert processes.start(0.0) == ""
    (reader,) = processes
    assert reader.wait(30)
    assert reader.exit_code == -signal.SIGKILL
    assert "no more processes" in processes.start(0.0)
    full.unlink()
    processes.end(reader, "died", at_once=True)
    processes.start(time.monotonic())
    (reader,) = processes
    until(lambda: reader.exit_code is None and reader.pid, "it runs")
    assert processes.start(0.0) == ""
    processes.remove(reader)
    processes.kill()
    assert reader.wait(30)
    processes.reap()
    assert processes.gone
    processes.close()


def test_ctrl_c_reaches_no_launcher_that_still_loads(node: Node) -> None:
    node.ask()
    assert os.getpgid(node.pid) != os.getpgrp()
