"""`gpu-profile -- COMMAND` as its users run it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.conftest import NODE
from integration.running import command, last_line, profile, start
from support.programs import environment, ran

from gpu_profile.driver import simulated

#: The keys that `--json` is known for.
KEYS = {
    "busy_time_est_s", "device", "duration_s", "interval_s", "mem_total_mb", "mem_used_max_mb", "n_samples", "name",
    "notes", "power_max_w", "power_mean_w", "sparkline", "temp_max_c", "util_gpu_max", "util_gpu_mean", "util_gpu_p50",
    "util_gpu_p95", "util_mem_mean", "coverage", "energy_j", "energy_source", "resolution_s",
}  # fmt: skip

#: Counts the signals that come, and ends with code 9 when a line is read from standard input or 20 s have passed.
COUNTS = """
import select, signal, sys
found = []
for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGINT"):
    signal.signal(getattr(signal, name), lambda number, _: found.append(signal.Signals(number).name))
print("ready", flush=True)
while len(found) < int(sys.argv[1]):
    select.select([], [], [], 0.02)
select.select([], [], [], 0.3)
print(*found, flush=True)
sys.exit(9)
"""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for temporary files, which must be empty in the end."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    yield directory
    assert list(directory.iterdir()) == []


# ---------------------------------------------------------------------- the command is left alone


def test_the_command_has_its_output_input_and_exit_code_and_the_summary_is_on_standard_error(
    node: str, kept: Path
) -> None:
    # On a busy machine, a driver that is opened beside the command may answer when a second has passed.
    done = profile("--backend", node, "--strict", "--", "sh", "-c", "cat; sleep 1; exit 3", stdin="in\n")
    assert (done.returncode, done.stdout) == (3, "in\n")
    lines = done.stderr.splitlines()
    assert lines[0] == "[GPU 0] NVIDIA H200"
    assert lines[1].startswith("  duration: 1.")
    assert lines[-1].startswith("[GPU 1] NVIDIA A10G: idle | power: mean ")
    assert "\x1b" not in done.stderr


def test_everything_after_the_command_and_after_two_dashes_is_the_commands(node: str) -> None:
    for words in (["echo", "--json", "x"], ["--", "echo", "--json", "--", "x"]):
        done = profile("--backend", node, *words)
        assert done.stdout == " ".join(words).removeprefix("-- ").removeprefix("echo ") + "\n"


def test_the_command_starts_with_the_signals_as_they_were_and_with_all_open_files(tmp_path: Path) -> None:
    # The first 28: 32 and 33 are the C library's own.
    show = ["sh", "-c", "sed -nE 's/^(Sig(Blk|Ign|Cgt):).*(.{7})$/\\1 \\3/p' /proc/self/status; cat <&5"]
    (tmp_path / "file").write_text("from descriptor 5\n")
    found = []
    for words in (show, command("--backend", "none", "--", *show)):
        script = f'exec 5<{tmp_path}/file; exec "$@"'
        done = ran(["sh", "-c", script, "sh", *words])
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found[0] == found[1]
    assert found[0].count("Sig") == 3
    assert found[0].endswith("from descriptor 5\n")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["false"], 1, ""),
        (["sh", "-c", "kill -KILL $$"], 137, "gpu-profile: the command was ended by SIGKILL"),
        (["sh", "-c", "kill -TERM $$"], 143, "gpu-profile: the command was ended by SIGTERM"),
        (["no-such-command"], 127, "gpu-profile: no-such-command: no such command on PATH"),
        (["kernles"], 127, "gpu-profile: kernles: no such command on PATH; did you mean the subcommand 'kernels'?"),
        (["./no-such-file"], 127, "gpu-profile: ./no-such-file: no such file"),
        (["/etc"], 126, "gpu-profile: /etc: cannot be run: Permission denied"),
        (["{dir}/odd"], 127, "gpu-profile: {dir}/odd: cannot be run: the interpreter in its first line does not exist"),
        (["{dir}/plain"], 5, ""),
    ],
)
def test_the_exit_code_is_what_a_shell_would_give(words: list[str], code: int, says: str, tmp_path: Path) -> None:
    for name, text in (("odd", "#!/no/such/interpreter\n"), ("plain", "exit 5\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    done = profile("--backend", "none", "--", *(word.format(dir=tmp_path) for word in words))
    assert done.returncode == code
    if says:
        assert done.stderr.splitlines()[-1] == says.format(dir=tmp_path)
    assert "Traceback" not in done.stderr


def test_a_grandchild_in_the_background_holds_nothing_up(node: str) -> None:
    script = "(sleep 30 >/dev/null 2>&1 & echo $!); exit 4"
    began = time.monotonic()
    done = profile("--backend", node, "--json", "sh", "-c", script)
    assert time.monotonic() - began < 20
    assert done.returncode == 4
    os.kill(int(done.stdout.splitlines()[0]), signal.SIGKILL)


def test_a_pipeline_whose_reader_goes_away_ends_as_it_would_without_us(node: str) -> None:
    script = f"{' '.join(command('--backend', node, 'yes'))} | head -1; echo ${{PIPESTATUS[0]}}"
    done = ran(["bash", "-c", script])
    assert done.stdout == f"y\n{128 + signal.SIGPIPE}\n"


# ---------------------------------------------------------------------- signals


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGINT"])
def test_a_signal_is_passed_on_once_and_the_command_decides_what_it_means(name: str, node: str) -> None:
    with start("--backend", node, "--strict", "--", sys.executable, "-c", COUNTS, "1") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(getattr(signal, name))
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (9, f"{name}\n")
    assert "[GPU 0] NVIDIA H200" in err


def test_an_interrupt_ends_it_with_130_and_a_summary(node: str) -> None:
    with start("--backend", node, "--json", "sh", "-c", "echo ready; exec sleep 60") as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert last_line(out)["exit_code"] == 130
    assert err == "gpu-profile: the command was ended by SIGINT\n"


def test_under_nohup_the_command_stays_deaf_to_a_terminal_that_closes(node: str) -> None:
    script = 'trap "" HUP; exec "$@"'
    words = command("--backend", node, "sh", "-c", "echo ready; sleep 1; echo alive")
    with subprocess.Popen(
        ["sh", "-c", script, "sh", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.send_signal(signal.SIGHUP)
        out, _ = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, "alive\n")


# ---------------------------------------------------------------------- results


def test_the_json_is_the_last_line_and_valid_with_the_known_keys_in_order(node: str) -> None:
    done = profile("--backend", node, "--strict", "--json", "--", "sh", "-c", "echo out; sleep 1; exit 2")
    first, *_ = done.stdout.splitlines()
    found = last_line(done.stdout)
    assert (first, done.stderr, done.returncode) == ("out", "", 2)
    assert list(found) == sorted(found)
    assert set(found) >= KEYS
    assert (found["device"], found["name"], found["interval_s"]) == (0, "NVIDIA H200", 0.2)
    assert 20 < found["util_gpu_mean"] < 80
    assert found["energy_j"] > 0
    assert [device["name"] for device in found["devices"]] == ["NVIDIA H200", "NVIDIA A10G"]
    assert {key: found["devices"][0][key] for key in KEYS} == {key: found[key] for key in KEYS}
    assert (found["exit_code"], found["command"][0], found["regions"], found["problems"]) == (2, "sh", [], [])


def test_what_was_not_measured_is_null() -> None:
    done = profile("--backend", "none", "--json", "true")
    found = last_line(done.stdout)
    assert set(found) >= KEYS
    assert found["util_gpu_mean"] is found["energy_j"] is found["name"] is None
    assert (found["devices"], found["coverage"], found["n_samples"]) == ([], 0.0, 0)
    assert found["notes"] == "no GPU was read: driver 'none' has no device"


def test_the_json_goes_to_a_file_or_a_descriptor_and_the_summary_stays(node: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    done = profile("--backend", node, "--json-file", str(path), "echo", "out")
    assert done.stdout == "out\n"
    # On a busy machine the command may end before the driver has answered, which the summary then says.
    assert done.stderr.startswith(("[GPU ", "gpu-profile: "))
    assert last_line(path.read_text())["exit_code"] == 0
    ours, theirs = os.pipe()
    words = command("--backend", node, "--json-file", f"fd:{theirs}", "echo", "out")
    with subprocess.Popen(
        words, pass_fds=[theirs], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment(), text=True
    ) as running:
        os.close(theirs)
        with os.fdopen(ours) as pipe:
            text = pipe.read()
        out, _ = running.communicate(timeout=60)
    assert out == "out\n"
    assert last_line(text)["exit_code"] == 0


def test_a_page_and_a_trace_are_written(node: str, tmp_path: Path) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "run.perfetto"
    done = profile("--backend", node, "--report", str(page), "--trace", str(trace), "sleep", "1.5")
    assert (done.returncode, "gpu-profile:" in done.stderr) == (0, False), done.stderr
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "<title>sleep 1.5: gpu-profile</title>" in text
    assert len(trace.read_bytes()) > 1000


@pytest.mark.parametrize("option", ["--report", "--trace", "--json-file"])
def test_a_place_that_cannot_be_written_is_found_before_the_command_starts(option: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = profile("--backend", "none", option, str(tmp_path / "file" / "x"), "touch", str(tmp_path / "ran"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gpu-profile: {tmp_path}/file/x: cannot be written: Not a directory\n"
    assert not (tmp_path / "ran").exists()


def test_a_disk_that_is_full_in_the_end_is_a_line_and_the_exit_code_stays(node: str) -> None:
    done = profile(
        "--backend", node, "--json-file", "/dev/full", "--report", "/dev/full", "sh", "-c", "sleep 1; exit 6"
    )
    assert done.returncode == 6
    assert done.stderr.splitlines()[-2:] == ["gpu-profile: /dev/full: cannot be written: No space left on device"] * 2
    assert "[GPU 0]" in done.stderr


def test_standard_output_that_is_closed_or_full_changes_no_exit_code(node: str) -> None:
    for redirect, option, code in ((">&-", "--no-live", 6), (">/dev/full", "--json", 6), ("| true", "--json", 0)):
        script = f"{' '.join(command('--backend', node, option))} sh -c 'exit 6' {redirect}"
        done = ran(["sh", "-c", script])
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr


# ---------------------------------------------------------------------- devices and drivers


def test_a_driver_that_hangs_delays_neither_start_nor_end(tmp_path: Path) -> None:
    text = '[[device]]\nmodel = "A10G"\n[[fault]]\nkind = "hang"\ndevice = 0\nfrom_s = 0\nhang_s = 600\n'
    node = simulated.create(tmp_path / "node", text)
    began = time.monotonic()
    done = profile("--backend", f"simulated:{node}", "sh", "-c", "echo started; exit 3")
    assert time.monotonic() - began < 20
    assert (done.returncode, done.stdout) == (3, "started\n")
    assert done.stderr.endswith("; no GPU was read: the command ended before the driver had answered\n")


def test_without_a_driver_the_command_runs_and_with_strict_it_does_not_start(tmp_path: Path) -> None:
    words = ["--backend", "smi", "sh", "-c", f"echo started >> {tmp_path}/ran; sleep 0.5"]
    env = {"PATH": "/usr/bin:/bin"}
    done = profile(*words, **env)
    assert done.returncode == 0
    assert "no GPU was read: nvidia-smi not found on PATH" in done.stderr
    done = profile("--strict", *words, **env)
    assert done.returncode == 1
    assert done.stderr.startswith("gpu-profile: nvidia-smi not found on PATH")
    assert (tmp_path / "ran").read_text() == "started\n"


def test_a_backend_that_is_none_is_a_slip_and_nothing_starts(tmp_path: Path) -> None:
    done = profile("--backend", "nvlm", "touch", str(tmp_path / "ran"))
    assert done.returncode == 2
    assert "did you mean 'nvml'?" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("options", "env", "names", "says"),
    [
        (["--device", "nvml:1"], {}, ["NVIDIA A10G"], ""),
        (["--device", "nvml:1", "--device", "nvml:0"], {}, ["NVIDIA H200", "NVIDIA A10G"], ""),
        ([], {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["NVIDIA A10G"], ""),
        ([], {"CUDA_VISIBLE_DEVICES": ""}, [], "no GPU to watch: CUDA_VISIBLE_DEVICES is empty"),
        ([], {"CUDA_VISIBLE_DEVICES": "bogus"}, [], "no GPU to watch: CUDA_VISIBLE_DEVICES='bogus'"),
        (["--device", "7"], {}, [], "device '7': CUDA shows this process 2 devices, 0 to 1"),
    ],
)
def test_devices_are_those_that_are_named_or_that_cuda_would_show(
    options: list[str], env: dict[str, str], names: list[str], says: str, node: str
) -> None:
    strict = ["--strict"] if names else []
    done = profile("--backend", node, *options, *strict, "--json", "--", "sleep", "0.5", **env)
    found = last_line(done.stdout)
    assert done.returncode == 0
    assert [device["name"] for device in found["devices"]] == names
    assert says in found["notes"]


def test_a_device_that_is_not_there_keeps_a_strict_command_from_starting(node: str, tmp_path: Path) -> None:
    done = profile("--backend", node, "--strict", "--device", "7", "touch", str(tmp_path / "ran"))
    assert done.returncode == 2
    assert done.stderr.startswith("gpu-profile: device '7': CUDA shows this process 2 devices, 0 to 1")
    assert not (tmp_path / "ran").exists()


def test_a_device_that_is_lost_meanwhile_leaves_what_was_read_and_a_note(tmp_path: Path) -> None:
    # A busy machine takes some seconds to begin: the loss comes later than that, the end after it in any case.
    node = simulated.create(tmp_path / "node", f'{NODE}\n[[fault]]\nkind = "gpu_lost"\ndevice = 0\nfrom_s = 8\n')
    script = f"import time; time.sleep(max(0.0, {time.time() + 9.5} - time.time()))"
    done = profile("--backend", f"simulated:{node}", "--json", "--", sys.executable, "-c", script)
    found = last_line(done.stdout)
    assert done.returncode == 0
    assert 0.1 < found["coverage"] < 0.95
    assert "sampling stopped early: " in found["notes"]
    assert found["devices"][1]["coverage"] > found["coverage"]


def test_a_warmup_is_left_out_and_one_that_is_longer_than_the_run_is_told(node: str) -> None:
    found = last_line(profile("--backend", node, "--json", "--warmup", "3", "sleep", "6").stdout)
    assert "warmup ignored: first 3.00s" in found["notes"]
    assert found["coverage"] > 0.95, "what was lost before the driver had answered is part of the warm-up"
    found = last_line(profile("--backend", node, "--strict", "--json", "--warmup", "60", "sleep", "0.2").stdout)
    assert "the warmup is longer than the run: nothing was measured" in found["notes"]
    assert found["util_gpu_mean"] is None


# ---------------------------------------------------------------------- recordings


def test_a_recording_is_kept_where_it_is_wanted_and_older_ones_in_it_are_not_told_again(
    node: str, tmp_path: Path, kept: Path
) -> None:
    directory = tmp_path / "new" / "recording"
    script = "from gpu_profile import region\nimport time\nwith region('{name}', span=False): time.sleep(0.2)"
    for name in ("first", "second"):
        words = [sys.executable, "-c", script.format(name=name)]
        found = last_line(profile("--backend", node, "--record", str(directory), "--json", "--", *words).stdout)
        assert [region["region"] for region in found["regions"]] == [name]
    analysed = profile("analyze", str(directory), "--json")
    assert analysed.returncode == 0, analysed.stderr
    regions = [region["region"] for region in json.loads(analysed.stdout)["regions"]]
    assert regions == ["first", "second"]


def test_a_place_that_cannot_be_recorded_into_is_found_before_the_command_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file/below", "file"):
        done = profile("--backend", "none", "--record", str(tmp_path / place), "touch", str(tmp_path / "ran"))
        assert done.returncode == 2
        assert str(tmp_path / place) in done.stderr
        assert not (tmp_path / "ran").exists()


def test_what_a_killed_run_left_goes_with_the_next_one(kept: Path) -> None:
    script = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    killed = profile("--backend", "none", "--", sys.executable, "-c", script)
    assert killed.returncode == -9
    assert len(list(kept.iterdir())) == 1
    profile("--backend", "none", "--", "true")
    assert list(kept.iterdir()) == []
