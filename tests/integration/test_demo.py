"""`gpu-profile-exporter demo` as its users run it, and what it leaves behind when it is disturbed."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from support.programs import command, environment, printed, until

REGIONS = ["request", "data_loading", "tokenize", "prefill", "decode", "postprocess"]


class Demo:
    """A running demonstration: `lines` are what it has said on either output so far."""

    def __init__(self, temporary: Path, *arguments: str, wrapper: tuple[str, ...] = ()) -> None:
        self.temporary = temporary
        self.page = temporary.with_name(f"{temporary.name}.html")
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*wrapper, *command("demo", "--simulated", "--report", str(self.page), *arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(TMPDIR=str(temporary), COLUMNS="200"),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip("\r\n") for line in self.process.stdout)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def url(self, what: str) -> str:
        """The address that it told."""
        told = until(
            lambda: re.search(rf"^{what} +(http://127\.0\.0\.1:\d+/\S*)\s*$", self.text, re.MULTILINE), self.text
        )
        return str(told[1])

    def begun(self) -> None:
        until(lambda: re.search(r"^work +simulated", self.text, re.MULTILINE), "the service's first word")

    def end(self) -> int:
        """Its exit code, once it has ended by itself and all that it said is there."""
        code = self.process.wait(120)
        self._reader.join(10)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        return code

    def processes(self) -> dict[int, str]:
        """What runs for it: whoever has its temporary directory on the command line."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                line = path.read_bytes().decode(errors="replace")
                if f"{self.temporary}/gpu-profile-demo-" in line:
                    found[int(path.parent.name)] = line.replace("\0", " ")
        return found

    def one(self, module: str) -> int:
        """The process of one of its two parts."""
        (pid,) = [pid for pid, line in self.processes().items() if f"-m {module} " in line]
        return pid

    def left_nothing(self) -> bool:
        return not self.processes() and not list(self.temporary.iterdir())


@contextmanager
def demo(temporary: Path, *arguments: str, wrapper: tuple[str, ...] = ()) -> Iterator[Demo]:
    running = Demo(temporary, *arguments, wrapper=wrapper)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
        running.end()


@dataclass
class Seen:
    """What a whole demonstration said and served, with the ports that it likes taken by others."""

    code: int = -1
    lines: list[str] = field(default_factory=list)
    urls: dict[str, str] = field(default_factory=dict)
    served: dict[str, str] = field(default_factory=dict)
    left_nothing: bool = False
    page: Path = Path()

    def rows(self, after: str, to: str) -> dict[str, str]:
        """The lines of a table by their first word."""
        text = "\n".join(self.lines)
        part = text[text.index(after) :].partition(to)[0]
        return {line.split()[0]: line for line in part.splitlines()[2:] if line.split()}


def answer(url: str, *needed: str) -> str:
    """What an address serves once all that is needed is in it."""

    def asked() -> str | None:
        try:
            with urlopen(
                Request(url, headers={"Accept": "text/html" if "<html" in needed else "*/*"}), timeout=5
            ) as response:
                text: str = response.read().decode()
        except OSError:
            return None
        return text if all(name in text for name in needed) else None

    return str(until(asked, f"{needed} on {url}"))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    result = Seen()
    with ExitStack() as taken:
        for port in (9400, 9464):
            listener = taken.enter_context(socket.socket())
            with suppress(OSError):  # somebody else has it: as good
                listener.bind(("127.0.0.1", port))
                listener.listen()
        with demo(tmp_path_factory.mktemp("demo"), "--seconds", "20") as running:
            for what in ("live page of GPUs", "live page of regions", "metrics of GPUs", "metrics of regions"):
                result.urls[what] = running.url(what)
            for page in ("live page of GPUs", "live page of regions"):
                answer(result.urls[page], "<html")
            result.served["GPUs"] = answer(
                result.urls["metrics of GPUs"], "\ngpu_profile_busy_seconds_total{", "\nhw_energy_joules_total{"
            )
            result.served["regions"] = answer(
                result.urls["metrics of regions"],
                "\ngpu_profile_region_calls_total{",
                "\ngpu_profile_region_busy_seconds_total{",
                "\ngpu_profile_region_energy_joules_total{",
            )
            result.code = running.end()
            result.lines = running.lines
            result.left_nothing = running.left_nothing()
            result.page = running.page
    return result


def test_it_ends_in_peace_when_its_time_is_over_and_leaves_nothing_behind(seen: Seen) -> None:
    assert seen.code == 0, seen.lines
    assert seen.left_nothing
    assert "Traceback" not in "\n".join(seen.lines)


def test_its_first_line_says_that_the_gpus_are_simulated(seen: Seen) -> None:
    assert seen.lines[0].startswith("SIMULATED GPUs: ")


def test_ports_that_are_taken_are_replaced_by_free_ones(seen: Seen) -> None:
    for url in seen.urls.values():
        assert not re.search(r":(9400|9464)/", url)


def test_the_service_serves_every_region(seen: Seen) -> None:
    calls = [line for line in seen.served["regions"].splitlines() if line.startswith("gpu_profile_region_calls_total{")]
    for region in REGIONS:
        assert any(f'region="{region}"' in line for line in calls), calls


def test_its_report_has_every_region_and_no_regime_is_wrong(seen: Seen) -> None:
    rows = seen.rows("region ", "one of ")
    assert set(REGIONS) <= set(rows)
    # A hundred windows of a machine that does much else may leave it open; tests on a clock of their own hold what is
    # told of a service like this one.
    for region, right in (("decode", "MEMORY_BOUND"), ("prefill", "COMPUTE_BOUND"), ("data_loading", "HOST_BOUND")):
        assert re.search(rf" ({right}|UNKNOWN)\b", rows[region]), rows[region]


def joules(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"J": 1, "kJ": 1000}[unit]


def test_it_ends_with_the_cost_of_the_dearest_region_its_regime_the_next_step_and_a_page(seen: Seen) -> None:
    used, regime, step, report, live = seen.lines[-5:]
    cost = re.fullmatch(r"Region (\w+) used (?:about )?(\d+) % of the energy of GPU 0 \((.*) of (.*)\), in .*", used)
    assert cost is not None, used
    assert cost[1] in ("prefill", "decode")
    assert joules(cost[3]) / joules(cost[4]) == pytest.approx(int(cost[2]) / 100, abs=0.01)
    assert regime.startswith(("It is MEMORY_BOUND, ", "It is COMPUTE_BOUND, ", "Its regime is UNKNOWN: "))
    assert step.startswith("Next step: ")
    assert report == f"Report: {seen.page.as_uri()}"
    assert live == "The live pages have ended too. Without --seconds they stay until Ctrl-C."
    page = seen.page.read_text()
    assert "SIMULATED" in page
    assert used in page


def test_device_intervals_are_near_the_truth_and_host_intervals_are_not(seen: Seen) -> None:
    rows = seen.rows("by device intervals", "\0")
    for region in ("prefill", "decode"):
        signs = re.findall(r"([+−])([\d.]+) %", rows[region])
        busy, host_busy, energy, host_energy = (float(number) for _, number in signs)
        # How near depends on how much of the machine it has: the laboratory holds that, on a clock of its own.
        assert busy < host_busy / 3, rows[region]
        assert energy < host_energy / 3, rows[region]
        assert host_busy > 50, rows[region]
        assert host_energy > 50, rows[region]


def test_a_module_in_the_working_directory_is_not_executed(tmp_path: Path) -> None:
    for name in ("json", "struct", "sitecustomize", "gpu_profile"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n")
    words = ("-P", "-m", "gpu_profile_exporter", "demo", "--simulated", "--seconds", "1")
    printed_lines = printed(*words, cwd=tmp_path)
    assert "GPUs: an H200" in printed_lines
    assert not (tmp_path / "executed").exists()
    assert (tmp_path / "gpu-profile-demo.html").is_file() == ("Report: " in printed_lines)


# ---------------------------------------------------------------------- disturbed

#: Runs a command on a terminal of its own; what comes on standard input is typed there.
TERMINAL = (sys.executable, "-c", "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))")


def test_ctrl_c_ends_it_with_the_report(tmp_path: Path) -> None:
    with demo(tmp_path, wrapper=TERMINAL) as running:
        running.begun()
        until(lambda: "regions of the service on its simulated GPU" in running.text, "the first table")
        assert running.process.stdin is not None
        running.process.stdin.write("\x03")
        running.process.stdin.flush()
        assert running.end() == 0
        assert "stopping …" in running.text
        assert "against the simulator's truth" in running.text
        assert "Traceback" not in running.text
        assert running.left_nothing()


def test_ctrl_c_before_the_service_is_up_ends_it_at_once(tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        until(lambda: "SIMULATED" in running.text, "the first line")
        running.process.send_signal(signal.SIGINT)
        assert running.end() == 0
        assert "Traceback" not in running.text
        assert running.left_nothing()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_whoever_ends_it_its_two_processes_end_with_it(number: int, tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        running.begun()
        running.process.send_signal(number)
        assert running.end() == 0
        assert running.left_nothing()


@pytest.mark.parametrize(
    ("module", "name"), [("gpu_profile_exporter.demo.service", "service"), ("gpu_profile_exporter", "exporter")]
)
def test_when_one_of_its_processes_is_killed_it_says_so_and_ends(module: str, name: str, tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        running.begun()
        os.kill(running.one(module), signal.SIGKILL)
        assert running.end() == 1
        assert running.lines[-1] == f"gpu-profile-exporter: the demonstration's {name} was killed by SIGKILL"
        assert "Traceback" not in running.text
        # What an exporter that was killed had started is killed by the kernel, a moment later.
        until(running.left_nothing, "nothing left")


def test_whoever_reads_it_may_go(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("demo", "--simulated", "--report", str(tmp_path.with_name(f"{tmp_path.name}.html"))),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TMPDIR=str(tmp_path)),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("SIMULATED GPUs: ")
    process.stdout.close()
    with process.stderr:
        assert not re.search("Traceback|[Pp]ipe", process.stderr.read())
    assert process.wait(30) == 1
    assert list(tmp_path.iterdir()) == []
