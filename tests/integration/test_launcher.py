"""The exporter's processes, forked by a launcher, as they live and die on a real system."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from benchmarks.exporter_children import memory, tree
from support.exporter import series
from support.nvml_stub.build import SONAME, CannotBuildError, build
from support.programs import Exporter, exporter, until

from gpu_profile_exporter.reader.launcher import Launcher
from gpu_profile_exporter.reader.launcher_process import LAUNCHER_NAME
from gpu_profile_exporter.reader.process import ReaderProcess
from gpu_profile_exporter.reader.settings import COUNTER, LISTENER, ReaderSettings

NAMES = {LAUNCHER_NAME, "gpu-reader", "gpu-listener"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("stub"))
    except CannotBuildError as error:
        pytest.skip(str(error))


@pytest.fixture
def running(library: Path) -> Iterator[Exporter]:
    """An exporter that reads and listens; it counts too, unless this machine's kernel lists its GPUs."""
    with exporter("--driver", "nvml", LD_LIBRARY_PATH=os.fspath(library.parent), NVML_STUB_GPUS="2") as found:
        until(lambda: children(found).keys() >= NAMES, "they run")
        yield found


def children(running: Exporter) -> dict[str, int]:
    """Pids of its processes by their names. What has just been forked has the launcher's, which is older."""
    found = {}
    for pid in sorted(tree(running.process.pid)[1:], reverse=True):
        with suppress(OSError):
            found[Path(f"/proc/{pid}/comm").read_text().strip()] = pid
    return {name: pid for name, pid in found.items() if not gone([pid])}


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def gone(pids: list[int]) -> bool:
    return all(state(pid) in ("gone", "Z") for pid in pids)


def up(running: Exporter) -> int:
    found = series(running.get("/metrics")[2].decode())
    return sum(value == 1 for name, value in found.items() if name.startswith("gpu_profile_device_up"))


@pytest.mark.parametrize("first", ["the launcher", "nobody"])
def test_when_the_exporter_is_killed_none_of_its_processes_is_left(running: Exporter, first: str) -> None:
    processes = children(running)
    if first == "the launcher":
        os.kill(processes[LAUNCHER_NAME], signal.SIGKILL)
        until(lambda: gone([processes[LAUNCHER_NAME]]), "the launcher has ended")
    pids = list((processes | children(running)).values())
    # What hangs cannot look for the exporter.
    for pid in pids:
        with suppress(ProcessLookupError):  # the one that is forked between the launcher and a reader
            os.kill(pid, signal.SIGSTOP)
    running.process.kill()
    until(lambda: gone(pids), "all have ended")


def test_when_the_exporter_ends_none_of_its_processes_is_left(running: Exporter) -> None:
    pids = list(children(running).values())
    assert running.end()[0] == 0
    until(lambda: gone(pids), "all have ended")


def test_the_launcher_s_death_disturbs_no_reader_and_the_next_has_another(running: Exporter) -> None:
    before = children(running)
    os.kill(before[LAUNCHER_NAME], signal.SIGKILL)
    until(lambda: gone([before[LAUNCHER_NAME]]), "the launcher has ended")
    os.kill(before["gpu-listener"], signal.SIGKILL)
    until(lambda: children(running).get("gpu-listener", before["gpu-listener"]) != before["gpu-listener"], "a listener")
    after = children(running)
    assert after["gpu-reader"] == before["gpu-reader"]
    assert after[LAUNCHER_NAME] != before[LAUNCHER_NAME]
    os.kill(after["gpu-reader"], signal.SIGKILL)
    until(lambda: children(running).get("gpu-reader", after["gpu-reader"]) != after["gpu-reader"], "another reader")
    until(lambda: up(running) == 2, "GPUs are read")


def test_the_launcher_has_no_driver_loaded_and_no_gpu_open(running: Exporter) -> None:
    until(lambda: up(running) == 2, "GPUs are read")
    processes = children(running)
    loaded = {name: SONAME in Path(f"/proc/{pid}/maps").read_text() for name, pid in processes.items()}
    assert loaded.pop(LAUNCHER_NAME) is False
    assert set(loaded.values()) == {True}
    files = [str(file.readlink()) for file in Path(f"/proc/{processes[LAUNCHER_NAME]}/fd").iterdir()]
    assert not [file for file in files if "nvidia" in file]
    assert sum(file.startswith("socket:") for file in files) == 1


def test_three_processes_take_little_more_memory_than_one(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", os.fspath(library.parent))
    launcher = Launcher()
    processes: list[ReaderProcess] = []
    try:

        def anonymous(*others: int | None) -> float:
            for other in others:
                settings = ReaderSettings("nvml", 0.1, ("core",), False, -1, -1, -1, other=other)
                processes.append(process := ReaderProcess(settings, launcher))
                until(lambda process=process: any(process.messages()) and process.exit_code is None, "it reads")
            pids = [launcher.pid, *(process.pid for process in processes)]
            return memory(pid for pid in pids if pid is not None).anonymous

        one = anonymous(None)
        three = anonymous(LISTENER, COUNTER)
        assert three <= 1.6 * one
    finally:
        for process in processes:
            process.kill()
        launcher.close()
        for process in processes:
            process.wait(30)
            process.close()


@pytest.mark.parametrize(("level", "wanted"), [("warning", True), ("error", False)])
def test_what_readers_log_has_the_exporters_format_and_level(
    library: Path, tmp_path: Path, level: str, wanted: bool
) -> None:
    control = tmp_path / "faults"
    control.write_text("error * nvmlDeviceGetTemperature 999\n")
    env = {"LD_LIBRARY_PATH": os.fspath(library.parent), "NVML_STUB_GPUS": "2", "NVML_STUB_CONTROL": os.fspath(control)}
    with exporter("--driver", "nvml", "--log-format", "json", "--log-level", level, **env) as running:
        until(lambda: "hw_power" in running.get("/metrics")[2].decode(), "it reads")
        running.process.terminate()
        said = running.process.communicate(timeout=20)[1]
    lines = [json.loads(line) for line in said.splitlines()]
    told = [line for line in lines if "nvmlDeviceGetTemperature" in line["message"]]
    assert bool(told) == wanted
    assert all(line["level"] == "warning" and line["time"] for line in told)
