import configparser
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from gpu_profile_exporter.operating import systemd

UNIT = Path(__file__).parents[4] / "docker" / "systemd" / "gpu-profile-exporter.service"


def parsed() -> dict[str, list[str]]:
    """The unit's settings; one may be there several times."""
    settings: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            settings.setdefault(key, []).append(value)
    return settings


@pytest.mark.parametrize("abstract", [False, True])
def test_what_is_said_arrives(tmp_path: Path, abstract: bool) -> None:
    name = f"@gpu-profile-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name[1:]}" if abstract else name)
        listening.settimeout(5)
        assert systemd.notify(systemd.READY, environ={"NOTIFY_SOCKET": name})
        assert listening.recv(100) == b"READY=1"
        assert systemd.notify("STATUS=3 devices\nREADY=1", environ={"NOTIFY_SOCKET": name})
        assert listening.recv(100) == b"STATUS=3 devices\nREADY=1"


def test_without_a_listener_nothing_is_said_and_nothing_fails(tmp_path: Path) -> None:
    assert not systemd.notify(systemd.READY, environ={})
    assert not systemd.notify(systemd.READY, environ={"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert not systemd.notify(systemd.READY, environ={"NOTIFY_SOCKET": "vsock:1:2"})
    assert not systemd.notify(systemd.READY, environ={"NOTIFY_SOCKET": "/" + "x" * 200})


def test_a_listener_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        said = [systemd.notify(systemd.WATCHDOG, environ={"NOTIFY_SOCKET": path}) for _ in range(5000)]
    assert said[0]
    assert not said[-1]


def test_a_reload_carries_its_time_in_microseconds() -> None:
    assert systemd.reloading(now_ns=1_234_567_890) == "RELOADING=1\nMONOTONIC_USEC=1234567"
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", systemd.reloading())


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_it_asks(environ: dict[str, str], expected: float | None) -> None:
    assert systemd.watchdog_s(environ=environ) == expected


def test_the_unit_is_of_a_kind_that_says_when_it_is_ready_and_reloads_on_hup() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT)
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    settings = parsed()
    assert settings["Type"] == ["notify"]
    assert settings["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert settings["Restart"] == ["always"]
    assert settings["ExecStart"][0].split()[0].endswith("/gpu-profile-exporter")


def test_the_unit_has_no_rights_but_to_the_gpus() -> None:
    settings = parsed()
    for key, value in (
        ("DynamicUser", "yes"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("CapabilityBoundingSet", ""),
        ("DevicePolicy", "closed"),
        ("RestrictNamespaces", "yes"),
    ):
        assert settings[key] == [value]
    assert all("195" in allowed or "nvidia" in allowed for allowed in settings["DeviceAllow"])
    # These would hide the GPUs, or the processes that use them.
    assert not {"PrivateDevices", "ProtectProc", "ProcSubset", "PrivateUsers"} & settings.keys()


@pytest.mark.debian
def test_systemd_takes_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    assert program, "systemd-analyze is not installed: apt-get install systemd"
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/gpu-profile/bin/gpu-profile-exporter", "/bin/true"))
    checked = subprocess.run([program, "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    graded = subprocess.run(
        [program, "security", "--offline=true", "--threshold=20", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert graded.returncode == 0, graded.stdout[-300:]
