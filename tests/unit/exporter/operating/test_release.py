"""How an exporter is told to let go of the GPUs, and by whom it is not."""

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_profile.errors import UsageError
from gpu_profile_exporter.operating.release import Door, ask, release, socket_paths

PORT = 19_400


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a short name: a socket's path has 107 characters at most."""
    with tempfile.TemporaryDirectory(prefix="gp-", dir="/tmp") as directory:
        monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield Path(directory)


class Asked:
    """What the door was asked for; `answer` is whether all was let go of."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.answer = True

    def __call__(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return self.answer


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def door(asked: Asked) -> Iterator[Door]:
    made = Door.open(PORT, asked)
    assert made is not None
    yield made
    made.close()


def say(data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(socket_paths(PORT)[0]))
        connection.sendall(data)
        return connection.recv(256)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(release, ["--port", str(PORT), *arguments], standalone_mode=False)


def test_who_asks_gets_the_answer_once_it_is_done(door: Door, asked: Asked) -> None:
    assert ask(PORT, 90) == "released"
    asked.answer = False
    assert ask(PORT, 0) == "held: a call still hangs in the driver"
    assert asked.seconds == [90, 0]


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"release\n",
        b"release x\n",
        b"release nan\n",
        b"release -1\n",
        b"release 3601\n",
        b"stop 5\n",
        b"\xff" * 64,
    ],
)
def test_what_is_no_request_is_answered_with_what_to_write(door: Door, asked: Asked, data: bytes) -> None:
    assert say(data) == b"write release SECONDS, at most 3600\n"
    assert asked.seconds == []


def test_who_goes_away_without_a_word_stops_nobody(door: Door) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_paths(PORT)[0]))
    assert ask(PORT, 1) == "released"


def test_a_defect_in_letting_go_leaves_the_door_open(runtime: Path) -> None:
    defects = [RuntimeError("a defect")]

    def let_go(_: float) -> bool:
        if defects:
            raise defects.pop()
        return True

    made = Door.open(PORT, let_go)
    assert made is not None
    assert say(b"release 1\n") == b"failed: a defect\n"
    assert ask(PORT, 1) == "released"
    made.close()


def test_only_its_user_may_open_the_door(door: Door) -> None:
    assert stat.S_IMODE(socket_paths(PORT)[0].stat().st_mode) == 0o600


def test_the_umask_of_the_process_is_what_it_was(door: Door) -> None:
    before = os.umask(0o022)
    os.umask(before)
    assert before != 0o177


def test_what_an_exporter_that_was_killed_left_behind_is_no_hindrance(asked: Asked) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(socket_paths(PORT)[0]))
    left.close()
    made = Door.open(PORT, asked)
    assert made is not None
    assert ask(PORT, 1) == "released"
    made.close()


def test_a_file_of_another_kind_is_never_taken_away(asked: Asked) -> None:
    socket_paths(PORT)[0].write_text("precious")
    assert Door.open(PORT, asked) is None
    assert socket_paths(PORT)[0].read_text() == "precious"


def test_another_user_s_socket_is_never_taken_away(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = socket_paths(PORT)[0]
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    monkeypatch.setattr(os, "getuid", lambda: 12_345)
    caplog.set_level("INFO")
    assert Door.open(PORT, asked) is None
    assert path.exists()
    assert "SIGUSR1 can" in caplog.text
    left.close()


def test_two_exporters_have_two_doors(asked: Asked) -> None:
    other = Asked()
    doors = Door.open(PORT, asked), Door.open(PORT + 1, other)
    ask(PORT + 1, 7)
    assert (asked.seconds, other.seconds) == ([], [7])
    for made in doors:
        assert made is not None
        made.close()


def test_the_door_leaves_nothing_behind(door: Door, runtime: Path) -> None:
    door.close()
    assert list(runtime.iterdir()) == []


def test_a_path_too_long_for_a_socket_is_told_and_the_exporter_goes_on(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    caplog.set_level("INFO")
    assert Door.open(PORT, asked) is None
    assert "cannot reach this exporter" in caplog.text
    with pytest.raises(UsageError, match="no exporter of this user"):
        ask(PORT, 1)


def test_a_service_s_own_directory_comes_first(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{own}:/run/other")
    assert socket_paths(PORT)[0].parent == own
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/no/such/place")
    assert socket_paths(PORT)[0].parent == runtime


def test_without_a_runtime_directory_the_name_tells_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert socket_paths(PORT)[0].name == f"gpu-profile-exporter-{os.getuid()}-{PORT}.sock"


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("5m", 300), ("1h", 3600), ("0s", 0), ("2.5", 2.5)])
def test_the_command_understands_times(door: Door, asked: Asked, text: str, seconds: float) -> None:
    found = command("--for", text)
    assert found.output == f"released for {seconds:g} s\n"
    assert asked.seconds == [seconds]


@pytest.mark.parametrize("text", ["", "x", "2h", "-1s", "nan", "inf", "1d", "s"])
def test_the_command_refuses_what_is_no_time_and_asks_nobody(door: Door, asked: Asked, text: str) -> None:
    found = command("--for", text)
    assert "write a time such as 60s or 5m, at most 1h" in str(found.exception)
    assert asked.seconds == []


def test_the_command_fails_where_a_call_still_hangs(door: Door, asked: Asked) -> None:
    asked.answer = False
    found = command()
    assert (found.return_value, "held: a call still hangs" in found.output) == (1, True)


def test_the_command_says_what_to_do_where_nobody_answers() -> None:
    found = command()
    assert isinstance(found.exception, UsageError)
    assert "name its port with --port, or send it SIGUSR1" in str(found.exception)


def test_without_any_directory_there_is_no_door_and_nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory")

    for variable in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("gpu_profile_exporter.operating.release.SERVICE_DIRECTORY", "/nowhere")
    monkeypatch.setattr("tempfile.gettempdir", none)
    assert Door.open(PORT, lambda _: True) is None
    with pytest.raises(UsageError, match="no directory for its socket"):
        ask(PORT, 1)


def test_the_services_own_directory_is_looked_into(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Who asks has not the service's environment.
    opened = Door.open(PORT, lambda _: True)
    assert opened is not None
    try:
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        monkeypatch.setattr("gpu_profile_exporter.operating.release.SERVICE_DIRECTORY", str(runtime))
        assert ask(PORT, 1) == "released"
    finally:
        opened.close()
