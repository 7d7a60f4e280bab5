"""`gpu-profile -- COMMAND` as the foreground job of a terminal."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from integration.running import Terminal, command
from support.programs import environment

from gpu_profile.driver import simulated

#: Prints every interrupt that comes, and ends after as many as it is told.
INTERRUPTED = """
import select, signal, sys
found = []
def take(number, _):
    found.append(number)
    print(f"interrupt {len(found)}", flush=True)
signal.signal(signal.SIGINT, take)
print("ready", flush=True)
while len(found) < int(sys.argv[1]):
    select.select([], [], [], 0.02)
select.select([], [], [], 0.5)
print(f"in all {len(found)}", flush=True)
"""


@pytest.fixture
def node(tmp_path: Path) -> str:
    return f"simulated:{simulated.create(tmp_path / 'node')}"


@contextmanager
def terminal(*words: str, term: str = "xterm") -> Iterator[Terminal]:
    found = Terminal(command(*words), environment(TERM=term))
    try:
        yield found
    finally:
        found.close()


def plain(text: str) -> str:
    """Text without what moves the cursor."""
    return re.sub(r"\x1b(\[[0-9;]*[A-Za-z]|[78])", "", text)


def test_ctrl_c_reaches_the_command_once_however_often_it_is_pressed(node: str) -> None:
    with terminal("--backend", node, sys.executable, "-c", INTERRUPTED, "2") as term:
        term.until(lambda seen: "ready" in seen and " devices: " in seen, "the start and what the GPUs do")
        term.press("\x03")
        term.until(lambda seen: "interrupt 1" in seen, "the first interrupt")
        term.press("\x03")
        assert term.wait() == 0
    assert "in all 2" in term.seen
    assert "[GPU 0] NVIDIA H200" in term.seen


def test_ctrl_c_pressed_while_the_summary_is_made_does_not_lose_it(node: str) -> None:
    with terminal("--backend", node, "sleep", "60") as term:
        term.until(lambda seen: " devices: " in seen, "what the GPUs do")
        term.press("\x03")
        for _ in range(5):
            time.sleep(0.05)
            term.press("\x03")
        assert term.wait() == 130
    assert "[GPU 0] NVIDIA H200" in term.seen
    assert "gpu-profile: the command was ended by SIGINT" in term.seen


def test_ctrl_c_while_a_driver_is_waited_for_starts_nothing(tmp_path: Path) -> None:
    text = '[[device]]\nmodel = "A10G"\n[[fault]]\nkind = "hang"\ndevice = 0\nfrom_s = 0\nhang_s = 600\n'
    slow = simulated.create(tmp_path / "slow", text)
    began = time.monotonic()
    with terminal("--backend", f"simulated:{slow}", "--strict", "touch", str(tmp_path / "ran")) as term:
        time.sleep(1)
        term.press("\x03")
        assert term.wait() == 130
    assert time.monotonic() - began < 8, "not as long as a driver may take"
    assert not (tmp_path / "ran").exists()


def test_an_interrupt_that_only_we_were_sent_is_passed_on(node: str) -> None:
    with terminal("--backend", node, "--no-live", sys.executable, "-c", INTERRUPTED, "1") as term:
        term.until(lambda seen: "ready" in seen, "the start")
        os.kill(term.pid, signal.SIGINT)
        assert term.wait() == 0
    assert "in all 1" in term.seen


def test_ctrl_z_stops_the_job_and_it_goes_on_when_it_is_continued(node: str) -> None:
    script = "import time\nprint('ready', flush=True)\nfor n in range(20): time.sleep(0.1)\nprint('done', flush=True)"
    with terminal("--backend", node, sys.executable, "-c", script) as term:
        term.until(lambda seen: "ready" in seen and "\x1b[7m" in seen, "the start and the line")
        term.press("\x1a")
        term.stopped()
        assert term.seen.rindex("\x1b[r") > term.seen.rindex("\x1b[7m"), "the terminal is whole while it is stopped"
        before = term.seen
        os.killpg(term.pid, signal.SIGCONT)
        assert term.wait() == 0
    assert "done" in term.seen.removeprefix(before)
    assert "[GPU 0] NVIDIA H200" in term.seen


def test_a_line_at_the_foot_says_what_the_gpus_do_and_is_gone_in_the_end(node: str) -> None:
    with terminal("--backend", node, "sh", "-c", "sleep 2.5; echo out") as term:
        assert term.wait() == 0
    shown = re.findall(r"\x1b\[20;1H\x1b\[2K\x1b\[7m(.*?)\x1b\[0m", term.seen)
    assert len(shown) >= 2
    assert re.fullmatch(r" 0:0\d  5 devices: \d+ % busy \(\d+ to \d+\) \d+ W .* J", shown[-1])
    assert term.seen.count("\x1b[1;19r") == 1
    end = term.seen.index("\x1b[r\x1b[20;1H\x1b[2K")
    assert "\x1b" not in term.seen[end:].split("\x1b8", 1)[1], "what follows is plain text"
    assert "[GPU 0] NVIDIA H200" in plain(term.seen)


@pytest.mark.parametrize(("options", "kind"), [(["--no-live"], "xterm"), ([], "dumb")])
def test_without_a_line_nothing_moves_the_cursor(options: list[str], kind: str, node: str) -> None:
    with terminal("--backend", node, *options, "sleep", "1", term=kind) as term:
        assert term.wait() == 0
    assert "\x1b" not in term.seen
