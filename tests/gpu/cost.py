"""Stage *cost*: what measuring costs the code that is measured, by turns, with intervals."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Final

from gpu.parts import Figures, Kit, Part, quantiles
from gpu.sensors import children, load

#: In each of so many rounds every variant has a turn. It settles for a while first: its sampler and the join make up
#: for the time in which they were stopped, which took several times as long as the turn.
_ROUNDS, _SETTLING_S, _TURN_S = 3, 0.8, 1.2
#: Student's 97.5 % quantile for so many rounds.
_STUDENT: Final = 4.303


def _compared(took: Mapping[str, list[dict[str, Any]]], base: str) -> dict[str, Any]:
    """For each variant: what a call takes, what that is over `base` in %, with the half-width of its 95 % interval, and
    what each thread takes of a core."""
    found = {}
    for name, own in took.items():
        ratios = [100 * (a["us"] / b["us"] - 1) for a, b in zip(own, took[base], strict=True)]
        half = _STUDENT * stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else None
        threads = {thread for turn in own for thread in turn["cores"]}
        found[name] = {
            "us": round(mean(turn["us"] for turn in own), 2),
            "median_us": round(mean(turn["median_us"] for turn in own), 2),
            "over_%": round(mean(ratios), 2),
            "half_width_%": None if half is None else round(half, 2),
            "cores": {t: round(mean(turn["cores"].get(t, 0.0) for turn in own), 4) for t in sorted(threads)},
        }
    return found


def regions(kit: Kit) -> Figures:
    """A region around one launch and around 2 ms of products: without, bare, as a span."""
    return _in_turns(kit, "regions", ("off", "region", "span"))


def sampling(kit: Kit) -> Figures:
    """A training loop and a loop of small kernels: without, sampled at 20 Hz, and with kernel windows."""
    return _in_turns(kit, "sampling", ("off", "20 Hz", "windows"))


def _in_turns(kit: Kit, what: str, variants: tuple[str, ...]) -> Figures:
    """Each variant is a process of its own, as a session is the process's. Those whose turn it is not are stopped, so
    that their samplers call nothing."""
    kit.torch()
    lengths = [str(kit.seconds(each, 0.05)) for each in (_SETTLING_S, _TURN_S)]
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-m", "gpu.turns", what, name, *lengths, kit.backend],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in variants
    }
    took: dict[str, dict[str, list[dict[str, Any]]]] = {}
    try:
        loops: list[str] = []
        for process in processes.values():
            loops = json.loads(_line(process))
            process.send_signal(signal.SIGSTOP)
        for n in range(_ROUNDS):
            order = list(processes.items())
            for loop in loops:
                for name, process in order[n % len(order) :] + order[: n % len(order)]:
                    assert process.stdin is not None
                    process.send_signal(signal.SIGCONT)
                    process.stdin.write(f"{loop}\n")
                    process.stdin.flush()
                    answer = json.loads(_line(process))
                    process.send_signal(signal.SIGSTOP)
                    took.setdefault(loop, {}).setdefault(name, []).append(answer)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    return {loop: _compared(own, variants[0]) for loop, own in took.items()}


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a process of a variant has ended")
    return line


def exporter(kit: Kit) -> Figures:
    """The exporter's processor time at 10 Hz beside nvitop-exporter's, if that is installed, the GPU idle and busy."""
    commands = {"gpu-profile-exporter": ["-m", "gpu_profile_exporter", "--driver", kit.backend]}
    ours = commands["gpu-profile-exporter"]
    # Its files have the GPU's UUID in them, and stay out of what is kept.
    timeline = tempfile.TemporaryDirectory()
    commands["gpu-profile-exporter, timeline"] = [*ours, "--timeline", timeline.name]
    if util.find_spec("nvitop_exporter") and not kit.simulated:
        # The least that it takes.
        commands["nvitop-exporter, 4 Hz"] = ["-m", "nvitop_exporter", "--interval", "0.25"]
        commands["gpu-profile-exporter, 4 Hz"] = [*ours, "--interval", "0.25"]
    found = {}
    for name, command in commands.items():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        where = ["--port", str(port)] if name.startswith("nvitop") else ["--listen", f"127.0.0.1:{port}"]
        with subprocess.Popen(
            [sys.executable, *command, *where], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                found[name] = _watched(process, port, kit)
            except RuntimeError as error:
                found[name] = {"reason": str(error)}
            finally:
                process.kill()
                for child in children(process.pid):
                    subprocess.run(["kill", "-9", str(child)], check=False)
    timeline.cleanup()
    return found


def _watched(process: subprocess.Popen[bytes], port: int, kit: Kit) -> dict[str, Any]:
    scrapes: list[float] = []

    def scrape() -> None:
        before = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            answer.read()
        scrapes.append((time.perf_counter() - before) * 1e3)

    end = time.monotonic() + 20
    while True:
        try:
            scrape()
            break
        except OSError as error:
            if time.monotonic() > end or process.poll() is not None:
                raise RuntimeError(f"it does not answer: {error}") from error
            time.sleep(0.2)
    time.sleep(kit.seconds(1.5))

    def cores() -> float:
        before, began = _cpu_s(process.pid), time.monotonic()
        for _ in range(4):
            time.sleep(kit.seconds(0.8))
            scrape()
        return round((_cpu_s(process.pid) - before) / (time.monotonic() - began), 4)

    idle = cores()
    with load(kit):
        busy = cores()
    return {
        "cores_idle": idle,
        "cores_busy": busy,
        "pss_mib": _pss_mib(process.pid),
        "scrape_ms": quantiles(scrapes, 2),
    }


def _cpu_s(pid: int) -> float:
    """Of a process and its children, those that have ended included."""
    ticks = 0
    for each in [pid, *children(pid)]:
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / 100


def _pss_mib(pid: int) -> float:
    total = 0
    for each in [pid, *children(pid)]:
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return round(total / 1024, 1)


PARTS: Final = {
    "regions": Part("a region, and a span, around launches", 90, regions),
    "sampling": Part("a session's sampler, and windows of kernels", 90, sampling),
    "exporter": Part("the exporter's processor time, idle and busy", 90, exporter),
}
