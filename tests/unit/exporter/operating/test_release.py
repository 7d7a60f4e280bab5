"""How an exporter is told to let go of the GPUs, and by whom it is not."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_profile.errors import UsageError
from gpu_profile_exporter.operating.release import ReleaseSocket, ask, release

PORT = 19_400


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a short name: a socket's path has 107 characters at most."""
    with tempfile.TemporaryDirectory(prefix="gp-", dir="/tmp") as directory:
        monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield Path(directory)


def place(port: int = PORT) -> Path:
    """Where an exporter listens."""
    return Path(os.environ["XDG_RUNTIME_DIR"]) / f"gpu-profile-exporter-{port}.sock"


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
def door(asked: Asked) -> Iterator[ReleaseSocket]:
    made = ReleaseSocket.open(PORT, asked)
    assert made is not None
    yield made
    made.close()


def say(data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(place()))
        connection.sendall(data)
        return connection.recv(256)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(release, ["--port", str(PORT), *arguments], standalone_mode=False)


def test_who_asks_gets_the_answer_once_it_is_done(door: ReleaseSocket, asked: Asked) -> None:
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
def test_what_is_no_request_is_answered_with_what_to_write(door: ReleaseSocket, asked: Asked, data: bytes) -> None:
    assert say(data) == b"write release SECONDS, at most 3600\n"
    assert asked.seconds == []


def test_who_goes_away_without_a_word_stops_nobody(door: ReleaseSocket) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(place()))
    assert ask(PORT, 1) == "released"


def test_a_defect_in_letting_go_leaves_the_door_open(runtime: Path) -> None:
    defects = [RuntimeError("a defect")]

    def let_go(_: float) -> bool:
        if defects:
            raise defects.pop()
        return True

    made = ReleaseSocket.open(PORT, let_go)
    assert made is not None
    assert say(b"release 1\n") == b"failed: a defect\n"
    assert ask(PORT, 1) == "released"
    made.close()


def test_only_its_user_may_open_the_door(door: ReleaseSocket) -> None:
    assert stat.S_IMODE(place().stat().st_mode) == 0o600


def dead_socket(path: Path) -> Path:
    """As an exporter leaves it that was killed."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    return path


def test_what_exporters_that_were_killed_left_behind_is_swept_and_nothing_else(asked: Asked, runtime: Path) -> None:
    swept = [dead_socket(place(port)) for port in (PORT, PORT + 1, PORT + 2)]
    kept = dead_socket(runtime / "another-program.sock")
    other = ReleaseSocket.open(PORT + 3, asked)
    made = ReleaseSocket.open(PORT, asked)
    assert other is not None
    assert made is not None
    assert [path.exists() for path in swept] == [True, False, False]
    assert kept.exists()
    assert (ask(PORT, 1), ask(PORT + 3, 1)) == ("released", "released")
    assert ReleaseSocket.open(PORT, asked) is None, "a living one is not pushed out"
    assert ask(PORT, 1) == "released"
    made.close()
    other.close()
    assert list(runtime.iterdir()) == [kept]


def test_a_file_of_another_kind_is_never_taken_away(asked: Asked) -> None:
    place().write_text("precious")
    assert ReleaseSocket.open(PORT, asked) is None
    assert place().read_text() == "precious"


def test_two_exporters_have_two_doors(asked: Asked) -> None:
    other = Asked()
    doors = ReleaseSocket.open(PORT, asked), ReleaseSocket.open(PORT + 1, other)
    ask(PORT + 1, 7)
    assert (asked.seconds, other.seconds) == ([], [7])
    for made in doors:
        assert made is not None
        made.close()


def test_the_door_leaves_nothing_behind(door: ReleaseSocket, runtime: Path) -> None:
    door.close()
    assert list(runtime.iterdir()) == []


def test_a_path_too_long_for_a_socket_is_told_and_the_exporter_goes_on(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    caplog.set_level("INFO")
    assert ReleaseSocket.open(PORT, asked) is None
    assert "cannot reach this exporter" in caplog.text
    with pytest.raises(UsageError, match="no exporter of this user"):
        ask(PORT, 1)


def test_a_service_s_own_directory_comes_first(runtime: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    own = runtime / "own"
    own.mkdir()
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{own}:/run/other")
    made = ReleaseSocket.open(PORT, asked)
    assert made is not None
    assert [path.name for path in own.iterdir()] == [place().name]
    assert ask(PORT, 1) == "released"
    made.close()


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("5m", 300), ("1h", 3600), ("0s", 0), ("2.5", 2.5)])
def test_the_command_understands_times(door: ReleaseSocket, asked: Asked, text: str, seconds: float) -> None:
    found = command("--for", text)
    assert found.output == f"released for {seconds:g} s\n"
    assert asked.seconds == [seconds]


@pytest.mark.parametrize("text", ["", "x", "2h", "-1s", "nan", "inf", "1d", "s"])
def test_the_command_refuses_what_is_no_time_and_asks_nobody(door: ReleaseSocket, asked: Asked, text: str) -> None:
    found = command("--for", text)
    assert "write a time such as 60s or 5m, at most 1h" in str(found.exception)
    assert asked.seconds == []


def test_the_command_fails_where_a_call_still_hangs(door: ReleaseSocket, asked: Asked) -> None:
    asked.answer = False
    found = command()
    assert (found.return_value, "held: a call still hangs" in found.output) == (1, True)


def test_the_command_says_what_to_do_where_nobody_answers() -> None:
    found = command()
    assert isinstance(found.exception, UsageError)
    assert "name its port with --port, or send it SIGUSR1" in str(found.exception)


# ------------------------------------------------------------------ whom it trusts


@pytest.fixture
def outside(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory, which is anybody's, of a user who has no other place."""
    runtime.chmod(0o1777)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(runtime))
    monkeypatch.setattr("gpu_profile_exporter.operating.runtime.ROOT_DIRECTORY", runtime / "run")
    monkeypatch.setattr("gpu_profile_exporter.operating.runtime.SERVICE_DIRECTORY", runtime / "service")
    return runtime


def test_without_a_runtime_directory_it_makes_one_for_this_user_alone(outside: Path, asked: Asked) -> None:
    made = ReleaseSocket.open(PORT, asked)
    assert made is not None
    (directory,) = outside.iterdir()
    assert directory.name == ("run" if os.geteuid() == 0 else f"gpu-profile-{os.geteuid()}")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert ask(PORT, 1) == "released"
    made.close()
    assert list(directory.iterdir()) == []


#: Takes, as another user, all places that this one could use, and answers as an exporter would.
SQUATTER = """
import os, select, socket, sys
os.setuid(12345)
names = [f"gpu-profile-exporter-{sys.argv[1]}-{sys.argv[2]}.sock"]
for directory in ("run", f"gpu-profile-{sys.argv[1]}"):
    os.mkdir(directory, 0o777)
    names.append(f"{directory}/gpu-profile-exporter-{sys.argv[2]}.sock")
os.umask(0)
sockets = [socket.socket(socket.AF_UNIX) for _ in names]
for listening, name in zip(sockets, names):
    listening.bind(name)
    listening.listen()
print("squats", flush=True)
while True:
    for listening in select.select(sockets, [], [])[0]:
        connection, _ = listening.accept()
        connection.recv(64)
        connection.sendall(b"released\\n")
"""


@contextmanager
def squatting(directory: Path) -> Iterator[None]:
    words = [sys.executable, "-c", SQUATTER, str(os.geteuid()), str(PORT)]
    with subprocess.Popen(words, cwd=directory, stdout=subprocess.PIPE) as squatter:
        assert squatter.stdout is not None
        try:
            assert squatter.stdout.readline() == b"squats\n"
            yield
        finally:
            squatter.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as another user")
def test_another_user_can_take_neither_the_socket_s_place_nor_its_word(
    outside: Path, asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with squatting(outside):
        with pytest.raises(UsageError, match="belongs to user 12345"):
            ask(PORT, 1)
        assert ReleaseSocket.open(PORT, asked) is None
        assert "belongs to user 12345" in caplog.text
        # It has got into a directory of this user's all the same.
        for directory in ("run", "gpu-profile-0"):
            os.chown(outside / directory, 0, 0)
            (outside / directory).chmod(0o700)
        with pytest.raises(UsageError, match="user 12345 listens there"):
            ask(PORT, 1)


@pytest.mark.parametrize("what", ["a link", "a file", "writable by others"])
def test_a_directory_that_is_not_this_user_s_alone_is_not_used(
    outside: Path, asked: Asked, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (outside / "elsewhere").mkdir()
    for name in ("run", f"gpu-profile-{os.geteuid()}"):
        if what == "a link":
            (outside / name).symlink_to(outside / "elsewhere")
        elif what == "a file":
            (outside / name).touch()
        else:
            (outside / name).mkdir()
            (outside / name).chmod(0o770)
    assert ReleaseSocket.open(PORT, asked) is None
    assert ("other users may write to the directory" if what == "writable by others" else "directory") in caplog.text
    assert list((outside / "elsewhere").iterdir()) == []


def test_who_is_neither_its_user_nor_root_is_not_answered(
    door: ReleaseSocket, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_profile_exporter.operating.runtime.peer_uid", lambda _: 12_345)
    with pytest.raises(ConnectionError):
        say(b"release 1\n")
    assert asked.seconds == []


def test_without_any_directory_there_is_no_socket_and_nobody_to_ask(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory")

    monkeypatch.setattr("tempfile.gettempdir", none)
    monkeypatch.setattr("gpu_profile_exporter.operating.runtime.ROOT_DIRECTORY", outside / "no" / "run")
    assert ReleaseSocket.open(PORT, lambda _: True) is None
    with pytest.raises(UsageError, match="there is no socket for it"):
        ask(PORT, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may ask a service of another user")
def test_root_asks_a_service_whatever_its_user(outside: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    service = outside / "service"
    service.mkdir(mode=0o700)
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(service))
    opened = ReleaseSocket.open(PORT, asked)
    assert opened is not None
    monkeypatch.delenv("RUNTIME_DIRECTORY")
    os.chown(service, 12_345, 12_345)
    assert ask(PORT, 1) == "released"
    opened.close()
