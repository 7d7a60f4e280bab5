"""A folder with the traces of a run's ranks: the slowest one, what differs, and traces that are not whole."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.traces import MS, US, Program, write

from gpu_profile.cli import run
from gpu_profile.kernels.activity import Activity, measure
from gpu_profile.kernels.ranks import RankSums, Slowest, in_order, named, number_of, slowest, traces_in
from gpu_profile.kernels.records import Call, Kind, Operation, Record
from gpu_profile.kernels.sums import KernelSum

Capture = pytest.CaptureFixture[str]


def rank_of(number: int, work_ms: int, host_ms: int = 1, *, cut: str = "") -> RankSums:
    """Ten steps of a collective that ends together on all ranks, after work on each and a data loader."""
    program = Program()
    for _ in range(10):
        program.host(host_ms * MS)
        program.launch(work_ms * MS)
        program.launch((30 - work_ms - host_ms) * MS, Kind.COMMUNICATION)
        program.join()
    activity = measure(program.records)
    assert isinstance(activity, Activity)
    total = KernelSum(10, 10 * work_ms * MS, work_ms * MS)
    kernels = {"gemm": total, "ncclDevKernel": KernelSum(10, 10**12, 10**11)}
    return RankSums(str(number), activity, kernels, cut, number)


def test_the_slowest_rank_is_the_one_that_the_others_wait_for_in_collectives() -> None:
    found = slowest([rank_of(0, 10), rank_of(1, 20), rank_of(2, 10), rank_of(3, 11)])
    assert isinstance(found, Slowest)
    assert found.rank == "1"
    assert found.excess_ns == pytest.approx(100 * MS, rel=0.02)
    assert found.parts[0][0] == "work"
    assert found.kernels == (("gemm", 100 * MS),)


def test_a_slow_data_loader_is_told_from_slow_kernels() -> None:
    found = slowest([rank_of(0, 10), rank_of(1, 10, 8), rank_of(2, 10)])
    assert isinstance(found, Slowest)
    assert (found.rank, found.parts[0][0], found.kernels) == ("1", "waiting for the host", ())


ALIKE = "no rank is slower: the longest own time is at most 2 % above the others' median"


def test_ranks_alike_have_no_slowest_and_cut_traces_are_not_compared() -> None:
    assert slowest([rank_of(0, 10), rank_of(1, 10)]) == ALIKE
    assert slowest([rank_of(0, 10), rank_of(1, 10), rank_of(2, 2), rank_of(3, 10)]) == ALIKE
    too_few = "no slowest rank: that takes at least two whole traces with GPU operations"
    assert slowest([rank_of(0, 10), rank_of(1, 20, cut="byte 7: it ends")]) == too_few


def test_two_traces_of_one_rank_are_not_compared_unless_one_is_cut() -> None:
    why = "no slowest rank: rank 1 has 2 traces: leave one of each rank in the folder"
    assert slowest([rank_of(0, 10), rank_of(1, 20), rank_of(1, 10)]) == why
    found = slowest([rank_of(0, 10), rank_of(1, 20), rank_of(1, 10, cut="byte 7: it ends")])
    assert isinstance(found, Slowest)
    unnumbered = [replace(each, number=None) for each in (rank_of(0, 10), rank_of(1, 20))]
    assert isinstance(slowest(unnumbered), Slowest)


@pytest.mark.parametrize(
    ("file", "in_trace", "number"),
    [
        ("a.json", 3, 3),
        ("rank5.json", 3, 3),
        ("rank_7.json.gz", None, 7),
        ("RANK-007.json", None, 7),
        ("run2_rank12.b.json", None, 12),
        ("8rank1.json", None, 1),
        ("frank3.json", None, None),
        ("ärank3.json", None, None),
        ("frank3_rank4.json", None, 4),
        ("other.json", None, None),
    ],
)
def test_a_rank_has_the_number_in_its_trace_else_in_its_files_name(
    file: str, in_trace: int | None, number: int | None
) -> None:
    assert number_of(Path(file), in_trace) == number


def test_a_rank_is_named_by_its_number_or_by_its_file_if_that_is_not_unique() -> None:
    given = [
        replace(rank_of(0, 1), rank=f"{file}.json", number=number)
        for file, number in zip("abcd", (10, 9, 7, 7), strict=True)
    ]
    given.append(replace(given[0], rank="0.json", number=None))
    assert [each.rank for each in named(given)] == ["10", "9", "c.json", "d.json", "0.json"]
    assert [each.rank for each in in_order(named(given))] == ["c.json", "d.json", "9", "10", "0.json"]


def test_a_trace_in_a_folder_counts_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("rank0.json", "rank0.json.gz", "rank1.json.gz", "run.json.gz.json"):
        write(folder / name, [])
    (folder / "all.json.gz").symlink_to("rank1.json.gz")
    (tmp_path / "elsewhere").symlink_to(folder)
    for each in (folder, tmp_path / "elsewhere"):
        assert [path.name for path in traces_in(each)] == ["rank0.json", "rank1.json.gz", "run.json.gz.json"]


def records(length_us: int) -> list[Record]:
    """A kernel and the call that launched it."""
    start = 10 * US
    return [
        Call(5, 4 * US, 5 * US, 101, "cudaLaunchKernel"),
        Operation(Kind.KERNEL, 0, 7, start, start + length_us * US, "gemm", 5),
    ]


def traces(folder: Path, *lengths_us: int) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, length in enumerate(lengths_us):
        file = folder / f"worker-{9 - rank}.json{'.gz' if rank else ''}"
        write(file, records(length), distributedInfo={"rank": rank})
    return folder


def test_a_folder_is_shown_by_rank_with_the_slowest_first(tmp_path: Path, capsys: Capture) -> None:
    folder = traces(tmp_path / "run", 2, 2, 9)
    assert run(["kernels", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "slowest rank: 2, with 9.00 µs of own time, 7.00 µs (350 %) more than the others' median"
    assert lines[1:3] == ["it differs in: work +7.00 µs", "kernels: gemm +7.00 µs"]
    assert [line for line in lines if line.startswith("── rank")] == [f"── rank {rank} ──" for rank in range(3)]
    assert run(["kernels", str(folder), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["slowest"]["rank"], values["no_slowest"]) == ("2", None)
    assert values["slowest"]["parts"] == {"work": pytest.approx(7e-6)}
    assert [(each["rank"], each["operations"]) for each in values["ranks"]] == [("0", 1), ("1", 1), ("2", 1)]
    assert values["problems"] == []


def test_without_a_slowest_rank_the_reason_is_shown(tmp_path: Path, capsys: Capture) -> None:
    folder = traces(tmp_path / "run", 2, 9)
    write(folder / "again.json", records(3), distributedInfo={"rank": 1})
    why = "no slowest rank: rank 1 has 2 traces: leave one of each rank in the folder"
    assert run(["kernels", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == why
    assert [line for line in lines if line.startswith("── rank")] == [
        f"── rank {rank} ──" for rank in ("0", "again.json", "worker-8.json.gz")
    ]
    assert run(["kernels", str(folder), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["slowest"], values["no_slowest"]) == (None, why)
    assert [each["rank"] for each in values["ranks"]] == ["0", "again.json", "worker-8.json.gz"]


def test_traces_that_are_cut_or_without_operations_are_named_in_the_report_itself(
    tmp_path: Path, capsys: Capture
) -> None:
    folder = traces(tmp_path / "run", 2, 9)
    cut_file = write(folder / "cut.json", records(2))
    cut_file.write_text(cut_file.read_text().rstrip()[:-1])
    (folder / "empty.json").write_text('{"traceEvents": []}')
    assert run(["kernels", str(folder)]) == 2
    told = capsys.readouterr()
    cut, empty, verdict = told.out.splitlines()[:3]
    assert cut.startswith(f"INCOMPLETE: {folder / 'cut.json'}: byte ")
    assert empty.startswith(f"INCOMPLETE: {folder / 'empty.json'}: no GPU operations in it")
    assert verdict.startswith("slowest rank: 1")
    assert "cut.json (cut short)" in told.out
    assert "CUT SHORT" in told.out
    assert "(and 1 more); the output covers the rest" in told.err
    assert run(["kernels", str(folder), "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 2


@pytest.mark.parametrize(
    "option", [["--html", "page.html"], ["--csv", "-"], ["--perfetto", "x"], ["--region", "a"], ["--counters", "b"]]
)
def test_options_for_one_trace_are_refused_for_a_folder(option: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert run(["kernels", str(traces(tmp_path / "run", 2)), *option]) == 2
    assert f"{option[0]} is for one trace, not for a folder: name one of its files" in capsys.readouterr().err


def test_a_folder_without_traces_is_told_in_one_line(tmp_path: Path, capsys: Capture) -> None:
    assert run(["kernels", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"gpu-profile: {tmp_path}: no traces in it, which end in .json or .json.gz\n"


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
@pytest.mark.parametrize("cut", [False, True])
def test_standard_input_is_read_like_a_file(ending: str, cut: bool, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / f"trace{ending}"
    write(file, records(2) * 50)
    data = file.read_bytes()
    file.write_bytes(data[:-20] if cut else data)
    before = os.dup(0)
    try:
        with file.open("rb") as source:
            os.dup2(source.fileno(), 0)
        assert run(["kernels", "-"]) == (2 if cut else 0)
        assert os.fstat(0)  # it stays open
    finally:
        os.dup2(before, 0)
        os.close(before)
    text = capsys.readouterr().out
    assert text.startswith("CUT SHORT: -: byte " if cut else "-: 50 GPU operations")
