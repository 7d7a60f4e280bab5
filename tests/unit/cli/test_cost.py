"""`gpu-profile cost` against a server that answers like the exporter, and `compare` of the files that it writes."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from support.servers import answering
from unit.analysis.costs.runs import run

from gpu_profile import cli
from gpu_profile.cli import meters
from gpu_profile.driver import simulated
from gpu_profile.testing import FakeClock

Capture = pytest.CaptureFixture[str]
Run = Callable[..., int]
#: Writes a result, and lets the server's counters grow.
BENCHMARK = """
import pathlib, sys
result, done = map(pathlib.Path, sys.argv[1:])
result.write_text('{"completed": 100, "total_input_tokens": 100000, "total_output_tokens": 10000, "duration": 0.001, '
                  '"model_id": "m"}')
done.touch()
"""


def scrape(idle_j: float, *, done: bool, factor: float) -> str:
    """The counters before and after 100 requests without spans: 200 J of prefill and 800 J of decode.

    With a factor of 9 the exporter restarts meanwhile.
    """
    prefill, decode = (10.0 + 200 * factor, 20.0 + 800 * factor) if done else (10.0, 20.0)
    return f"""\
gpu_profile_serving_energy_joules_total{{engine="e",phase="prefill"}} {prefill}
gpu_profile_serving_energy_joules_total{{engine="e",phase="decode"}} {decode}
gpu_profile_serving_energy_unallocated_joules_total{{engine="e",reason="idle"}} {idle_j}
gpu_profile_serving_phase_half_width_ratio{{engine="e",phase="decode"}} 0.01
gpu_profile_serving_waiting{{engine="e"}} 0
process_start_time_seconds {1.0 if factor < 9 or not done else 2.0}
"""


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs `gpu-profile cost` with a benchmark of requests that cost `factor` times the usual energy."""
    monkeypatch.setattr(meters, "SYSTEM_CLOCK", FakeClock())
    done, factors, idle_j = tmp_path / "done", [1.0], [0.0]

    def answer(handler: BaseHTTPRequestHandler) -> None:
        idle_j[0] += 1.0
        body = scrape(idle_j[0], done=done.exists(), factor=factors[0]).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with answering(answer) as url:

        def run(*options: str, factor: float = 1.0, program: str = BENCHMARK) -> int:
            done.unlink(missing_ok=True)
            factors[0] = factor
            benchmark = (sys.executable, "-c", program, str(tmp_path / "r.json"), str(done))
            return cli.run(["cost", "--url", url, *options, "--", *benchmark])

        yield run


def test_a_benchmarks_costs_are_printed_and_appended(measure: Run, tmp_path: Path, capsys: Capture) -> None:
    options = "--result", str(tmp_path / "r.json"), "--output", str(tmp_path / "runs.jsonl")
    assert measure(*options) == 0
    assert measure(*options, "--json", factor=1.5) == 0
    text, line = capsys.readouterr().out.rsplit("\n", 2)[:2]
    assert "counted by the result" in text
    assert re.search("^decode +10,000 +800 J +80.0 mJ +±1.0 % +8.00 J$", text, re.MULTILINE)
    values = [json.loads(each) for each in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert values[1] == json.loads(line)
    assert [each["energy_j"]["decode"] for each in values] == [800.0, 1200.0]
    assert values[0]["settings"] == {"model_id": "m"}


def test_a_restart_of_the_exporter_is_an_error_however_large_the_counters_are(measure: Run, capsys: Capture) -> None:
    assert measure(factor=9.0) == 2
    assert "the exporter restarted during the run; run it again" in capsys.readouterr().err


def test_a_result_with_an_old_time_and_a_torn_last_line_are_no_obstacle(measure: Run, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("{")
    old = BENCHMARK + "\nimport os\nos.utime(result, (1, 1))"  # as from a file server with another clock
    assert measure("--result", str(tmp_path / "r.json"), "--output", str(tmp_path / "runs"), program=old) == 0
    assert [line[0] for line in (tmp_path / "runs").read_text().splitlines()] == ["{", "{"]


def test_a_gate_on_repeated_runs_fails_the_build(measure: Run, tmp_path: Path, capsys: Capture) -> None:
    for name, factors in (("a", (1.0, 1.01, 0.99)), ("b", (1.1, 1.11, 1.09))):
        for factor in factors:
            assert measure("--result", str(tmp_path / "r.json"), "--output", str(tmp_path / name), factor=factor) == 0
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    capsys.readouterr()
    assert cli.run(["compare", a, b, "--fail-on", "requests.energy/token > +5%"]) == 1
    assert "holds: requests.energy/token > +5% (+10.0 %" in capsys.readouterr().out
    assert cli.run(["compare", b, a, "--json", "--fail-on", "requests.energy/token > +5%"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == [3, 3]
    assert cli.run(["compare", a, b, "--run-to-run", "30", "--fail-on", "requests.energy/token > +5%"]) == 0
    assert cli.run(["compare", a, b, "--html", str(tmp_path / "page.html")]) == 0
    assert "energy/token" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("options", "program", "code", "says"),
    [
        ((), "import sys; sys.exit(7)", 7, "ended with 7: no costs"),
        ((), "", 2, "engine e: no iteration ran during the command; did it send requests there?"),
        (("--engine", "x"), BENCHMARK, 2, "it has no engine 'x': there is e"),
        (("--result", "{tmp}/none"), BENCHMARK, 2, "none: No such file or directory: does the command write it there?"),
        (("--result", "{tmp}/old"), BENCHMARK, 2, "old: older than this run: does the command write another file?"),
        (("--output", "{tmp}/none/x"), BENCHMARK, 2, "x: cannot be written: No such file or directory"),
    ],
)
def test_a_run_without_costs_ends_with_the_reason(
    measure: Run, tmp_path: Path, capsys: Capture, options: tuple[str, ...], program: str, code: int, says: str
) -> None:
    (tmp_path / "old").write_text("{}")
    assert measure(*(each.format(tmp=tmp_path) for each in options), program=program) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gpu-profile: ")
    assert says in err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--device", "0"), "--device needs --driver"),
        (("--driver", "auto"), "--driver needs --result"),
        (("--driver", "auto", "--url", "x"), "leave out --url and --engine"),
        (("--url", "http://127.0.0.1:1"), "Connection refused: --url names the exporter with the engine"),
    ],
)
def test_what_is_to_be_measured_is_known_before_the_command_starts(
    options: tuple[str, ...], says: str, capsys: Capture
) -> None:
    assert cli.run(["cost", *options, "--", "true"]) == 2
    assert says in capsys.readouterr().err


def test_without_an_exporter_whole_gpus_are_measured(tmp_path: Path, capsys: Capture) -> None:
    node = simulated.create(tmp_path / "node", '[[device]]\nmodel = "H200 SXM"\n')
    program = "import time; time.sleep(0.4)" + BENCHMARK.replace('"duration": 0.001', '"duration": 0.3')
    words = (sys.executable, "-c", program, str(tmp_path / "r"), str(tmp_path / "done"))
    arguments = ["cost", "--driver", f"simulated:{node}", "--result", str(tmp_path / "r"), "--json", "--", *words]
    assert cli.run(arguments) == 0
    costs = json.loads(capsys.readouterr().out)
    assert 0.3 * 50 < costs["energy_j"]["requests"] < 0.3 * 200  # an idle H200
    assert costs["energy_j"]["decode"] is None
    assert costs["simulated"]
    assert costs["settings"]["GPUs"] == "1 x NVIDIA H200"


def test_runs_may_come_through_a_pipe_and_a_missing_file_is_named(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "runs").write_text(run().line() + "\n")
    reading, writing = os.pipe()
    os.write(writing, run(1.1).line().encode())
    os.close(writing)
    assert cli.run(["compare", str(tmp_path / "runs"), f"/dev/fd/{reading}"]) == 0
    os.close(reading)
    assert "+10.0 %" in capsys.readouterr().out
    assert cli.run(["compare", str(tmp_path / "runs"), str(tmp_path / "none")]) == 2
    assert "none: cannot be read: No such file or directory" in capsys.readouterr().err


def test_a_file_of_runs_and_a_recording_are_not_compared(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "runs").write_text("{}\n")
    assert cli.run(["compare", str(tmp_path / "runs"), str(tmp_path / "runs")]) == 2
    assert "runs: line 1: not the costs of a run; gpu-profile cost writes them" in capsys.readouterr().err
    assert cli.run(["compare", str(tmp_path / "runs"), str(tmp_path / "runs"), "--device", "GPU-x"]) == 2
    assert "--device: costs of runs are of the engine's GPUs" in capsys.readouterr().err
    assert cli.run(["compare", str(tmp_path / "runs"), str(tmp_path)]) == 2
