import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.programs import until

from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.reader import processes, usage
from gpu_profile_exporter.reader.processes import ReaderProcesses
from gpu_profile_exporter.reader.readers import Readers


@pytest.fixture
def sleeper() -> Iterator[int]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", "input('ready ')"], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.read(6)
        yield process.pid
        process.kill()


def test_a_process_that_waits_is_blocked_and_one_that_computes_or_is_stopped_is_not(sleeper: int) -> None:
    until(lambda: usage.blocked(sleeper), "it waits")
    assert not usage.blocked(os.getpid())
    assert not usage.stopped(sleeper)
    os.kill(sleeper, signal.SIGSTOP)
    until(lambda: usage.stopped(sleeper), "it is stopped")
    assert not usage.blocked(sleeper)
    os.kill(sleeper, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper, os.WEXITED | os.WNOWAIT)
    assert not usage.blocked(sleeper)


def of_exposition(exposition: Exposition) -> dict[str, float]:
    lines = (line for line in exposition.render()[0].decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_a_process_tells_its_own_cpu_memory_start_and_files() -> None:
    before = time.process_time()
    found = of_exposition(Exposition(list))
    assert before - 0.02 <= found["process_cpu_seconds_total"] <= time.process_time() + 0.02
    assert 4 << 20 < found["process_resident_memory_bytes"] < found["process_virtual_memory_bytes"]
    assert time.time() - 86_400 < found["process_start_time_seconds"] <= time.time() + 1
    assert 3 <= found["process_open_fds"] <= found["process_max_fds"]


def test_open_files_are_counted_exactly() -> None:
    gc.collect()  # what other tests left open is not closed in between
    before = of_exposition(Exposition(list))["process_open_fds"]
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    after = of_exposition(Exposition(list))["process_open_fds"]
    for file in files:
        os.close(file)
    assert after == before + 5


class Running(ReaderProcesses):
    """These processes."""

    def __init__(self, pids: list[int]) -> None:
        super().__init__(None, Readers("none")._settings_for)
        self._pids = pids

    @property
    def pids(self) -> list[int]:
        return self._pids


def of_readers(pids: list[int]) -> dict[str, float]:
    running = Running(pids)
    running.maintain(time.monotonic())
    return {reading.metric.prometheus: reading.value for reading in running.readings()}


def test_readers_cpu_and_memory_are_those_of_their_processes(sleeper: int) -> None:
    found = of_readers([sleeper, sleeper])
    alone = usage.usage(sleeper)
    assert alone is not None
    shared = usage.shared_bytes([sleeper])
    assert shared is not None
    assert found["gpu_profile_reader_memory_bytes"] == pytest.approx(2 * shared, rel=0.3)
    assert shared < alone.resident_bytes  # this process has the same Python library mapped
    assert found["gpu_profile_reader_cpu_seconds_total"] == pytest.approx(
        2 * alone.cpu_s + usage.ended_cpu_s(), abs=0.5
    )


def test_a_reader_whose_end_is_seen_while_they_are_read_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread sees it: its 3 s are of a process that runs at first, then of one that has ended."""
    ended = iter([0.0, 3.0, 3.0])
    running = iter([usage.Usage(10.0, 0, 0, 0), usage.Usage(7.0, 0, 0, 0)])
    monkeypatch.setattr(processes, "ended_cpu_s", lambda: next(ended))
    monkeypatch.setattr(processes, "total", lambda _: next(running))
    assert of_readers([])["gpu_profile_reader_cpu_seconds_total"] == 10.0


@pytest.mark.parametrize("gone", [[], [2**22 + 1], [-1]])
def test_readers_that_are_gone_or_never_were_are_absent_not_zero(gone: list[int]) -> None:
    assert {name for name in of_readers(gone) if "reader" in name} == {"gpu_profile_reader_restarts_total"}


def test_what_the_system_does_not_tell_is_absent_until_it_does(tmp_path: Path) -> None:
    usage._boot_s.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage, "_PROC", tmp_path)
        # What it says of a process may be there before what it says of the machine.
        (tmp_path / "self").symlink_to("/proc/self")
        assert not any(name.startswith("process_") for name in of_exposition(Exposition(list)))
    assert of_exposition(Exposition(list))["process_start_time_seconds"] > 0


def test_a_program_may_be_called_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(str(n) for n in range(4, 60))
    (tmp_path / "7" / "stat").write_bytes(b"7 (a) b ( \xff\n)) S " + fields.encode())
    monkeypatch.setattr(usage, "_PROC", tmp_path)
    found = usage.usage(7)
    assert found is not None
    ticks = os.sysconf("SC_CLK_TCK")
    assert found == usage.Usage((14 + 15) / ticks, 24 * os.sysconf("SC_PAGE_SIZE"), 23, 22)
