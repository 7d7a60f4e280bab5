import gzip
import json
import signal
import socket
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.exporter import series
from support.programs import exporter, fails, taken_port, until


def test_it_serves_what_it_reads_and_ends_in_peace_when_told_to(node: str) -> None:
    with exporter("--driver", node) as running:
        assert ": 2 devices through simulated:" in running.first_line
        assert " (SIMULATED) on http://127.0.0.1:" in running.first_line
        until(lambda: running.get("/-/ready")[0] == 200, "ready")
        assert running.get("/-/healthy")[0] == 200
        text = until(
            lambda: b"gpu_profile_busy_seconds_total{" in (body := running.get("/metrics")[2]) and body, "busy"
        )
        found = series(text.decode())
        assert found["gpu_profile_driver_up"] == 1
        assert sum(name.startswith("gpu_profile_device_up") for name in found) == 2
        assert "process_resident_memory_bytes" in found
        data = json.loads(running.get("/api/devices")[2])
        assert data["simulated"] is True
        assert [device["name"] for device in data["devices"]] == ["NVIDIA H200", "NVIDIA A10G"]
        assert b"<!doctype html>" in running.get("/")[2]
        assert b"NVIDIA H200" in running.get("/api/live")[2]
        assert running.get("/nothing")[0] == 404
        code, stderr = running.end(signal.SIGTERM)
        assert code == 0
        assert "Traceback" not in stderr


def test_scrapers_get_the_format_and_the_encoding_that_they_ask_for(node: str) -> None:
    with exporter("--driver", node) as running:
        status, kind, text = running.get("/metrics", {"Accept": "application/openmetrics-text;version=1.0.0"})
        assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
        assert text.endswith(b"# EOF\n")
        status, kind, packed = running.get("/metrics", {"Accept": "text/plain", "Accept-Encoding": "gzip"})
        assert (status, kind.partition(";")[0]) == (200, "text/plain")
        assert list(text_string_to_metric_families(gzip.decompress(packed).decode()))


def test_ctrl_c_ends_it_with_exit_code_0(node: str) -> None:
    with exporter("--driver", node) as running:
        assert running.end(signal.SIGINT)[0] == 0


def test_a_client_that_says_nothing_does_not_keep_it_from_ending(node: str) -> None:
    with exporter("--driver", node) as running:
        host, _, port = running.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
            assert running.end()[0] == 0


def test_without_a_driver_it_serves_at_once_and_says_why_it_is_not_ready(tmp_path: Path) -> None:
    with exporter("--driver", "smi", PATH=str(tmp_path)) as running:
        assert "not ready (nvidia-smi not found on PATH" in running.first_line
        status, _, body = running.get("/-/ready")
        assert status == 503
        assert body.startswith(b"not ready: nvidia-smi not found on PATH")
        assert running.get("/-/healthy")[0] == 200
        # The server answers before the reader's first round has been counted.
        error = 'gpu_profile_driver_errors_total{error_type="driver"}'
        until(lambda: series(running.get("/metrics")[2].decode())[error] >= 1, "the failed opening is counted")
        found = series(running.get("/metrics")[2].decode())
        assert found["gpu_profile_driver_up"] == 0
        assert not any(name.startswith(("hw_", "nvidia_")) for name in found)
        assert b"nvidia-smi not found" in running.get("/api/live")[2]
        assert running.end()[0] == 0


def test_a_driver_that_comes_later_makes_it_ready_without_a_restart(tmp_path: Path) -> None:
    with exporter("--driver", "smi", "--interval", "1", PATH=f"{tmp_path}:/usr/bin:/bin") as running:
        assert running.get("/-/ready")[0] == 503
        script = tmp_path / "draft"
        script.write_text(
            "#!/bin/sh\n"
            'fields=$(echo "$1" | sed "s/--query-gpu=//; s/[^,]//g")\n'
            "echo \"$1\" | sed 's/--query-gpu=//' | tr , '\\n' | "
            "sed 's/^uuid$/GPU-01234567-89ab-cdef-0123-456789abcdef/; t; s/^index$/0/; t; s/^name$/NVIDIA T4/; t; "
            "s/^power.*/42.5/; t; s/.*/[N\\/A]/' | paste -s -d ,\n"
        )
        script.chmod(0o755)
        script.rename(tmp_path / "nvidia-smi")
        until(lambda: running.get("/-/ready")[0] == 200, "ready")
        text = until(lambda: b"power" in (body := running.get("/metrics")[2]) and body, "a power reading")
        assert b'hw_id="GPU-01234567-89ab-cdef-0123-456789abcdef"' in text


def test_a_port_that_is_taken_is_one_line_and_exit_code_2() -> None:
    with taken_port() as port:
        code, out, err = fails("--listen", f"127.0.0.1:{port}", "--driver", "none")
    assert (code, out) == (2, "")
    assert err == (
        f"gpu-profile-exporter: port {port} is taken on 127.0.0.1: choose another with --listen, as in --listen :9401\n"
    )


def test_a_host_that_is_not_this_one_is_one_line_and_exit_code_2() -> None:
    code, _, err = fails("--listen", "192.0.2.1:0", "--driver", "none")
    assert code == 2
    assert err.startswith("gpu-profile-exporter: cannot listen on 192.0.2.1:0: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("driver", "says"),
    [
        ("simulated:{dir}", ("scenario.toml: [device 0.model]: unknown 'H2OO SXM'",)),
        ("simulated:{dir}/missing", ("missing",)),
        ("replay:{dir}/missing", ("missing",)),
        ("replay:{dir}", ("{dir}",)),
        ("nvlm", ("unknown driver 'nvlm'", "did you mean 'nvml'?")),
        ("none:x", ("'none' takes nothing after it",)),
        ("replay", ("no directory after 'replay'",)),
        ("", ("unknown driver ''",)),
    ],
)
def test_a_driver_that_cannot_be_what_the_user_meant_is_one_line_and_exit_code_2(
    tmp_path: Path, driver: str, says: tuple[str, ...]
) -> None:
    (tmp_path / "scenario.toml").write_text('[[device]]\nmodel = "H2OO SXM"\n')
    code, out, err = fails("--listen", "127.0.0.1:0", "--driver", driver.format(dir=tmp_path))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("gpu-profile-exporter: ")
    for part in says:
        assert part.format(dir=tmp_path) in err


def test_none_is_a_driver_that_is_ready_with_no_devices() -> None:
    with exporter("--driver", "none") as running:
        assert ": 0 devices through none on " in running.first_line
        until(lambda: running.get("/-/ready")[0] == 200, "ready")
        assert json.loads(running.get("/api/devices")[2])["devices"] == []
