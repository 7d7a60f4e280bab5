import os
import re
import signal
import threading
from importlib import metadata
from pathlib import Path

import pytest
from support.programs import python

from gpu_profile.cli import run
from gpu_profile.cli.ending import end_signals
from gpu_profile.cli.watch import DeviceWatch
from gpu_profile.driver import simulated
from gpu_profile.recording import read_recording

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def node(tmp_path: Path) -> str:
    return f"simulated:{simulated.create(tmp_path / 'node')}"


def one_line(capsys: Capture) -> str:
    """The one line on standard error, where nothing else was said."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gpu-profile: ")
    assert err.count("\n") == 1
    return err.removeprefix("gpu-profile: ").rstrip("\n")


def test_without_arguments_it_says_what_it_can_do(capsys: Capture) -> None:
    assert run([]) == 0
    assert re.search(r"^  record +Record every GPU", capsys.readouterr().out, re.MULTILINE)


def test_the_list_of_commands_has_a_whole_sentence_for_each(capsys: Capture) -> None:
    assert run(["--help"]) == 0
    rows = capsys.readouterr().out.partition("Commands:")[2].splitlines()
    assert len(rows) > 10
    assert [row for row in rows if row.endswith("...") or (row and not row.endswith("."))] == []


def test_ctrl_c_while_the_command_loads_prints_nothing() -> None:
    code = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "gpu_profile.cli.doctor":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["gpu-profile", "--version"]
from gpu_profile.cli import main
main()
"""
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_help_and_version_are_no_errors(capsys: Capture) -> None:
    assert run(["-h"]) == 0
    assert run(["record", "--help"]) == 0
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.endswith(f"gpu-profile {metadata.version('gpu-profile')}\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--bogus"], "No such option '--bogus'"),
        (["record"], "Missing argument 'DIRECTORY'"),
        (["record", "{dir}", "--interval", "0"], "'--interval': 0.0 is not in the range x>=0.001"),
        (["record", "{dir}", "--seconds", "soon"], "'soon' is not a valid float"),
        (["record", "{dir}", "--seconds", "-1"], "'--seconds'"),
        (
            ["record", "{dir}", "--collect", "nvlnk"],
            "--collect: unknown group 'nvlnk'; one of core, core-detail, media,",
        ),
        (["record", "{dir}", "--driver", "simulatd"], "unknown driver 'simulatd'"),
        (["record", "{dir}", "--driver", "simulatd"], "did you mean 'simulated'?"),
        (["record", "{dir}", "--driver", "none"], "driver 'none' has no device"),
        (["record", "{dir}", "--driver", "none", "--device", "GPU-1"], "driver 'none' has no device"),
        (["record", "{dir}", "--driver", "replay:{dir}/missing"], "{dir}/missing: not a recording"),
        (["record", "{dir}", "--driver", "simulated:{dir}/missing"], "missing"),
        (["record", "{dir}/file", "--driver", "simulated"], "'{dir}/file' is a file"),
        (["record", "{dir}/file/new", "--driver", "simulated"], "cannot be created: Not a directory"),
    ],
)
def test_a_slip_of_the_users_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file").touch()
    assert run([argument.format(dir=tmp_path) for argument in arguments]) == 2
    assert says.format(dir=tmp_path) in one_line(capsys)


@pytest.mark.parametrize("words", [["run", "--device", "gpu0", "--", "touch"], ["record", "--device", "gpu0"]])
def test_a_word_that_names_no_device_starts_nothing(words: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert run([*words, str(tmp_path / "made")]) == 2
    assert one_line(capsys).startswith("device 'gpu0': not a device; write a number of CUDA's")
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_there_is_told_with_those_that_are(node: str, tmp_path: Path, capsys: Capture) -> None:
    uuids = simulated.Truth(node.partition(":")[2]).uuids
    directory = tmp_path / "recording"
    assert run(["record", str(directory), "--driver", node, "--device", uuids[0], "--device", "GPU-1"]) == 2
    assert one_line(capsys) == f"device 'GPU-1': no device has this UUID; there are {uuids[0]}, {uuids[1]} and 3 more"
    assert not directory.exists()


def test_a_missing_driver_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["record", str(tmp_path), "--driver", "smi"]) == 1
    assert one_line(capsys).startswith("nvidia-smi not found on PATH: ")


def test_the_environment_names_the_driver_where_the_command_line_does_not(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PROFILE_BACKEND", "none")
    assert run(["record", str(tmp_path)]) == 2
    assert "driver 'none'" in one_line(capsys)


@pytest.mark.parametrize("where", ["start", "_open"], ids=["in the command", "in the watch's own thread"])
def test_a_defect_is_one_line_and_exit_code_1(
    where: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a defect\nof ours")

    monkeypatch.setattr(DeviceWatch, where, fail)
    assert run(["record", str(tmp_path)]) == 1
    assert one_line(capsys) == r"unexpected KeyError: 'a defect\nof ours'"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_hangs_while_it_is_opened_does_not_keep_record_from_ending(
    number: int, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hang(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)
        release.wait(60)

    monkeypatch.setattr(DeviceWatch, "_open", hang)
    assert run(["record", str(tmp_path / "new")]) == 128 + number
    assert one_line(capsys) == "nothing was recorded: the driver has not answered yet"
    release.set()


def test_record_keeps_what_the_devices_do_and_says_how_much(node: str, tmp_path: Path, capsys: Capture) -> None:
    directory = tmp_path / "recordings" / "new"
    uuid = simulated.Truth(node.partition(":")[2]).uuids[1]
    before = signal.getsignal(signal.SIGINT)
    assert run(["record", str(directory), "--driver", node, "--seconds", "0.3", "--device", uuid]) == 0
    first, last = capsys.readouterr().err.splitlines()
    assert first == f"recording 1 devices through {node} into {directory}"
    found = read_recording(directory)
    assert found.problems == ()
    assert [device.uuid for device in found.devices] == [uuid]
    samples = sum(len(column.value) for columns in found.samples.values() for column in columns.values())
    (path,) = directory.iterdir()
    assert last.startswith(f"{samples:,} samples in 0.")
    place, _, size = last.partition(" holds ")
    assert place.endswith(str(directory))
    assert float(size.removesuffix(" kB")) == pytest.approx(path.stat().st_size / 1000, abs=0.0051)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_command_is_told_every_signal_that_asks_it_to_end() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with end_signals() as ended:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert ended == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_command_under_nohup_stays_deaf_to_a_terminal_that_closes() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with end_signals() as ended:
            os.kill(os.getpid(), signal.SIGHUP)
            assert ended == []
    finally:
        signal.signal(signal.SIGHUP, before)
