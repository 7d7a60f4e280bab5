import errno
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.analysis import Run, analysed
from support.clocks import ClockJob

from gpu_profile.cli import run
from gpu_profile.recording import VERSION, RecordingWriter, SpanRecord
from gpu_profile.recording.format import header

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", autouse=True)
def once() -> Iterator[None]:
    """The commands read three recordings again and again. Each is analysed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_profile.analysis.analyse", analysed)
        yield


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    directory = tmp_path_factory.mktemp("recordings")
    Run().write(directory / "a")
    Run(dear=1.3).write(directory / "b")
    Run().write(directory / "simulated", driver="simulated:/tmp/x")
    return lambda name: str(directory / name)


def test_analyze_prints_regions_and_devices(recorded: Callable[[str], str], capsys: Capture) -> None:
    assert run(["analyze", recorded("a")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"^0 +NVIDIA H200 .* kJ .* GPU-a$", out, re.MULTILINE)
    assert re.search(r"^forward +0 +60 .* COMPUTE_BOUND +\d+ %$", out, re.MULTILINE)


def test_collectives_of_nccl_inspector_are_read_beside_the_recording(
    recorded: Callable[[str], str], capsys: Capture, tmp_path: Path
) -> None:
    folder = ClockJob([0], steps=8).inspector(tmp_path / "inspector")
    with (folder / "node-0-pid100.log").open("a") as file:
        file.write("cut o")
    assert run(["analyze", recorded("a"), "--nccl", str(folder), "--csv", str(tmp_path / "a.csv")]) == 0
    line = "gpu-profile: node-0-pid100.log: 1 records left out: no JSON: cut off or damaged"
    assert capsys.readouterr().err.splitlines()[0] == line
    assert run(["analyze", recorded("a"), "--nccl", str(tmp_path / "none")]) == 2
    assert "none: cannot be read: No such file or directory" in capsys.readouterr().err


def test_the_json_is_valid_and_says_null_for_what_is_not_known(recorded: Callable[[str], str], capsys: Capture) -> None:
    assert run(["analyze", recorded("a"), "--json"]) == 0

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert set(found) == {
        "schema_version",
        "simulated",
        "start_ns",
        "end_ns",
        "lost_bytes",
        "processes",
        "devices",
        "regions",
        "ranks",
        "clocks",
        "events",
        "changes",
        "untold",
    }
    by_name = {row["region"]: row for row in found["regions"]}
    assert by_name["load"]["items"] is None
    assert by_name["step"]["items"] == 60 * 32
    assert by_name["forward"]["verdict"]["regime"] == "COMPUTE_BOUND"


def test_every_key_of_the_json_is_explained(recorded: Callable[[str], str], tmp_path: Path, capsys: Capture) -> None:
    page = (Path(__file__).parents[3] / "docs" / "analysis.md").read_text(encoding="utf-8")

    def keys(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {key for each in value.values() for key in keys(each)}
        return {key for each in value for key in keys(each)} if isinstance(value, list) else set()

    assert run(["analyze", recorded("a"), "--json"]) == 0
    used = keys(json.loads(capsys.readouterr().out))
    assert run(["compare", recorded("a"), recorded("b"), "--json", "--fail-on", "load.p50 > 500%"]) == 0
    used |= keys(json.loads(capsys.readouterr().out))
    (tmp_path / "rules.toml").touch()
    assert run(["classify", recorded("a"), "--json", "--rules", str(tmp_path / "rules.toml")]) == 0
    used |= keys(json.loads(capsys.readouterr().out))
    assert {key for key in used if f"`{key}`" not in page} == set()


def test_a_page_that_cannot_be_written_is_one_line(
    recorded: Callable[[str], str], tmp_path: Path, capsys: Capture
) -> None:
    assert run(["analyze", recorded("a"), "--html", str(tmp_path / "no" / "a.html")]) == 2
    assert "a.html: cannot be written: No such file or directory" in capsys.readouterr().err


def test_results_of_simulated_gpus_are_marked(recorded: Callable[[str], str], tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "rules.toml").touch()
    rules = ["--rules", str(tmp_path / "rules.toml")]
    for arguments, key, line in (
        (["compare", recorded("a"), recorded("simulated")], "simulated_b", "SIMULATED GPUs in B"),
        (["compare", recorded("simulated"), recorded("simulated")], "simulated_a", "SIMULATED GPUs in A and B"),
        (["classify", recorded("simulated"), *rules], "simulated", "SIMULATED GPUs"),
    ):
        assert run(arguments) == 0
        assert capsys.readouterr().out.splitlines()[0] == line
        assert run([*arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[key] is True
    real = (
        (["compare", recorded("a"), recorded("b")], "simulated_a"),
        (["classify", recorded("a"), *rules], "simulated"),
    )
    for arguments, key in real:
        assert run(arguments) == 0
        assert "SIMULATED" not in capsys.readouterr().out
        assert run([*arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[key] is False


def test_classify_says_which_verdicts_other_thresholds_change(
    recorded: Callable[[str], str], tmp_path: Path, capsys: Capture
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[thresholds]\nceiling = 0.99\ndram_ceiling = 1.0\ntensor_ceiling = 1.0\n")
    assert run(["classify", recorded("a"), "--rules", str(rules)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^forward +0 +COMPUTE_BOUND .* changed$", out, re.MULTILINE)
    assert out.splitlines()[-1] in ("1 of 3 verdicts changed", "2 of 3 verdicts changed")
    rules.write_text("")
    assert run(["classify", recorded("a"), "--rules", str(rules)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 of 3 verdicts changed"


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        ([], 0),
        (["forward.energy > +5%"], 1),
        (["forward.energy > +60%"], 0),
        (["forward.energy > +60%", "forward.energy > +5 J"], 1),
        (["load.energy/item > +5%"], 3),
        (["load.energy/item > +5%", "forward.energy > +5%"], 1),
    ],
)
def test_compare_ends_with_what_the_conditions_say(
    conditions: list[str], code: int, recorded: Callable[[str], str], capsys: Capture
) -> None:
    arguments = [part for condition in conditions for part in ("--fail-on", condition)]
    assert run(["compare", recorded("a"), recorded("b"), *arguments]) == code
    assert run(["compare", recorded("a"), recorded("b"), "--json", *arguments]) == code
    out = capsys.readouterr().out
    assert all(condition in out for condition in conditions)


def test_compare_writes_a_page(recorded: Callable[[str], str], tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "change.html"
    assert run(["compare", recorded("a"), recorded("b"), "--html", str(page)]) == 0
    assert capsys.readouterr() == ("", f"wrote {page}\n")
    assert "Changed: forward energy more" in page.read_text("utf-8")
    assert run(["compare", recorded("a"), recorded("b"), "--html", str(tmp_path / "none" / "x.html")]) == 2


def test_analyze_fits_the_terminal(
    recorded: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["analyze", recorded("a")]) == 0
    assert run(["compare", recorded("a"), recorded("b")]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def newer_header() -> bytes:
    head = header()[:8] + (VERSION + 1).to_bytes(2, "little") + bytes(2)
    return head + zlib.crc32(head).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["analyze", "{tmp}/missing"], "{tmp}/missing: not a recording: No such file or directory"),
        (["analyze", "{tmp}"], "{tmp}: not a recording: no .gpr file in it"),
        (
            ["analyze", "{a}/node-a-42-1767225600000000000.gpr"],
            "not a recording but a file; give the directory that holds",
        ),
        (
            ["analyze", "{tmp}/empty"],
            "{tmp}/empty: no samples and no executions in it: {tmp}/empty/x.gpr: byte 0: cut off",
        ),
        (["analyze", "{tmp}/idle"], "{tmp}/idle: no samples and no executions in it: its processes recorded nothing"),
        (["analyze", "{tmp}/newer"], "x.gpr: byte 8: version 2, but this gpu-profile reads version 1; use a newer"),
        (["analyze", "{tmp}/other"], "x.gpr: byte 0: not a recording of gpu-profile (wrong magic)"),
        (["analyze", "{tmp}/nested"], "x.gpr: cannot be read: Is a directory"),
        (["compare", "{a}", "{tmp}/empty"], "{tmp}/empty: no samples and no executions in it"),
        (
            ["compare", "{a}", "{tmp}/foreign"],
            "no region in common: the first has load, step, forward, the second other",
        ),
        (["analyze", "{a}", "--device", "GPU-x"], "no samples of GPU-x; it has GPU-a"),
        (["classify", "{a}"], "Missing option '--rules'"),
        (["classify", "{a}", "--rules", "{tmp}/none"], "{tmp}/none: cannot be read"),
        (["compare", "{a}"], "Missing argument 'B'"),
        (["compare", "{a}", "{b}", "--fail-on", "step.enrgy > 5%"], "column 6: no quantity 'enrgy'"),
        (["compare", "{a}", "{b}", "--fail-on", "stp.energy > 5%"], "no region 'stp'; did you mean 'step'?"),
        (["compare", "{a}", "{b}", "--device", "GPU-x"], "neither recording has samples of GPU-x"),
        (
            ["compare", "{a}", "{b}", *(part for n in range(8) for part in ("--device", f"GPU-{n:036}"))],
            f"neither recording has samples of GPU-{0:036}, GPU-{1:036} and 6 more",
        ),
    ],
)
def test_a_slip_of_the_users_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, recorded: Callable[[str], str], tmp_path: Path, capsys: Capture
) -> None:
    places = {"tmp": tmp_path, "a": recorded("a"), "b": recorded("b")}
    for name, content in (("empty", b""), ("newer", newer_header()), ("other", b"PK\x03\x04 something else")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.gpr").write_bytes(content)
    (tmp_path / "nested" / "x.gpr").mkdir(parents=True)
    RecordingWriter(tmp_path / "idle").close()
    with RecordingWriter(tmp_path / "foreign") as writer:
        writer.span(SpanRecord("other", 1, 2))
    assert run([argument.format(**places) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says.format(**places) in err


@pytest.mark.parametrize("what", ["directory", "file"])
def test_a_recording_that_may_not_be_read_is_one_line(
    what: str, recorded: Callable[[str], str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir" if what == "directory" else "read_bytes", refuse)
    assert run(["analyze", recorded("a")]) == 2
    place = recorded("a") if what == "directory" else f"{recorded('a')}/node-a-42-1767225600000000000.gpr"
    assert capsys.readouterr() == ("", f"gpu-profile: {place}: cannot be read: Permission denied\n")


def test_a_recording_that_never_ended_and_lost_its_tail_is_analysed_and_says_so(
    recorded: Callable[[str], str], tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "x.gpr"
    (whole,) = Path(recorded("a")).iterdir()
    path.write_bytes(whole.read_bytes()[:-100])
    assert run(["analyze", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(rf"{path}: byte \d+: \d+ bytes lost: the file is cut off or damaged there", out)
    assert "ended without handing in the last regions and samples" in out
    assert re.search(r"^forward +0 ", out, re.MULTILINE)


def test_what_makes_a_build_fail_is_told_where_errors_are(recorded: Callable[[str], str], capsys: Capture) -> None:
    conditions = ["forward.energy > +5%", "load.duration > +50%", "load.duration/item > +5%"]
    arguments = [part for condition in conditions for part in ("--fail-on", condition)]
    assert run(["compare", recorded("a"), recorded("b"), "--json", *arguments]) == 1
    out, err = capsys.readouterr()
    assert [line.partition(" (")[0] for line in err.splitlines()] == [
        "gpu-profile: holds: forward.energy > +5%",
        "gpu-profile: cannot be judged: load.duration/item > +5%",
    ]
    assert run(["compare", recorded("a"), recorded("b"), *arguments]) == 1
    text = capsys.readouterr()
    assert (text.out.count("holds: forward.energy > +5%"), text.err) == (1, "")
    judged = json.loads(out)["fail_on"]
    assert [each["outcome"] for each in judged] == ["holds", "not", "untold"]
    assert [each["reason"] is None for each in judged] == [True, True, False]


def test_classify_prints_json_too(recorded: Callable[[str], str], tmp_path: Path, capsys: Capture) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[thresholds]\nleast_n = 1000000\n")
    assert run(["classify", recorded("a"), "--rules", str(rules), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == 1
    regions = {row["region"]: row for row in found["regions"]}
    assert (regions["forward"]["by_default"]["regime"], regions["forward"]["by_rules"]["regime"]) == (
        "COMPUTE_BOUND",
        "UNKNOWN",
    )
    assert regions["forward"]["changed"] is True
