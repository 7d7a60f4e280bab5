"""Every message on a user's mistake: one line, at most 200 characters, one prefix, and the way out."""

import logging
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.analysis import Run

from gpu_profile import cli
from gpu_profile.driver import simulated
from gpu_profile.errors import few
from gpu_profile_exporter import cli as exporter_cli

TRACES = Path(__file__).parents[2] / "data" / "traces" / "hta"
COMMANDS = """
    --bogus
    run
    run --driver foo -- true
    run --driver simulated:{tmp}/none -- true
    run --driver replay:{tmp}/none -- true
    run --strict -- true
    run --strict --driver none -- true
    run --strict --driver {node} --device 9 -- true
    run --strict --driver {node} --device nvml:99 -- true
    run --strict --driver {node} --device GPU-xx -- true
    run --interval -1 -- true
    run --json {tmp}/none/x -- true
    run --report {tmp} -- true
    run -- no-such-command-anywhere
    analyze {tmp}/none
    analyze {tmp}
    analyze {tmp}/file.txt
    analyze {recording} --device GPU-x
    analyze {recording} --html {tmp}/none/x
    classify {recording}
    classify {recording} --rules {tmp}/file.txt
    compare {recording}
    compare {recording} {recording} --fail-on x
    compare {recording} {recording} --fail-on nope.energy>5%
    compare {recording} {recording} --fail-on step.enrgy>5%
    compare {recording} {recording} --run-to-run 200
    compare {recording} {recording} --device GPU-x
    kernels {tmp}/none
    kernels {tmp}
    kernels {tmp}/file.txt
    kernels {traces}/alexnet_a100.json.gz --region nope
    kernels {traces}/alexnet_a100.json.gz --counters {traces}/mi250_minitoy_rocm62.json.gz
    kernels {traces}/alexnet_a100.json.gz --top 0
    op nope
    op add --dtype nope
    op --size 0 add
    record
    record {tmp}/r --driver none
    record {tmp}/r --driver {node} --device 77
    record {tmp}/file.txt --driver {node}
    record {tmp}/r --driver {node} --collect nope
    cost
    cost --url ftp://x -- true
    cost --url http://127.0.0.1:1 -- true
    cost --wait 0 -- true
    cost --driver foo --result {tmp}/r -- true
    cost --output {tmp}/none/x -- true
    compare {tmp}/file.txt {tmp}/file.txt
    compare {tmp}/file.txt {recording}
    calibrate --driver none
    calibrate --driver {node}
    calibrate --driver {node} --device nvml:99
    doctor --driver foo
"""
EXPORTER = """
    --bogus
    --listen foo
    --listen 1.2.3.4:9400 --driver none
    --listen :99999
    --driver foo
    --driver simulated:{tmp}/none
    --driver replay:{tmp}/none
    --interval -1
    --interval abc
    --collect nope
    --names nope
    --config {tmp}/none.toml
    --config {tmp}/bad.toml
    --config {tmp}/file.txt
    --web-config-file {tmp}/none.yml
    --web-config-file {tmp}/file.txt
    --otlp-endpoint ftp://x
    --otlp-protocol nope
    --otlp-compression nope
    --otlp-headers nope
    --receive-http :4318
    --receive-also nope --receive-http :4318 --forward-endpoint http://x
    --forward-endpoint x
    --attribution-labels nope
    --dcgm-csv {tmp}/none.csv
    --dcgm-csv {tmp}/file.txt
    --timeline-retention 1
    --timeline {tmp}/t --timeline-mode 9
    --series-budget -3
    --log-level nope
    --log-format nope
    release
    release --for x
    release --port 1
    healthcheck --url foo
    demo --seconds 0
    nosuch
"""


def lines(table: str) -> list[str]:
    return [line.strip() for line in table.strip().splitlines()]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    tmp = tmp_path_factory.mktemp("messages")
    (tmp / "file.txt").write_text("x\n")
    (tmp / "bad.toml").write_text("listen = 5\nfoo = 1\n")
    simulated.create(tmp / "node")
    Run().write(tmp / "recording")
    return {
        "tmp": str(tmp),
        "node": f"simulated:{tmp / 'node'}",
        "recording": str(tmp / "recording"),
        "traces": str(TRACES),
    }


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """The exporter sets up the root logger."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def message(
    places: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., str]:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GPU_PROFILE_CACHE", str(tmp_path))
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))

    def of(line: str, run: Callable[[list[str]], int]) -> str:
        code = run([word.format(**places) for word in line.split(" ")])
        out, err = capsys.readouterr()
        assert code != 0
        assert out == ""
        # Directories of tests are longer than people's.
        return err.replace(places["tmp"], "/tmp/x").replace(places["traces"], "/data")

    return of


def well_formed(text: str, name: str) -> None:
    assert re.fullmatch(rf"{name}: .*\n", text), text  # one line, with one prefix
    assert not text.startswith(f"{name}: {name}")
    assert len(text) - 1 <= 200, text
    words = text.rstrip().split(": ")
    assert all(a != b for a, b in pairwise(words)), text
    assert "Traceback" not in text
    assert "unexpected" not in text


@pytest.mark.parametrize("line", lines(COMMANDS))
def test_a_mistake_in_a_command_is_one_short_line(line: str, message: Callable[..., str]) -> None:
    well_formed(message(line, cli.run), "gpu-profile")


@pytest.mark.parametrize("line", lines(EXPORTER))
def test_a_mistake_in_the_exporters_settings_is_one_short_line(line: str, message: Callable[..., str]) -> None:
    well_formed(message(line, exporter_cli.run), "gpu-profile-exporter")


@pytest.mark.parametrize("name", ["BOGUS", "INTERVAL"])
def test_a_mistake_in_a_variable_is_one_short_line(
    name: str, message: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"GPU_PROFILE_EXPORTER_{name}", "abc")
    text = message("--print-config", exporter_cli.run)
    well_formed(text, "gpu-profile-exporter")
    assert f"GPU_PROFILE_EXPORTER_{name}" in text


def test_names_in_a_message_are_counted_beyond_those_that_fit() -> None:
    assert few([]) == ""
    assert few(["a"]) == "a"
    assert few(["a", "b"]) == "a, b"
    assert few(["x" * 300, "b"]) == f"{'x' * 300} and 1 more"
    assert few(range(100), 10) == "0, 1, 2, 3 and 96 more"


def test_the_name_of_the_command_that_helps_is_in_the_message(message: Callable[..., str]) -> None:
    assert message("run --bogus", cli.run) == "gpu-profile: No such option '--bogus'; see gpu-profile run --help\n"
