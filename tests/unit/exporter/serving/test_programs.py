"""Programs that work beside an engine, as the driver's lists of processes show them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.exporter import FakeProc

from gpu_profile.catalogue.samples import ProcessUse
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.serving.programs import TIMELINE_SAMPLE_S, OtherPrograms, SharedTime

S = 1_000_000_000
#: Process groups: 10 is the engine's.
GROUPS = {10: 10, 11: 10, 12: 10, 20: 20, 21: 20, 30: 30}


class Watched:
    """An engine's GPU whose processes are listed every 5 s, while the engine runs iterations."""

    def __init__(self, root: Path, *, host: bool = True, comm: str = "python", behind_s: float = 1.0) -> None:
        self.proc = FakeProc(root, host=host)
        for pid, group in GROUPS.items():
            self.proc.add(pid, group=group, comm=comm if pid == 30 else "python")
        self.clock = FakeClock()
        self.programs = OtherPrograms("e", ["GPU-1"], self.clock, behind_s=behind_s, proc=self.proc.root)
        self.state: Any = SimpleNamespace(processes=(), processes_ns=None)

    def list(self, *, ran: bool = True, **shares: float | None) -> list[SharedTime]:
        """A list with these utilisations by pid. Returns the shared times, in ns before the list."""
        self.clock.advance(5.0)
        now_ns = self.clock.now_ns()
        self.state.processes = tuple(ProcessUse(int(pid[1:]), 1, share) for pid, share in shares.items())
        self.state.processes_ns = now_ns
        found = self.programs.look({"GPU-1": self.state}, now_ns - S if ran else 0)
        assert self.programs.look({"GPU-1": self.state}, now_ns) == []
        return [SharedTime(now_ns - start_ns, now_ns - end_ns) for start_ns, end_ns in found]


SHARED = [SharedTime(6 * S, 0)]


def test_two_programs_that_work_share_the_gpu_until_the_list_after_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = Watched(tmp_path)
    assert world.list(p10=None) == []
    assert world.programs.count is None
    assert world.list(p10=0.7) == []
    assert world.programs.count == 0
    assert world.list(p10=0.7, p20=0.02, p30=0.3) == SHARED
    assert world.programs.count == 2
    assert world.list(p10=0.7, p20=0.02, p30=0.3) == SHARED
    assert [record.message for record in caplog.records] == [
        "engine e: programs share GPU GPU-1 (pids 20, 30); its energy is nobody's: give each its own GPU"
    ]
    # It is not listed any more: it may have worked until its end.
    assert world.list(p10=0.7, p20=0.01) == SHARED
    assert world.programs.count == 0
    assert world.list(p10=0.7, p20=None) == []


@pytest.mark.parametrize(
    ("case", "shares"),
    [
        ("tensor-parallel workers hold contexts on the first GPU", {"p10": 0.9, "p11": None, "p12": None}),
        ("a tokenizer decodes images on the engine's GPU", {"p10": 0.9, "p11": 0.05}),
        ("another program holds memory and is idle", {"p10": 0.9, "p20": None, "p30": 0.0}),
        ("a desktop draws now and then", {"p10": 0.9, "p20": 0.01}),
        ("processes end before they are looked up", {"p10": 0.9, "p99": 0.5}),
        ("nothing works", {"p10": None, "p20": None}),
    ],
)
def test_a_healthy_engine_is_never_refused(case: str, shares: dict[str, float | None], tmp_path: Path) -> None:
    world = Watched(tmp_path)
    assert [world.list(ran=turn % 3 != 2, **shares) for turn in range(9)] == [[]] * 9, case


def test_another_program_that_works_while_the_engine_is_idle_is_not_the_engines_idle_time(tmp_path: Path) -> None:
    world = Watched(tmp_path)
    world.list(p10=0.7)
    assert world.list(p10=0.7, p20=None) == []
    assert world.list(p10=None, p20=0.9, ran=False) == SHARED
    # The engine was started anew: its first work, before any iteration, is its own.
    assert world.list(p20=None, p30=0.5, ran=False) == []
    assert world.list(p20=None, p30=0.5) == []
    assert world.list(p20=0.5, p30=None, ran=False) == SHARED


def test_an_engine_with_little_work_beside_a_busy_program_is_not_taken_for_it(tmp_path: Path) -> None:
    world = Watched(tmp_path)
    world.list(p10=0.7)
    assert world.list(p10=0.7) == []
    assert [world.list(p10=0.004, p20=0.9) for _ in range(3)] == [SHARED] * 3


def test_lists_of_a_timeline_are_older_so_that_more_time_before_them_is_shared(tmp_path: Path) -> None:
    world = Watched(tmp_path, behind_s=TIMELINE_SAMPLE_S)
    world.list(p10=0.7)
    assert world.list(p10=0.7, p20=0.5) == [SharedTime(12 * S, 0)]
    assert world.programs.listed_until_ns() == world.clock.now_ns() - 7 * S


def test_without_the_hosts_processes_nothing_is_claimed_and_nothing_waits(tmp_path: Path) -> None:
    world = Watched(tmp_path, host=False)
    assert [world.list(p10=0.7, p20=0.7) for _ in range(3)] == [[]] * 3
    assert (world.programs.count, world.programs.listed_until_ns()) == (None, None)


def test_work_of_mps_clients_that_the_driver_reports_as_the_servers_is_not_judged(tmp_path: Path) -> None:
    world = Watched(tmp_path, comm="nvidia-cuda-mps")
    assert [world.list(p10=0.2, p30=0.7) for _ in range(3)] == [[]] * 3


def test_energy_waits_for_the_list_that_shows_who_worked_and_never_for_a_silent_driver(tmp_path: Path) -> None:
    world = Watched(tmp_path)
    world.list(p10=None)
    assert world.programs.listed_until_ns() is None
    world.list(p10=0.5)
    assert world.programs.listed_until_ns() == world.clock.now_ns() - S
    world.clock.advance(14.0)
    assert world.programs.listed_until_ns() == world.clock.now_ns() - 15 * S
    world.clock.advance(2.0)
    assert world.programs.listed_until_ns() is None
