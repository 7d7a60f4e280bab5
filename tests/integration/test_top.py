"""`gpu-profile top` on a terminal and without one, on simulated nodes."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from integration.running import LIMIT_S, Terminal, command, profile
from support.nodes import busy, node_of
from support.programs import environment

from gpu_profile.catalogue import Tier
from gpu_profile.catalogue.signals import UTILIZATION
from gpu_profile.driver import simulated
from gpu_profile.driver.node.driver import NodeDriver
from gpu_profile.errors import GpuBackendError

#: What a full-screen program does at its end: it leaves the second screen.
LEFT = "\x1b[?1049l"


@contextmanager
def terminal(*words: str, rows: int = 24, columns: int = 80, **env: str) -> Iterator[Terminal]:
    term = Terminal(command("top", *words), environment(TERM="xterm-256color", **env), rows, columns)
    try:
        yield term
    finally:
        term.close()


def text(seen: str) -> str:
    """What was drawn, without escape sequences: changed parts of lines only, in the order in which they were drawn."""
    return re.sub(r"\x1b(\[[0-9;?<>=]*[A-Za-z$~]|[()][0-9A-Za-z]|[=>78]|\][^\x07\x1b]*(\x07|\x1b\\))", "", seen)


def node(directory: Path, *models: str, faults: str = "") -> str:
    scenario = "".join(f'[[device]]\nmodel = "{model}"\n{busy(0.5)}' for model in models) + faults
    return f"simulated:{simulated.create(directory / 'node', scenario)}"


def fault(kind: str, from_s: float, to_s: float, more: str = "") -> str:
    return f'[[fault]]\nkind = "{kind}"\n{more}from_s = {from_s}\nto_s = {to_s}\n'


def test_it_draws_resizes_survives_a_driver_that_fails_and_quits(tmp_path: Path) -> None:
    # Again and again: on a busy machine the program may still be starting at the first time.
    faults = "".join(fault("driver_reload", start, start + 3) for start in range(6, 60, 9))
    spec = node(tmp_path, *["H100 SXM"] * 8, faults=faults)
    with terminal("--driver", spec) as term:
        term.until(lambda seen: "8 devices" in text(seen) and "50%" in text(seen), "eight busy devices")
        term.resize(50, 170)
        term.until(lambda seen: "PCIe rx MB/s" in text(seen), "the columns of a wide screen")
        term.until(lambda seen: "no driver: " in text(seen), "the driver's failure")
        before = len(term.seen)
        term.until(lambda seen: "50%" in text(seen[before:]), "the driver's return")
        term.press("q")
        assert term.wait() == 0
    assert LEFT in term.seen
    assert "Traceback" not in term.seen


def test_a_terminal_that_is_taken_away_or_a_signal_ends_it(tmp_path: Path) -> None:
    with terminal("--driver", node(tmp_path, "A10G")) as term:
        term.until(lambda seen: "A10G" in text(seen), "the device")
        os.kill(term.pid, signal.SIGTERM)
        assert term.wait() == 128 + signal.SIGTERM
    assert LEFT in term.seen


def test_without_a_driver_it_waits_and_says_why(tmp_path: Path) -> None:
    with terminal("--driver", f"node:{tmp_path}", NO_COLOR="1") as term:
        term.until(lambda seen: "no driver: no timeline of this node in" in text(seen), "the reason")
        term.press("\x03")
        assert term.wait() == 0
    assert not re.search(r"\x1b\[(\d+;)*(3[0-8]|4[0-8])[;m]", term.seen), "no colours"


def test_a_wrong_device_ends_it_with_one_line(tmp_path: Path) -> None:
    with terminal("--driver", node(tmp_path, "A10G"), "--device", "GPU-x") as term:
        assert term.wait() == 2
    assert "gpu-profile: device 'GPU-x': no device has this UUID" in term.seen.rsplit(LEFT, 1)[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "top: standard output is no terminal; --once prints one frame as text"),
        (["--driver", "simulatd", "--once"], "unknown driver 'simulatd'"),
        (["--driver", "simulated:/nowhere", "--once"], "/nowhere"),
        (["--driver", "simulated", "--once", "--device", "GPU-x"], "device 'GPU-x': no device has this UUID"),
        (["--url", "http://[x", "--once"], "--url: 'http://[x' is not written as http://HOST:PORT/metrics"),
        (["--url", "ftp://node", "--once"], "--url: 'ftp://node' is not written as http://HOST:PORT/metrics"),
    ],
)
def test_a_slip_is_one_line(words: list[str], says: str) -> None:
    done = profile("top", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_dumb_terminal_is_refused(tmp_path: Path) -> None:
    term = Terminal(command("top", "--driver", "none"), environment(TERM="dumb"))
    try:
        assert term.wait() == 2
    finally:
        term.close()
    assert "TERM is unset or dumb" in term.seen


def test_without_textual_it_names_the_extra_and_once_needs_none(tmp_path: Path) -> None:
    (tmp_path / "textual").mkdir()
    (tmp_path / "textual" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'textual'\")")
    env = environment(TERM="xterm")
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    term = Terminal(command("top", "--driver", "none"), env)
    try:
        assert term.wait() == 2
    finally:
        term.close()
    assert "pip install 'gpu-profile[top]'" in term.seen
    done = profile("top", "--once", "--driver", node(tmp_path, "A10G"), PYTHONPATH=env["PYTHONPATH"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[2].split()[:4] == ["0", "A10G", "50%", "–"]
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_no_device_is_no_error() -> None:
    done = profile("top", "--once", "--driver", "none")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no devices: the driver lists none" in done.stdout


@pytest.mark.parametrize(
    ("redirection", "code", "says"),
    [
        (">&-", 2, "top: standard output is closed, so the frame cannot be printed"),
        ("> /dev/full", 1, "top: standard output cannot be written: No space left on device"),
    ],
)
def test_an_output_that_takes_nothing_is_one_line(redirection: str, code: int, says: str) -> None:
    line = f"{shlex.join(command('top', '--once', '--driver', 'none'))} {redirection}"
    done = subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, text=True, env=environment(), timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"gpu-profile: {says}")
    assert done.stderr.count("\n") == 1


def wait_until_fresh(timeline: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(GpuBackendError):
            driver = NodeDriver(timeline, files=timeline)
            # Utilisation comes last: NVML buffers it.
            used = [
                any(sample.signal is UTILIZATION for sample in driver.read(device, Tier.FAST))
                for device in driver.devices()
            ]
            fresh = driver.covers_all_gpus and all(used)
            driver.close()
            if fresh:
                return
        time.sleep(0.1)
    raise AssertionError(f"no samples in {timeline}")


def test_auto_takes_the_nodes_timeline_without_nvml(tmp_path: Path) -> None:
    spec = f"simulated:{simulated.create(tmp_path / 'node', node_of('A10G', 'H100 SXM'))}"
    words = ["-m", "gpu_profile_exporter", "--driver", spec, "--timeline", str(tmp_path / "timeline")]
    with subprocess.Popen(
        [sys.executable, *words, "--listen", "127.0.0.1:0"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as exporter:
        try:
            wait_until_fresh(tmp_path / "timeline")
            code = "import sys; sys.modules['pynvml'] = None; from gpu_profile.cli import main; main()"
            done = subprocess.run(
                [sys.executable, "-c", code, "top", "--once"],
                capture_output=True,
                text=True,
                env=environment(GPU_PROFILE_TIMELINE=str(tmp_path / "timeline")),
                timeout=60,
                check=False,
            )
        finally:
            exporter.terminate()
    assert (done.returncode, done.stderr) == (0, "")
    title, _, first, second, *_ = done.stdout.splitlines()
    assert title.startswith("top  node:/")
    assert (first.split()[1:3], second.split()[1:3]) == (["A10G", "0%"], ["H100", "80GB"])
    assert "none that the driver lists" in done.stdout
