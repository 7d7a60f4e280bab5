import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from support.programs import command, environment, exporter, fails, said


def test_sighup_has_it_read_its_file_again(tmp_path: Path) -> None:
    file = tmp_path / "exporter.toml"
    file.write_text("[log]\nlevel = 'info'\n")
    with exporter("--driver", "none", "--config", str(file)) as running:
        file.write_text("interval = 2\n[log]\nformat = 'json'\n")
        running.process.send_signal(signal.SIGHUP)
        assert "changed, and in force only after a restart: interval" in said(running, "restart")[-1]
        file.write_text("intervall = 2\n")
        running.process.send_signal(signal.SIGHUP)
        last = said(running, "SIGHUP")[-1]
        assert last.startswith('{"time": ')
        assert f"SIGHUP could not be acted on: {file}:1: there is no such setting as 'intervall'" in last
        assert running.get("/-/healthy")[0] == 200
        assert running.end()[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_0_whatever_else_it_was_told_before(number: signal.Signals) -> None:
    with exporter("--driver", "none", "--config", "/dev/null") as running:
        for _ in range(3):
            running.process.send_signal(signal.SIGHUP)
        code, stderr = running.end(number)
        assert code == 0
        assert "Traceback" not in stderr


def test_systemd_is_told_when_it_serves_that_it_lives_and_when_it_stops(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000"}
        with exporter("--driver", "none", **told) as running:
            assert running.get("/-/healthy")[0] == 200
            assert systemd.recv(100) == b"READY=1"
            assert systemd.recv(100) == b"WATCHDOG=1"
            assert running.end()[0] == 0
        last = b""
        while last != b"STOPPING=1":
            last = systemd.recv(100)
            assert last in (b"WATCHDOG=1", b"STOPPING=1")


def test_a_log_and_an_output_that_nobody_reads_do_not_end_it() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out_read, out = os.pipe()
    err_read, err = os.pipe()
    for end in (out_read, err_read):
        os.close(end)
    env = environment(GPU_PROFILE_EXPORTER_LOG_LEVEL="debug")
    arguments = command("--listen", f"127.0.0.1:{port}", "--driver", "none", "--config", "/dev/null")
    process = subprocess.Popen(arguments, stdout=out, stderr=err, env=env)
    os.close(out)
    os.close(err)
    try:
        deadline = time.monotonic() + 20
        url = f"http://127.0.0.1:{port}"
        while fails("healthcheck", "--url", url)[0] != 0:
            assert process.poll() is None
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGHUP)
        assert fails("healthcheck", "--url", url)[0] == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_the_health_check_finds_a_running_exporter_by_its_environment() -> None:
    with exporter("--driver", "none", "--config", "/dev/null") as running:
        port = running.url.rpartition(":")[2]
        assert fails("healthcheck", GPU_PROFILE_EXPORTER_LISTEN=f":{port}")[0] == 0
        running.end()
        code, out, err = fails("healthcheck", GPU_PROFILE_EXPORTER_LISTEN=f":{port}")
    assert (code, out) == (1, "")
    assert err == f"gpu-profile-exporter: http://127.0.0.1:{port}: Connection refused\n"


def test_a_configuration_that_cannot_be_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "exporter.toml"
    file.write_text("[otlp]\nendpont = 'http://c:4318'\n")
    assert fails("--config", str(file)) == (
        2,
        "",
        f"gpu-profile-exporter: {file}:2: there is no such setting as 'otlp.endpont'; did you mean 'otlp.endpoint'?\n",
    )


def test_what_an_exporter_that_was_killed_left_is_swept_by_the_next_which_release_reaches() -> None:
    # A short name: a socket's path has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="gp-", dir="/tmp") as directory:
        env = {"XDG_RUNTIME_DIR": directory, "TMPDIR": directory}
        arguments = ("--driver", "simulated", "--config", "/dev/null")
        with exporter(*arguments, **env) as killed:
            assert killed.end(signal.SIGKILL)[0] == -signal.SIGKILL
        left = {*Path(directory).iterdir()}
        assert len(left) == 2, "a socket and a simulated node"
        with exporter(*arguments, **env) as running:
            found = {*Path(directory).iterdir()}
            assert (len(found), found & left) == (2, set())
            port = running.url.rpartition(":")[2]
            assert fails("release", "--port", port, **env) == (0, "released for 60 s\n", "")
            assert running.end()[0] == 0
        assert not [*Path(directory).iterdir()]
