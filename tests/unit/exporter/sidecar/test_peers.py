import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile_exporter.server.connection import Ends
from gpu_profile_exporter.sidecar.peers import PeerProcesses

#: A client that connects, says so, and stays until its input ends.
CLIENT = """import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print(1, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as each:
        yield each


def client(stack: ExitStack, host: str, family: socket.AddressFamily) -> tuple[Ends, int]:
    """A process with a connection to a listener here: the peer, and its process id."""
    listener = stack.enter_context(socket.socket(family))
    listener.bind(("::" if family is socket.AF_INET6 else host, 0))
    listener.listen()
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-S", "-c", CLIENT, host, str(listener.getsockname()[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    )
    stack.callback(process.communicate)
    assert process.stdout is not None
    assert process.stdout.readline()
    accepted, address = listener.accept()
    stack.enter_context(accepted)
    return Ends(address[0], address[1], accepted.getsockname()[1]), process.pid


@pytest.mark.parametrize(
    ("host", "family"),
    [("127.0.0.1", socket.AF_INET), ("127.0.0.1", socket.AF_INET6), ("::1", socket.AF_INET6)],
    ids=["IPv4", "mapped", "IPv6"],
)
def test_the_process_at_the_other_end_is_proven_and_no_other(
    host: str, family: socket.AddressFamily, stack: ExitStack
) -> None:
    peer, pid = client(stack, host, family)
    peers = PeerProcesses()
    assert peers.proven(peer, pid)
    for other in (os.getpid(), os.getppid(), 1, 0, -1, 1 << 40):
        assert not peers.proven(peer, other)
    assert not peers.proven(peer._replace(port=peer.port ^ 1), pid)
    assert not peers.proven(peer._replace(local_port=peer.local_port ^ 1), pid)
    assert not peers.proven(peer._replace(host="127.0.0.2"), pid)


def test_two_ends_in_one_process_are_told_apart_by_the_port(stack: ExitStack) -> None:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    one = stack.enter_context(socket.create_connection(listener.getsockname()))
    accepted, address = listener.accept()
    stack.enter_context(accepted)
    assert PeerProcesses().proven(Ends(address[0], address[1], one.getpeername()[1]), os.getpid())


def test_a_port_that_another_process_got_is_looked_at_anew(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, pid = client(stack, "127.0.0.1", socket.AF_INET)
    now_s = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    peers = PeerProcesses()
    assert peers.proven(peer, pid)
    stack.close()
    assert peers.proven(peer, pid)
    now_s[0] = 11.0
    assert not peers.proven(peer, pid)


def test_files_that_may_not_be_listed_prove_nothing(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    line = "0: 0100007F:1F90 0100007F:10DE 01 00000000:00000000 00:00000000 00000000 0 0 4711 1\n"
    (tmp_path / "net" / "tcp").write_text("sl local rem\n" + line)
    peer = Ends("127.0.0.1", 0x1F90, 0x10DE)
    peers = PeerProcesses(tmp_path)
    assert not peers.proven(peer, 5)
    (tmp_path / "6" / "fd").mkdir(parents=True)
    (tmp_path / "6" / "fd" / "3").symlink_to("socket:[4711]")
    (tmp_path / "6" / "fd" / "4").write_text("no link")
    assert peers.proven(peer, 6)
    (tmp_path / "7" / "fd").mkdir(parents=True)
    (tmp_path / "7" / "fd" / "3").symlink_to("socket:[471]")
    assert not peers.proven(peer, 7)


@given(st.lists(st.text(max_size=80), max_size=8), st.text(max_size=20))
def test_no_table_and_no_address_is_an_error(lines: list[str], host: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "net").mkdir()
        (Path(folder) / "net" / "tcp").write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
        assert not PeerProcesses(Path(folder)).proven(Ends(host, 1, 2), 1)
        assert not PeerProcesses(Path(folder)).proven(Ends("127.0.0.1", 1, 2), 1)


def test_answers_do_not_grow_without_end(tmp_path: Path) -> None:
    peers = PeerProcesses(tmp_path)
    for port in range(6000):
        assert not peers.proven(Ends("127.0.0.1", port, 1), 2)
    assert len(peers._answers) == 4096
