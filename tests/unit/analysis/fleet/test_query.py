"""`gpu-profile query` on recordings: the numbers of `analyze`, its forms, and wrong input."""

import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
from support.analysis import GAP, Run, analysed, with_gap
from support.ranks import late_job

from gpu_profile.analysis import Analysis
from gpu_profile.analysis.costs.repeated import compare_runs
from gpu_profile.analysis.costs.run import REQUESTS, RunCosts
from gpu_profile.analysis.fleet import QUESTIONS, RecordedRun, tables_of
from gpu_profile.analysis.fleet.engine import FleetEngine
from gpu_profile.analysis.fleet.questions import BASES
from gpu_profile.analysis.ranks.causes import LateCause
from gpu_profile.analysis.views.data import of_analysis
from gpu_profile.cli import run

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", autouse=True)
def once() -> Iterator[None]:
    """The command reads two recordings again and again. Each is analysed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_profile.analysis.analyse", analysed)
        yield


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two recordings with cut files, as after SIGKILL."""
    directories = [tmp_path_factory.mktemp("recordings") / name for name in ("a", "b")]
    for seed, directory in enumerate(directories, start=1):
        Run(seed=seed, calls=8).write(directory)
    (file,) = directories[1].iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    return [str(directory) for directory in directories]


def rows(name: str, *runs: RecordedRun) -> list[dict[str, Any]]:
    tables = tables_of(runs)
    answer = FleetEngine(tables).answer(QUESTIONS[name].sql)
    assert answer.columns == tuple(QUESTIONS[name].columns)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def test_regions_devices_and_regimes_have_the_numbers_of_analyze() -> None:
    analysis = analysed(Run(calls=20).recording())
    known: Any = of_analysis(analysis)
    by_region = {row["region"]: row for row in rows("regions", RecordedRun("r", "1", analysis))}
    for each in known["regions"]:
        mine = by_region[each["region"]]
        assert (mine["executions"], mine["gpu_s"], mine["energy_j"]) == (
            each["executions"],
            each["busy_s"],
            each["energy_j"],
        )
    (held,) = rows("idle", RecordedRun("r", "1", analysis))
    (device,) = known["devices"]
    assert held["energy_j"] == device["energy_j"]
    assert held["idle_share"] == pytest.approx(1 - device["utilization"])
    regimes = {row["regime"]: row["executions"] for row in rows("regimes", RecordedRun("r", "1", analysis))}
    assert regimes == {"HOST_BOUND": 20, "COMPUTE_BOUND": 40}


def test_shares_without_a_rate_are_uncertain_and_missing_ones_are_not_0() -> None:
    analysis = analysed(Run(calls=20).recording())
    (first, second, *others) = analysis.regions
    changed: Analysis = replace(
        analysis,
        regions=(
            replace(first, summary=replace(first.summary, energy_half_width=None)),
            replace(second, summary=replace(second.summary, energy_j=None, energy_half_width=None)),
            *others,
        ),
    )
    by_region = {row["region"]: row for row in rows("regions", RecordedRun("r", "1", changed))}
    uncertain, missing = (by_region[each.summary.region] for each in (first, second))
    assert (uncertain["energy_j"], uncertain["uncertain_energy_j"]) == (None, first.summary.energy_j)
    assert (missing["energy_j"], missing["execution_energy_j"], missing["unmeasured_executions"]) == (None, None, 20)


def test_time_without_samples_is_held_and_not_measured() -> None:
    analysis = analysed(with_gap(Run(calls=40)))
    (device,) = analysis.devices
    assert device.utilization is not None
    (held,) = rows("idle", RecordedRun("r", "1", analysis))
    assert (held["held_s"], held["devices"]) == ((device.end_ns - device.start_ns) / 1e9, 1)
    assert held["measured_s"] == pytest.approx(held["held_s"] - (GAP[1] - GAP[0]) / 1e9)
    assert held["idle_s"] == pytest.approx(held["measured_s"] * (1 - device.utilization))
    assert held["energy_j"] == device.energy_j


def test_late_ranks_are_those_of_analyze() -> None:
    analysis = analysed(late_job(LateCause.HOST, steps=12))
    known: Any = of_analysis(analysis)
    (compared,) = known["ranks"]
    answer = rows("stragglers", RecordedRun("job", "", analysis))
    assert next((row["rank"], row["late"]) for row in answer) == (compared["slowest"], 1)
    assert answer[0]["excess"] == pytest.approx(compared["excess"])
    assert {row["rank"]: row["mean_s"] for row in answer} == {
        each["rank"]: pytest.approx(each["mean_s"]) for each in compared["ranks"]
    }
    assert [row["late"] for row in answer[1:]] == [0, 0, 0]


def test_of_two_jobs_in_one_folder_the_ranks_are_those_of_analyze() -> None:
    recording = late_job(LateCause.HOST, steps=12)
    # Two ranks of a second job, which was killed: it has no end.
    second = tuple(replace(each, pid=each.pid + 9, end_ns=None) for each in recording.processes[:2])
    spans = [span._replace(process=span.rank) for span in recording.spans]
    spans += [
        span._replace(process=span.rank + 4, id=f"f{span.id[1:]}", start_ns=span.start_ns + 1)
        for span in recording.spans
        if span.rank is not None and span.rank < len(second)
    ]
    mixed = analysed(replace(recording, processes=(*recording.processes, *second), spans=tuple(spans)))
    assert any("2 jobs are in the recording" in note for note in mixed.notes)
    known: Any = of_analysis(mixed)
    (compared,) = known["ranks"]
    answer = rows("stragglers", RecordedRun("folder", "", mixed))
    assert {row["rank"]: (row["executions"], row["mean_s"]) for row in answer} == {
        each["rank"]: (12, pytest.approx(each["mean_s"])) for each in compared["ranks"]
    }


def test_an_interval_is_that_of_compare_for_repeated_runs() -> None:
    joules = {"1": (100.0, 103.0, 99.0, 98.0), "2": (110.0, 112.0, 109.5, 111.0, 110.7)}
    calls = {"1": (10,) * 4, "2": (10,) * 5}

    def costs(version: str) -> list[RunCosts]:
        return [
            RunCosts("e", 0, 1, n, {}, "result", {REQUESTS: each}, {}, None, 0.0, {})
            for each, n in zip(joules[version], calls[version], strict=True)
        ]

    compared = compare_runs(costs("1"), costs("2"))
    (expected,) = [each for each in compared.differences if each.quantity == "energy/request"]
    tables = tables_of([])
    engine = FleetEngine(tables)
    values = ", ".join(
        f"(TIMESTAMP '2026-01-0{version}', 'v{version}', 'run {place}', {n}, {each})"
        for version in joules
        for place, (each, n) in enumerate(zip(joules[version], calls[version], strict=True))
    )
    engine.answer(
        "INSERT INTO gpu_profile_use BY NAME SELECT col0 AS hour, col0 AS first_seen, '' AS service, col1 AS version, "
        f"col2 AS run, 'r' AS region, '' AS device, '' AS regime, col3 AS executions, "
        f"col4 AS energy_j FROM (VALUES {values})"
    )
    answer = engine.answer(QUESTIONS["regressions"].sql)
    (row,) = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    assert expected.relative_interval is not None
    assert row["change"] == pytest.approx(expected.relative)
    assert (row["low"], row["high"]) == pytest.approx(expected.relative_interval, rel=1e-4)
    assert row["finding"] == "higher"


def test_a_run_with_a_device_of_uncertain_energy_counts_neither_in_part_nor_as_0() -> None:
    engine = FleetEngine(tables_of([]))
    uses = [
        f"(TIMESTAMP '2026-01-0{version}', 'v{version}', 'run {run}', 'g{gpu}', 10, {certain}, {uncertain})"
        for version in (1, 2)
        for run in range(4)
        for gpu, certain, uncertain in (
            (0, 100 + run, "NULL"),
            # The last run of a version has half of its energy by time.
            (1, *(("NULL", 300) if run == 3 else (300 + run, "NULL"))),
        )
    ]
    engine.answer(
        "INSERT INTO gpu_profile_use BY NAME SELECT col0 AS hour, col0 AS first_seen, '' AS service, col1 AS version, "
        "col2 AS run, 'r' AS region, col3 AS device, '' AS regime, col4 AS executions, "
        f"col5 AS energy_j, col6 AS uncertain_energy_j FROM (VALUES {', '.join(uses)})"
    )
    answer = engine.answer(QUESTIONS["regressions"].sql)
    (row,) = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    assert (row["runs_a"], row["runs_b"], row["finding"]) == (3, 3, "no change shown")
    # The engine's threads add in any order.
    assert row["a"] == pytest.approx(20.1)


def test_answers_are_a_table_csv_or_json_with_the_reasons_of_cut_recordings(
    recordings: list[str], capsys: Capture
) -> None:
    assert run(["query", "regions", *recordings]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split()[:3] == ["service", "version", "region"]
    assert f"gpu-profile: {recordings[1]}: " in err
    assert run(["query", "regions", *recordings, "--format", "json"]) == 0
    parsed = json.loads(capsys.readouterr().out)
    assert {row["region"] for row in parsed} == {"load", "step", "forward"}
    assert parsed[0]["uncertain_energy_j"] is None
    assert run(["query", "select run, count(*) as n from gpu_profile_executions group by run", *recordings]) == 0
    assert "24" in capsys.readouterr().out
    assert run(["query", "select 0.25 as x, date '2026-01-01' as d, true as b", recordings[0], "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"x": 0.25, "d": "2026-01-01", "b": True}]
    assert run(["query", "regions", *recordings, "--format", "csv"]) == 0
    table = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert [float(row["energy_j"]) for row in table] == [row["energy_j"] for row in parsed]


def test_columns_of_equal_names_are_all_in_the_answer(recordings: list[str], capsys: Capture) -> None:
    sql = "select 1 as a, 2 as a, 3 as a_1, 4 as a"
    assert run(["query", sql, recordings[0], "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}]
    assert run(["query", sql, recordings[0], "--format", "csv"]) == 0
    assert capsys.readouterr().out == "a,a_2,a_1,a_3\n1,2,3,4\n"


def test_names_of_columns_are_no_formulas_and_no_control_characters(recordings: list[str], capsys: Capture) -> None:
    sql = """select 1 as "=cmd()", 2 as "b\x1b[31m\n" """
    assert run(["query", sql, recordings[0], "--format", "csv"]) == 0
    assert capsys.readouterr().out == "'=cmd(),b\\x1b[31m\\n\n1,2\n"
    assert run(["query", sql, recordings[0]]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_a_file_has_the_rows(recordings: list[str], tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "it's.parquet"
    assert run(["query", "regions", f"v1={recordings[0]}", "--out", str(target)]) == 0
    assert capsys.readouterr() == ("", f"wrote {target}\n")
    tables = tables_of([])
    path = str(target).replace("'", "''")
    rows_of = FleetEngine(tables).answer(f"SELECT DISTINCT version, typeof(energy_j) FROM '{path}'").rows
    assert rows_of == [("v1", "DOUBLE")]
    (link := tmp_path / "link.csv").symlink_to(tmp_path / "target.csv")
    assert run(["query", "services", recordings[0], "--out", str(link)]) == 0
    assert link.is_symlink()
    assert link.read_text().startswith("service,version,runs")


def test_large_answers_are_swapped_out_to_the_temporary_folder_and_not_to_the_users_own() -> None:
    tables = tables_of([])
    ((folder,),) = FleetEngine(tables).answer("SELECT current_setting('temp_directory')").rows
    assert Path(folder).parent == Path(gettempdir())


def test_the_page_has_each_question_and_base_table() -> None:
    page = (Path(__file__).parents[4] / "docs" / "fleet-sql.md").read_text()
    assert all(f"`{name}`" in page for name in QUESTIONS)
    for base, columns in BASES.items():
        assert f"| `{base}` |" in page
        assert f"`{' '.join(columns)}`" in page


def test_the_questions_are_listed_and_printed_as_views(capsys: Capture) -> None:
    assert run(["query", "--list"]) == 0
    listed = capsys.readouterr().out
    for question in QUESTIONS.values():
        assert f"{question.name}: {question.title}\n" in listed
        assert all(f"  {column} " in listed for column in question.columns)
    assert run(["query", "--clickhouse", "--database", "otel", "--days", "30"]) == 0
    script = capsys.readouterr().out
    assert "USE otel;" in script
    assert "INTERVAL 30 DAY" in script
    assert all(f"CREATE OR REPLACE VIEW {question.view} AS" in script for question in QUESTIONS.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "query: no question: services, regions"),
        (["regions"], "query: no recording given"),
        (["speed", "{a}"], "speed: no question: services"),
        (["select nothing from here", "{a}"], "query: Catalog Error: Table with name here does not exist!"),
        (["select 1; copy (select 1) to 'x.csv'", "{a}"], "query: one SELECT is needed, and no other statement"),
        (["select 1; select 2", "{a}", "--out", "x.csv"], "query: one SELECT is needed, and no other statement"),
        (["with x as (select 1) insert into gpu_profile_student select 1, 1, 1", "{a}"], "query: one SELECT is needed"),
        (["select ;", "{a}"], "query: Parser Error"),
        (["select * from sql", "{a}"], "query: Catalog Error: Table with name sql does not exist!"),
        (["regions", "{a}", "--out", "x.xlsx"], "--out x.xlsx: the name ends with none of .parquet, .csv, .json"),
        (["regions", "{a}", "--out", "/nowhere/x.csv"], "query: IO Error"),
        (["regions", "{a}", "--device", "GPU-z"], "--device: no recording has samples of GPU-z"),
        (["select nothing" + " " * 300, "{a}"], "query: Binder Error"),
        (["regions", "/nowhere"], "/nowhere: not a recording"),
        (["--list", "regions"], "--list takes no question"),
        (["--clickhouse", "--database", "a-b"], "--database 'a-b': a name of letters"),
    ],
)
def test_wrong_input_is_one_line(recordings: list[str], capsys: Capture, arguments: list[str], message: str) -> None:
    assert run(["query", *(each.format(a=recordings[0]) for each in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gpu-profile: {message}")
    assert len(err.splitlines()) == 1
    assert len(err) <= 220


def test_an_unreadable_recording_leaves_the_answers_for_the_others(recordings: list[str], capsys: Capture) -> None:
    assert run(["query", "services", "/nowhere", recordings[0]]) == 0
    out, err = capsys.readouterr()
    assert err == "gpu-profile: left out: /nowhere: not a recording: No such file or directory\n"
    assert len(out.splitlines()) >= 3


def test_a_recording_that_is_given_twice_counts_once(recordings: list[str], tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "link").symlink_to(recordings[0])
    again = [f"2={recordings[0]}/", f"1={recordings[0]}/../a", f"1={tmp_path / 'link'}"]
    assert run(["query", "services", f"1={recordings[0]}", *again, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert [(row["version"], row["runs"], row["executions"]) for row in json.loads(out)] == [("1", 1, 24)]
    assert err.splitlines() == [f"gpu-profile: left out: {each}: this recording was given before" for each in again]
    assert run(["query", "services", "/nowhere", "/nowhere/"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("gpu-profile: /nowhere: not a recording")


@pytest.mark.parametrize(("question", "why"), [("regressions", "two versions"), ("stragglers", "no recording has")])
def test_an_answer_without_rows_has_its_reason(
    recordings: list[str], tmp_path: Path, capsys: Capture, question: str, why: str
) -> None:
    assert run(["query", question, recordings[0]]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("no rows (")
    assert f"gpu-profile: {question}: {why}" in err
    assert run(["query", question, recordings[0], "--out", str(tmp_path / "x.json")]) == 0
    assert f"gpu-profile: {question}: {why}" in capsys.readouterr().err
    assert json.loads((tmp_path / "x.json").read_text()) == []


def test_without_duckdb_the_remedy_is_printed(
    recordings: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert run(["query", "regions", recordings[0]]) == 2
    assert capsys.readouterr().err == (
        "gpu-profile: query needs DuckDB, which is not installed: pip install 'gpu-profile[query]'\n"
    )
