import json
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.analysis import Run
from support.exporter import step_for
from support.programs import environment, taken_port, until

from gpu_profile.driver import simulated
from gpu_profile.driver.grammar import open_driver
from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work
from gpu_profile.errors import UsageError
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.session import Session
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile.units import nanoseconds
from gpu_profile_exporter.demo import command, service
from gpu_profile_exporter.demo.comparison import HostTwin, RegionComparison, compare
from gpu_profile_exporter.demo.result import PAGE, DemoResult
from gpu_profile_exporter.demo.service import SpanSample, Status, open_workload, status
from gpu_profile_exporter.demo.watch import Watch, free_port
from gpu_profile_exporter.demo.workload import DemoWorkload

ROW = RegionComparison("decode", 2.0, 1.9, 0.02, 1000.0, 1010.0, None)


@dataclass(eq=False)
class Launch:
    """An execution that launches work and is gone from the host before it runs."""

    name: str
    start_ns: int
    end_ns: int
    device: str
    first_ns: int
    last_ns: int
    parent: None = None

    def active(self) -> tuple[int, int]:
        return self.first_ns, self.last_ns


def session(**parts: Any) -> Session:
    """As much of a session as the demonstration's comparison looks at."""
    return cast("Session", SimpleNamespace(joiner=SimpleNamespace(pools={}, on_end=[]), **parts))


# ---------------------------------------------------------------------- what the service says


def test_what_the_service_says_survives_the_pipe() -> None:
    said = Status([("decode", "1,087")], joined=True, spans=3, problem="", span={"name": "decode"}, comparison=[ROW])
    line = said.line()
    assert "\n" not in line
    heard = json.loads(line)
    assert heard == {
        "rows": [["decode", "1,087"]],
        "joined": True,
        "spans": 3,
        "problem": "",
        "span": {"name": "decode"},
        "comparison": [asdict(ROW)],
    }
    assert RegionComparison(**heard["comparison"][0]) == ROW


def test_before_the_first_region_the_service_has_nothing_to_say() -> None:
    found = status(session(regions=list, sampler=SimpleNamespace(problem="")), SpanSample())
    assert found == Status([], joined=False, spans=0, problem="")


# ---------------------------------------------------------------------- how far it is from the truth


def test_the_comparison_is_a_table_of_errors() -> None:
    rows = [ROW, RegionComparison("tokenize", 0.0, 0.0, 0.0981, 0.0, 12.0, None)]
    lines = command.comparison_table([asdict(row) for row in rows]).splitlines()
    assert [" ".join(line.split()) for line in lines[2:]] == [
        "decode 2.00 s −5.0 % −99.0 % 1.00 kJ +1.0 % not given",
        "tokenize 0 s exact +98.1 ms (truth: none) 0 J +12.0 J (truth: none) not given",
    ]


def test_the_summary_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    times = ["1,648", "43.9 µs", "68.8 µs", "100.0 % ±0.3", "4.47 s"]
    row = ["postprocess", *times, "~2.05 kJ", "1.25 J", "OVERHEAD_BOUND", "89 %"]
    comparison = [asdict(RegionComparison("postprocess", 0.0, 0.0, 0.0981, 0.0, 12.0, None))]
    text = command._report({"rows": [row], "comparison": comparison}, simulated=True)
    assert max(map(len, text.splitlines())) <= 80
    assert "+98.1 ms (truth: none)" in text
    assert "+12.0 J (truth: none)" in text


def test_the_lines_below_the_table_explain_its_durations_and_its_marks() -> None:
    row = ["request", "1,027", "30.0 ms", "104 ms", "–", "~163 µs", "43.6 J", "42 mJ", "±3.0 %", "IDLE 96 %"]
    text = command._report({"rows": [row]}, simulated=True)
    assert "mean, p95: time on the host" in text
    assert "~ uncertain" in text
    assert "~ uncertain" not in command._report({"rows": [["a", *row[1:5], "0 s", *row[6:]]]}, simulated=True)
    assert "not compared with the simulator's truth: the service did not end by itself, or" in text


def test_the_service_listens_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def serve(port: int, **options: object) -> None:
        asked.update(options, port=port)
        raise KeyboardInterrupt

    monkeypatch.setattr(service, "serve_metrics", serve)
    with pytest.raises(KeyboardInterrupt):
        service.main(["--metrics", "0"])
    assert asked == {"address": "127.0.0.1", "port": 0}


def test_device_intervals_find_the_busy_time_and_energy_that_host_intervals_miss(tmp_path: Path) -> None:
    clock = FakeClock()
    node = simulated.create(tmp_path / "node", '[[device]]\nmodel = "H200 SXM"\n', clock=clock)
    queue = SimulatedQueue(node, clock=clock)
    sampler = Sampler(lambda: open_driver(f"simulated:{node}", clock=clock), clock=clock)
    mine = session()
    twin = HostTwin(mine)
    try:
        step_for(sampler, clock, 1.0)
        timeline = sampler.timeline(queue.device_uuid)
        assert timeline is not None
        pool = Pool(timeline, start_ns=clock.now_ns())
        # One second of work follows each execution of a millisecond, and then a while of nothing. The whiles differ: in
        # step with the sensors' periods, nobody could tell how long the work took.
        for i in range(10):
            start, first = clock.now_ns(), queue.record()
            queue.launch(Work(flops=5e14, bytes=1e10, seconds=1.0), tag="matmul")
            last = queue.record()
            step_for(sampler, clock, 0.001)
            end = clock.now_ns()
            launched = Launch("matmul", start, end, queue.device_uuid, first.passed_ns, last.passed_ns)
            for hook in mine.joiner.on_end:
                hook(cast("Execution", launched))
            pool.count("matmul")
            step_for(sampler, clock, 1.5 + 0.137 * i)
        step_for(sampler, clock, 1.0)
        until = clock.now_ns() - nanoseconds(0.5)
        pool.advance(twin.activities(queue.device_uuid, host=False), until, final=True)
        mine.joiner.pools[queue.device_uuid] = pool
        (row,) = compare(mine, twin, Truth(node, clock=clock))
    finally:
        sampler.stop()
    assert twin.complete
    assert row.region == "matmul"
    assert row.true_busy_s == pytest.approx(10, rel=0.001)
    assert row.true_energy_j > 10 * 70
    assert row.device_busy_s == pytest.approx(row.true_busy_s, rel=0.03)
    assert row.device_energy_j == pytest.approx(row.true_energy_j, rel=0.03)
    assert row.host_busy_s is None or row.host_busy_s < 0.1 * row.true_busy_s
    assert row.host_energy_j is None or row.host_energy_j < 0.1 * row.true_energy_j


def test_a_demonstration_that_is_too_long_to_compare_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_profile_exporter.demo.comparison.MOST_EXECUTIONS", 2)
    mine = session()
    twin = HostTwin(mine)
    for expected in (True, True, False):
        mine.joiner.on_end[0](cast("Execution", Launch("a", 0, 1, "GPU-A", 0, 1)))
        assert twin.complete is expected
    assert len(twin.executions) == 2


# ---------------------------------------------------------------------- ports and places


def test_a_port_that_is_taken_on_any_address_is_left_to_whoever_has_it() -> None:
    with taken_port() as port:
        assert free_port(port) not in (0, port)
    assert free_port(port) == port


@pytest.mark.parametrize("simulated", [True, False])
def test_warnings_of_simulated_gpus_on_a_busy_machine_are_not_shown(simulated: bool, tmp_path: Path) -> None:
    folder: Any = SimpleNamespace(path=tmp_path, fd=0)
    modules = command._modules(folder, 9400, simulated=simulated)
    assert (modules["exporter"][-2:] == ["--log-level", "error"]) is simulated


def test_without_a_gpu_the_regions_run_on_the_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    work = open_workload(None)
    assert type(work) is DemoWorkload
    assert (work.pending_s, work.stream_of_thread) == (0.0, None)
    assert work.truth() is None


# ---------------------------------------------------------------------- how it ends


def test_the_last_words_name_the_cost_and_the_place_of_the_page(tmp_path: Path) -> None:
    Run().write(tmp_path / "recording", driver="simulated")
    target = tmp_path / "page.html"
    with closing(DemoResult(str(target))) as result:
        lines = result.text(tmp_path / "recording", width=None).splitlines()
    assert lines[0].startswith("Region forward used 75 % of the energy of GPU 0 (5.02 kJ of 6.70 kJ), in 60 calls.")
    assert lines[-1] == f"Report: {target.as_uri()}"
    assert lines[0] in target.read_text()


def test_a_page_that_was_asked_for_and_cannot_be_written_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        DemoResult(str(tmp_path / "none" / "page.html"))


def test_a_working_directory_that_cannot_be_written_costs_the_page_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run().write(tmp_path / "recording")
    (tmp_path / PAGE).mkdir()  # root may write anywhere, but not here
    monkeypatch.chdir(tmp_path)
    with closing(DemoResult(None)) as result:
        lines = result.text(tmp_path / "recording", width=None).splitlines()
    assert lines[0].startswith("Region forward used 75 %")
    assert lines[-1] == f"no report: {PAGE}: cannot be written: Is a directory: choose another place with --report PATH"


def test_a_run_without_a_recording_has_no_report_and_leaves_no_page(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    with closing(DemoResult(str(target))) as result:
        assert result.text(tmp_path / "none", width=None).startswith("no report: ")
    assert not target.exists()


# ---------------------------------------------------------------------- the processes

_PARENT = """
import time
from gpu_profile.driver.simulated.temporary import TemporaryFolder
from gpu_profile_exporter.demo.watch import watched

server = ["http.server", "0", "--bind", "127.0.0.1"]
with watched(TemporaryFolder(), {"exporter": server, "service": server}, 0.0) as watch:
    print(watch.processes["exporter"].pid, flush=True)
    time.sleep(600)
"""


def test_when_the_demonstration_is_killed_its_processes_end_too(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True, env=environment(TMPDIR=str(tmp_path))
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()

    def ended() -> bool:
        try:
            return not Path(f"/proc/{child}/cmdline").read_bytes()  # empty: it waits for its new parent
        except OSError:
            return True

    until(ended, "the end of its process")


def test_a_process_that_hangs_is_named() -> None:
    # Its end of standard output is not read here.
    hanging = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    with hanging:
        watch = Watch({"engine": hanging}, [], time.monotonic())
        assert list(watch.messages(until=lambda: False, patience_s=0)) == []
        assert watch.early_end(None) == "the demonstration's engine said nothing for 60 s"
        watch.ended.append(signal.SIGINT)
        assert watch.early_end(None) == ""
