import math
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.exporter import CONTAINER, GIB, IN_POD, POD_UID, FakeProc

from gpu_profile.catalogue.samples import ProcessUse
from gpu_profile_exporter.attribution import processes
from gpu_profile_exporter.attribution.processes import HostProcess, Uptime, look_up, require_host_pids
from gpu_profile_exporter.attribution.shares import ROUNDING, shares
from gpu_profile_exporter.attribution.sources import HolderSource, OmissionCounts, OmissionReason, Reason, Unavailable


def look(
    proc: FakeProc, *pids: int, ago: float = 0.5, names: bool = True
) -> tuple[dict[int, HostProcess], OmissionCounts]:
    tally = OmissionCounts()
    uptime = Uptime.read(proc.root)
    return look_up(pids, proc=proc.root, uptime=uptime, listed_s_ago=ago, names=names, tally=tally), tally


def test_a_process_is_found_with_its_place_its_name_and_its_start(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(7, cgroup=IN_POD, started_s=12.5, comm="pt_main_thread")
    found, tally = look(proc, 7)
    assert (found[7].started, found[7].name) == (1250, "pt_main_thread")
    assert (found[7].place.container_id, found[7].place.pod_uid) == (CONTAINER, POD_UID)
    assert not tally


def test_this_very_process_is_found_in_the_real_proc() -> None:
    tally = OmissionCounts()
    real = Path("/proc")
    found = look_up([os.getpid()], proc=real, uptime=Uptime.read(real), listed_s_ago=0, names=True, tally=tally)
    assert found[os.getpid()].name == Path("/proc/self/exe").readlink().name
    assert not tally


def test_a_process_that_ended_is_left_out_without_a_word(tmp_path: Path) -> None:
    found, tally = look(FakeProc(tmp_path), 7)
    assert (found, tally) == ({}, OmissionCounts())


@pytest.mark.parametrize(
    ("started_s", "there"), [(9_999.0, True), (9_999.49, True), (9_999.5, False), (9_999.9, False)]
)
def test_a_pid_that_began_after_the_driver_listed_it_is_another_process(
    tmp_path: Path, started_s: float, there: bool
) -> None:
    proc = FakeProc(tmp_path, uptime_s=10_000)
    proc.add(7, cgroup=IN_POD, started_s=started_s)
    found, tally = look(proc, 7, ago=0.5)
    assert (7 in found) is there
    assert tally[HolderSource.PROCESSES, OmissionReason.PID_REUSED] == (not there)


def test_a_pid_that_changes_hands_while_it_is_looked_up_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = FakeProc(tmp_path)
    proc.add(7, cgroup=IN_POD, started_s=10)
    monkeypatch.setattr(processes, "_name", lambda *_: str(proc.add(7, started_s=11)))
    found, tally = look(proc, 7)
    assert not found
    assert tally[HolderSource.PROCESSES, OmissionReason.PID_REUSED] == 1


def test_names_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(7, comm="secret-project")
    assert look(proc, 7, names=False)[0][7].name == ""


def test_a_name_is_the_executables_file_name_and_never_its_path_or_arguments(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    (proc.add(7) / "exe").symlink_to("/home/ann/secret/venv/bin/python3.11 (deleted)")
    found = look(proc, 7)[0]
    assert found[7].name == "python3.11"
    assert "SECRET" not in str(found)


def test_a_name_may_hold_parentheses_spaces_and_line_ends(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(7, comm="a) R 1\n(b", started_s=33)
    found = look(proc, 7)[0][7]
    assert (found.name, found.started) == ("a) R 1\N{REPLACEMENT CHARACTER}(b", 3300)


@given(
    stat=st.binary(max_size=300) | st.text(max_size=200).map(lambda name: f"7 ({name}) S {'1 ' * 40}".encode()),
    cgroup=st.binary(max_size=300),
)
def test_whatever_proc_says_a_look_up_never_fails_and_its_words_are_printable(stat: bytes, cgroup: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        proc = FakeProc(Path(root))
        directory = proc.add(7)
        (directory / "stat").write_bytes(stat)
        (directory / "cgroup").write_bytes(cgroup)
        found, tally = look(proc, 7)
        assert (7 in found) != bool(tally)
        assert all(process.name.isprintable() for process in found.values())


def test_pids_mean_nothing_in_a_namespace_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as refused:
        require_host_pids(FakeProc(tmp_path, host=False).root)
    assert refused.value.reason is Reason.PID_NAMESPACE


def test_the_hosts_proc_is_known_by_its_namespace_or_by_the_kernels_thread(tmp_path: Path) -> None:
    require_host_pids(FakeProc(tmp_path / "bare").root)
    mounted = FakeProc(tmp_path / "mounted", host=False)
    (mounted.add(2) / "comm").write_text("kthreadd\n")
    require_host_pids(mounted.root)


@pytest.mark.parametrize("text", ["", "soon", "\xff"])
def test_an_uptime_that_is_none_is_garbage(tmp_path: Path, text: str) -> None:
    (tmp_path / "uptime").write_text(text)
    with pytest.raises(Unavailable) as refused:
        Uptime.read(tmp_path)
    assert refused.value.reason is Reason.GARBAGE


# ---------------------------------------------------------------------- shares

Row = tuple[int, int | None, float | None]


@pytest.mark.parametrize(
    ("uses", "memory_bytes", "expected", "exceeds"),
    [
        ([(1, 5, 0.2), (2, 9, None)], 14, [(2, 9, None), (1, 5, 0.2)], 0),
        ([(1, 8, None), (1, 9, 0.5)], 10, [(1, 9, 0.5)], 0),
        ([(1, 6, 0.2), (2, 6, 0.3)], 11, [(1, None, 0.2), (2, None, 0.3)], 1),
        ([(1, 6, 0.7), (2, 5, 0.6)], 11, [(1, 6, None), (2, 5, None)], 1),
    ],
    ids=["the largest first", "a pid that is listed twice", "memory beyond the device's", "utilisation beyond one"],
)
def test_shares_are_what_the_driver_says_as_far_as_it_can_be(
    uses: list[Row], memory_bytes: int, expected: list[Row], exceeds: int
) -> None:
    tally = OmissionCounts()
    found = shares([ProcessUse(*use) for use in uses], memory_bytes=memory_bytes, most=9, tally=tally)
    assert [tuple(row) for row in found] == expected
    assert tally == ({(HolderSource.PROCESSES, OmissionReason.EXCEEDS_DEVICE): 1} if exceeds else {})


def test_what_rounding_explains_is_scaled_to_one() -> None:
    tally = OmissionCounts()
    found = shares([ProcessUse(1, None, 0.51), ProcessUse(2, None, 0.50)], memory_bytes=None, most=9, tally=tally)
    values = [row.utilization or 0 for row in found]
    assert math.fsum(values) == pytest.approx(1)
    assert values == pytest.approx([0.51, 0.50], abs=ROUNDING)
    assert not tally


@pytest.mark.parametrize("use", [ProcessUse(1, -1), ProcessUse(1, None, 1.5), ProcessUse(1, None, math.nan)])
def test_a_number_that_cannot_be_is_absent_and_counted(use: ProcessUse) -> None:
    tally = OmissionCounts()
    found = shares([use], memory_bytes=10, most=9, tally=tally)
    assert [tuple(row) for row in found] == [(1, None, None)]
    assert tally == {(HolderSource.PROCESSES, OmissionReason.GARBAGE): 1}


def test_processes_beyond_the_budget_are_one_row_with_their_sum() -> None:
    tally = OmissionCounts()
    uses = [ProcessUse(pid, pid, 0.01) for pid in range(1, 11)]
    found = shares(uses, memory_bytes=100, most=3, tally=tally)
    assert [row.pid for row in found] == [10, 9, 8, None]
    assert found[-1].memory_bytes == sum(range(1, 8))
    assert found[-1].utilization == pytest.approx(0.07)
    assert tally == {(HolderSource.PROCESSES, OmissionReason.BUDGET): 7}


uses_of_a_device = st.lists(
    st.builds(
        ProcessUse,
        pid=st.integers(1, 40),
        memory_bytes=st.none() | st.integers(-(2**64), 2**64) | st.integers(0, 8 * GIB),
        utilization=st.none() | st.floats() | st.integers(0, 100).map(lambda percent: percent / 100),
    ),
    max_size=60,
)


@given(uses_of_a_device, st.none() | st.integers(0, 80 * GIB), st.integers(1, 50))
def test_shares_never_add_up_to_more_than_the_device(
    uses: list[ProcessUse], memory_bytes: int | None, most: int
) -> None:
    found = shares(uses, memory_bytes=memory_bytes, most=most, tally=OmissionCounts())
    memory = [row.memory_bytes for row in found if row.memory_bytes is not None]
    utilization = [row.utilization for row in found if row.utilization is not None]
    assert memory_bytes is None or sum(memory) <= memory_bytes
    assert math.fsum(utilization) <= 1 + 1e-12
    assert all(value >= 0 for value in (*memory, *utilization))
    assert len(found) <= most + 1
    assert len({row.pid for row in found}) == len(found)


@given(uses_of_a_device)
def test_what_is_told_of_a_process_is_within_the_rounding_of_what_the_driver_said(uses: list[ProcessUse]) -> None:
    for row in shares(uses, memory_bytes=80 * GIB, most=100, tally=OmissionCounts()):
        said = [use for use in uses if use.pid == row.pid]
        assert row.memory_bytes is None or row.memory_bytes in {use.memory_bytes for use in said}
        if row.utilization is not None:
            assert any(
                abs(row.utilization - use.utilization) <= ROUNDING for use in said if use.utilization is not None
            )
