"""`gpu-profile record` as its users run it: a process of its own that is ended in every way there is."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from integration.conftest import NODE
from support.exporter import series
from support.programs import environment, exporter, ran, until

from gpu_profile.driver import simulated
from gpu_profile.recording import Recording, read_recording


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "gpu_profile.cli", "record", *map(str, arguments)]


@contextmanager
def recording(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A running `gpu-profile record` that has said that it records."""
    process = subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True, env=environment())
    try:
        assert process.stderr is not None
        # On a busy machine it says first that it waits for the driver.
        said = [process.stderr.readline()]
        while said[-1].startswith("waiting for the driver "):
            said.append(process.stderr.readline())
        assert said[-1].startswith("recording "), said
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def grown(directory: Path, times: int) -> None:
    """Wait until the recording has been written to so many times."""
    for _ in range(times):
        before = size(directory)
        until(lambda: size(directory) > before, "the recording grows")  # noqa: B023 - called at once


def samples(found: Recording) -> int:
    return sum(len(column.value) for columns in found.samples.values() for column in columns.values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_a_summary_and_a_whole_recording(number: int, node: str, tmp_path: Path) -> None:
    directory = tmp_path / "recording"
    with recording(directory, "--driver", node) as process:
        grown(directory, 1)
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 0
    found = read_recording(directory)
    assert (found.problems, found.lost_bytes) == ((), 0)
    assert [device.name for device in found.devices] == ["NVIDIA H200", "NVIDIA A10G"]
    assert re.fullmatch(rf"{samples(found):,} samples in \d+\.\d s; {directory} holds [\d.]+ kB\n", err)


def test_kill_9_leaves_a_recording_that_can_be_read(node: str, tmp_path: Path) -> None:
    directory = tmp_path / "recording"
    with recording(directory, "--driver", node, "--interval", "0.02") as process:
        grown(directory, 2)
        process.kill()
        process.wait(20)
    found = read_recording(directory)
    assert found.lost_bytes == 0
    (problem,) = found.problems
    assert "ended without handing in the last regions and samples" in problem
    for device in found.devices:
        times = found.samples[device.uuid]["power"].t_end
        assert times[-1] - times[0] >= 0.5e9


def test_a_driver_that_hangs_does_not_keep_it_from_ending(tmp_path: Path) -> None:
    hang = '[[fault]]\nkind = "hang"\ndevice = 1\nfrom_s = 4\nhang_s = 600\n'
    node = simulated.create(tmp_path / "node", f"{NODE}\n{hang}")
    directory = tmp_path / "recording"
    with recording(directory, "--driver", f"simulated:{node}", "--seconds", "6") as process:
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0
    assert " samples in " in err
    assert read_recording(directory).problems == ()


def test_a_full_disk_ends_it_with_one_line_and_what_was_written_can_be_read(node: str, tmp_path: Path) -> None:
    directory = tmp_path / "recording"
    arguments = command(directory, "--driver", node, "--interval", "0.01", "--seconds", "60")
    done = ran(["sh", "-c", 'ulimit -f 8 && exec "$@"', "sh", *arguments])
    (path,) = directory.iterdir()
    assert done.returncode == 2
    # On a busy machine it says first that it waits for the driver.
    said = [line for line in done.stderr.splitlines() if not line.startswith("waiting for the driver ")]
    assert said[1:] == [f"gpu-profile: {path}: cannot be written: File too large"]
    assert samples(read_recording(directory)) > 0


def test_the_exporter_serves_again_what_was_recorded(node: str, tmp_path: Path) -> None:
    directory = tmp_path / "recording"
    done = ran(command(directory, "--driver", node, "--seconds", "3"))
    assert done.returncode == 0, done.stderr
    uuids = [device.uuid for device in read_recording(directory).devices]
    with exporter("--driver", f"replay:{directory}") as running:
        assert f": 2 devices through replay:{directory} (SIMULATED) on " in running.first_line
        names = [device["name"] for device in json.loads(running.get("/api/devices")[2])["devices"]]
        assert names == ["NVIDIA H200", "NVIDIA A10G"]
        busy = f'gpu_profile_busy_seconds_total{{hw_id="{uuids[0]}"}}'
        found = until(lambda: (s := series(running.get("/metrics")[2].decode())).get(busy, 0) > 0.5 and s, "busy time")
        for uuid in uuids:
            assert found[f'gpu_profile_device_up{{hw_id="{uuid}"}}'] == 1
            assert any(name.startswith("hw_power_watts{") and uuid in name for name in found)
            assert any(name.startswith("hw_energy_joules_total{") and uuid in name for name in found)
        assert running.end()[0] == 0
