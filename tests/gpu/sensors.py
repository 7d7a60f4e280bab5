"""Stage *sensors*: which signals the GPU has, what reading them costs, and how they answer to a known load."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final
from unittest import mock

from gpu.parts import Figures, Kit, Part, Skip, apart, program, quantiles
from support.nvml_interface import functions

_PACKAGES: Final = (
    "torch",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "numpy",
    "nvidia-ml-py",
    "opentelemetry-sdk",
    "cupti-python",
    "nvidia-cuda-cupti",
    "nvidia-cuda-cupti-cu12",
    "nvitop",
    "nvitop-exporter",
)
#: A user without rights of his own.
_NOBODY: Final = 65534


def machine(kit: Kit) -> Figures:
    """Versions, and what `doctor` finds."""
    driver, device = kit.driver()
    try:
        found = {
            "device": device.name,
            "memory_mib": (device.memory_bytes or 0) >> 20,
            "vbios": device.vbios_version,
            "compute_capability": device.compute_capability,
            "driver": driver.version,
        }
    finally:
        driver.close()
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    done = subprocess.run(
        [sys.executable, "-m", "gpu_profile.cli", "doctor", "--json", "--backend", kit.backend],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        **found,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "packages": packages,
        "doctor": json.loads(done.stdout)["findings"],
    }


def signals(kit: Kit) -> Figures:
    """Every signal of the catalogue, idle and busy: its values, how often they changed, and the time of each call."""
    from gpu_profile.catalogue import Kind

    with _timed_calls() as calls:
        driver, device = kit.driver(everything=True)
        try:
            idle = _sampled(driver, device, kit.seconds(5))
            idle_calls = {name: quantiles(took) for name, took in calls.items() if took}
            calls.clear()
            with load(kit):
                time.sleep(kit.seconds(1))
                busy = _sampled(driver, device, kit.seconds(5))
            busy_calls = {name: quantiles(took) for name, took in calls.items() if took}
            capabilities = driver.capabilities(device)
        finally:
            driver.close()
    rows, beyond = {}, []
    for signal, capability in capabilities.items():
        row: dict[str, Any] = {"unit": signal.unit, "available": capability.available}
        if capability.reason:
            row["reason"] = capability.reason
        for when, samples in (("idle", idle), ("busy", busy)):
            values = [each.value for each in samples if each.signal is signal]
            if not values:
                continue
            changes = sum(a != b for a, b in pairwise(values))
            row[when] = [round(x * signal.quantum, 6) for x in (min(values), median(values), max(values))]
            row[f"{when}_changes"] = changes
            if signal.kind is not Kind.COUNTER and not all(signal.lowest <= x <= signal.limit for x in values):
                beyond.append(signal.key)
        rows[signal.key] = row
    return {
        "signals": rows,
        "beyond_their_limits": sorted(set(beyond)),
        "available_without_a_sample": [k for k, row in rows.items() if row["available"] and "busy" not in row],
        "call_us_idle": idle_calls,
        "call_us_busy": busy_calls,
        "errors": {str(key): n for key, n in getattr(driver, "errors", {}).items()},
    }


@contextmanager
def _timed_calls() -> Iterator[dict[str, list[float]]]:
    """Each C function of NVML that is called meanwhile, with the microseconds of its calls."""
    import pynvml

    took: dict[str, list[float]] = defaultdict(list)
    resolve = pynvml._nvmlGetFunctionPointer

    def timed(name: str) -> Callable[..., Any]:
        function = resolve(name)

        def call(*arguments: Any) -> Any:
            before = time.perf_counter_ns()
            try:
                return function(*arguments)
            finally:
                took[name].append((time.perf_counter_ns() - before) / 1e3)

        return call

    pynvml._nvmlGetFunctionPointer = timed
    try:
        yield took
    finally:
        pynvml._nvmlGetFunctionPointer = resolve


def _sampled(driver: Any, device: Any, seconds: float) -> list[Any]:
    from gpu_profile.catalogue import Tier

    # What the driver has kept is of the time before.
    driver.drain(device)
    driver.boundary(device)
    samples: list[Any] = []
    end, n = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        samples += driver.read(device, Tier.FAST)
        if n % 3 == 0:
            samples += driver.boundary(device)
        if n % 10 == 0:
            samples += driver.drain(device)
            samples += driver.read(device, Tier.SLOW)
        if n % 40 == 0:
            samples += driver.read(device, Tier.RARE)
            driver.processes(device)
            driver.events()
        n += 1
        time.sleep(0.05)
    return [*samples, *driver.drain(device)]


@contextmanager
def load(kit: Kit) -> Iterator[None]:
    """The GPU is busy meanwhile, by a process of its own; without one that can be, it stays idle."""
    command = [sys.executable, "-m", "gpu.programs", kit.backend]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise Skip("nothing here can keep the GPU busy")
            yield
        finally:
            process.kill()


def seen_by(backend: str, user: int) -> Figures:
    """What a user may read: root is 0. Everything was read once before, so that no file of Python's is refused."""
    from gpu_profile.catalogue import ALL_GROUPS
    from gpu_profile.catalogue.samples import DeviceKind
    from gpu_profile.driver.grammar import open_driver

    driver = open_driver(backend, groups=ALL_GROUPS)
    device = driver.devices()[0]
    driver.capabilities(device)
    driver.close()
    if user:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    driver = open_driver(backend, groups=ALL_GROUPS)
    absent = {signal.key: each.reason for signal, each in driver.capabilities(device).items() if not each.available}
    driver.events()
    gpus = {each.uuid for each in driver.devices() if each.kind is DeviceKind.GPU}
    return {
        "absent": absent,
        "xid_events": getattr(driver, "watched", frozenset()) >= gpus,
        "processes_seen": len(driver.processes(device)),
        "errors": dict(getattr(driver, "errors", {})),
    }


def plain_user(kit: Kit) -> Figures:
    """What a user without rights is refused that root is not, while a process of root's keeps the GPU busy."""
    if os.getuid() != 0:
        raise Skip("this already runs as a plain user")
    with load(kit):
        own, plain = apart(seen_by, kit.backend, 0), apart(seen_by, kit.backend, _NOBODY)
    keys = ("xid_events", "processes_seen", "errors")
    return {
        "refused": {key: why for key, why in plain["absent"].items() if key not in own["absent"]},
        "root": {key: own[key] for key in keys},
        "plain": {key: plain[key] for key in keys},
    }


def release(kit: Kit) -> Figures:
    """What of the driver the exporter holds, before and after it is told to let go."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "gpu_profile_exporter", "--driver", kit.backend, "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as exporter:
        try:
            if not _until(lambda: "\nhw_" in _scraped(port), kit.seconds(20, 8)):
                raise RuntimeError("the exporter shows no GPU")
            before = _held(exporter.pid)
            began = time.monotonic()
            said = program("-m", "gpu_profile_exporter", "release", "--for", "5s", "--port", str(port)).strip()
            took = time.monotonic() - began
            during = _held(exporter.pid)
            _until(lambda: _held(exporter.pid) == before, 15)
            return {
                "held": before,
                "held_when_released": during,
                "said": said,
                "took_s": round(took, 2),
                "taken_up_again": _held(exporter.pid) == before,
            }
        finally:
            exporter.terminate()


def _scraped(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.2)
    return holds()


def _held(pid: int) -> dict[str, int]:
    """The driver's files and libraries that a process and its children have open, with how often."""
    held: dict[str, int] = defaultdict(int)
    for each in [pid, *children(pid)]:
        for link in Path(f"/proc/{each}/fd").glob("*"):
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("/dev/nvidia"):
                held[target] += 1
        try:
            maps = Path(f"/proc/{each}/maps").read_text()
        except OSError:
            continue
        held["libnvidia-ml mapped"] += bool(re.search(r"libnvidia-ml\.so", maps))
    return {key: n for key, n in held.items() if n}


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            own = [int(word) for word in task.read_text().split()]
        except OSError:
            continue
        for child in own:
            found += [child, *children(child)]
    return found


def calibrate(kit: Kit) -> Figures:
    """What `gpu-profile calibrate` finds, and the polls that it found it in."""
    import numpy as np

    from gpu_profile.calibration import calibrate as calibration
    from gpu_profile.calibration.playing import Played, Player
    from gpu_profile.cli.calibrate import _lines, _worker
    from gpu_profile.clock import SYSTEM_CLOCK

    played: list[Played] = []

    class Kept(Player):
        def play(self, *arguments: Any, **options: Any) -> Played:
            played.append(super().play(*arguments, **options))
            if played[-1].load.kinds:
                np.savez_compressed(kit.out / f"played{len(played) - 1}.npz", **_columns(played[-1]))
            return played[-1]

    driver, device = kit.driver()
    began = time.monotonic()
    try:
        worker = _worker(driver, device, driver.devices())
        with mock.patch.object(calibration, "Player", Kept):
            found = calibration.calibrate(
                driver, device, worker, SYSTEM_CLOCK, say=lambda line: print(line, flush=True)
            )
    finally:
        driver.close()
    return {"took_s": round(time.monotonic() - began, 1), "found": found.to_json(), "text": _lines(found)}


def _columns(played: Any) -> dict[str, Any]:
    """Load and samples as arrays: times in ns from the start, values in the catalogue's quanta."""
    import numpy as np

    load, start = played.load, played.start_ns
    arrays = {"load": np.array([load.starts - start, load.ends - start, load.levels]), "start_ns": np.array([start])}
    ways = {"read": [s for poll in played.read for s in poll], "drained": played.drained, "windows": played.windows}
    for way, samples in ways.items():
        by_key: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for sample in samples:
            by_key[sample.signal.key].append((sample.t_start_ns - start, sample.t_end_ns - start, sample.value))
        for key, rows in by_key.items():
            arrays[f"{way}.{key}"] = np.diff(np.array(rows, np.int64).T, axis=1, prepend=0)
    return arrays


def interface(kit: Kit) -> Figures:
    """The functions of NVML that are called here, and those that this driver's library does not have."""
    if kit.simulated:
        raise Skip("a simulated node has no NVML")
    library = ctypes.CDLL("libnvidia-ml.so.1")
    asked = functions()
    return {"functions": len(asked), "missing": sorted(name for name in asked if not hasattr(library, name))}


PARTS: Final = {
    "machine": Part("versions, and what doctor finds", 40, machine),
    "interface": Part("functions of NVML that are called, and those that there are not", 20, interface),
    "signals": Part("every signal idle and busy, and the time of each call", 60, signals),
    "plain_user": Part("what a user without rights is refused", 30, plain_user),
    "release": Part("what the exporter holds of the driver", 60, release),
    "calibrate": Part("how sensors answer to a known load", 200, calibrate),
}
