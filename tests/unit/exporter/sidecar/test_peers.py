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
from gpu_profile_exporter.sidecar.peers import BUSY, CLOSED, NO_RIGHT, NOT_DIRECT, PeerProcesses, _address, _inode

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
    return Ends(*address[:2], *accepted.getsockname()[:2]), process.pid


@pytest.mark.parametrize(
    ("host", "family"),
    [("127.0.0.1", socket.AF_INET), ("127.0.0.1", socket.AF_INET6), ("::1", socket.AF_INET6)],
    ids=["IPv4", "mapped", "IPv6"],
)
def test_the_process_at_the_other_end_is_proven_and_no_other(
    host: str, family: socket.AddressFamily, stack: ExitStack
) -> None:
    ends, pid = client(stack, host, family)
    peers = PeerProcesses()
    assert peers.refusal(ends, pid) == ""
    for other in (os.getpid(), os.getppid(), 0, -1, 1 << 40):
        assert peers.refusal(ends, other) == NOT_DIRECT
    assert peers.refusal(ends._replace(port=ends.port ^ 1), pid) == NOT_DIRECT
    assert peers.refusal(ends._replace(local_port=ends.local_port ^ 1), pid) == NOT_DIRECT
    assert peers.refusal(ends._replace(host="127.0.0.2"), pid) == NOT_DIRECT
    assert peers.refusal(ends._replace(local_host="127.0.0.2"), pid) == NOT_DIRECT


#: The same, but its main thread ends at once; a thread of its own stays.
WITHOUT_MAIN_THREAD = """import ctypes, socket, sys, threading
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
main = threading.main_thread().ident
def stay():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        pass
    print(1, flush=True)
    sys.stdin.read()
    __import__("os")._exit(0)
threading.Thread(target=stay).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.usefixtures("without_main_thread")
def test_a_process_whose_main_thread_has_ended_is_proven(stack: ExitStack) -> None:
    ends, pid = client(stack, "127.0.0.1", socket.AF_INET)
    assert PeerProcesses().refusal(ends, pid) == ""
    assert PeerProcesses().refusal(ends, os.getpid()) == NOT_DIRECT


@pytest.fixture
def without_main_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CLIENT", WITHOUT_MAIN_THREAD)


def test_a_process_that_closes_its_connection_before_the_answer_gets_that_as_the_reason(stack: ExitStack) -> None:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    with socket.create_connection(listener.getsockname()) as mine:
        accepted = stack.enter_context(listener.accept()[0])
        ends = Ends(*mine.getsockname(), *listener.getsockname())
        mine.send(b"all of it")
    assert PeerProcesses().refusal(ends, os.getpid()) == CLOSED
    assert accepted.recv(20) == b"all of it"
    assert PeerProcesses().refusal(ends, os.getpid()) == CLOSED


def test_two_connections_from_one_port_to_two_addresses_are_told_apart(stack: ExitStack) -> None:
    here = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = here.getsockname()[1]
    stack.enter_context(socket.create_server(("127.0.0.2", port)))
    clients = [stack.enter_context(socket.socket()) for _ in range(2)]
    for one in clients:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    clients[0].bind(("127.0.0.1", 0))
    clients[1].bind(clients[0].getsockname())
    for one, address in zip(clients, ("127.0.0.1", "127.0.0.2"), strict=True):
        one.connect((address, port))
        host, bound = one.getsockname()
        assert _inode(Ends(host, bound, address, port)) == os.fstat(one.fileno()).st_ino
    assert clients[0].getsockname() == clients[1].getsockname()


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "127.0.0.1"])  # noqa: S104 - here alone
def test_a_listener_with_the_clients_port_is_not_the_client(address: str, stack: ExitStack) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    victim = stack.enter_context(socket.create_server((address, 0), family=family))
    port = victim.getsockname()[1]
    # A client on another machine may have any port.
    for client_host, here in (("10.77.0.2", "10.77.0.1"), ("127.0.0.1", "127.0.0.1"), ("fd00::2", "fd00::1")):
        assert _inode(Ends(client_host, port, here, 4318)) == 0
        assert PeerProcesses().refusal(Ends(client_host, port, here, 4318), os.getpid()) == NOT_DIRECT


def test_a_connection_that_has_ended_proves_nothing(stack: ExitStack) -> None:
    ends, pid = client(stack, "127.0.0.1", socket.AF_INET)
    peers = PeerProcesses()
    assert peers.refusal(ends, pid) == ""
    stack.close()
    assert peers.refusal(ends, pid) == NOT_DIRECT


@pytest.fixture
def ends(stack: ExitStack) -> Ends:
    """Those of a connection whose client is this process."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    mine = stack.enter_context(socket.create_connection(listener.getsockname()))
    stack.enter_context(listener.accept()[0])
    return Ends(*mine.getsockname(), *listener.getsockname())


def test_files_that_may_not_be_listed_are_another_reason(
    ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "5").mkdir()
    peers = PeerProcesses(tmp_path)
    assert peers.refusal(ends, 5) == NOT_DIRECT
    (tmp_path / "6" / "fd").mkdir(parents=True)
    (tmp_path / "6" / "fd" / "3").symlink_to(f"socket:[{_inode(ends)}]")
    assert peers.refusal(ends, 6) == ""
    (tmp_path / "7" / "fd").mkdir(parents=True)
    (tmp_path / "7" / "fd" / "3").symlink_to(f"socket:[{_inode(ends) + 1}]")
    assert peers.refusal(ends, 7) == NOT_DIRECT

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.scandir", refuse)
    assert peers.refusal(ends, 8) == NO_RIGHT


def test_a_refusal_is_looked_at_anew_after_a_while(ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    peers = PeerProcesses(tmp_path)
    assert peers.refusal(ends, 6) == NOT_DIRECT
    (tmp_path / "6" / "fd").mkdir(parents=True)
    (tmp_path / "6" / "fd" / "3").symlink_to(f"socket:[{_inode(ends)}]")
    assert peers.refusal(ends, 6) == NOT_DIRECT
    now_s[0] = 11.0
    assert peers.refusal(ends, 6) == ""


def test_the_search_of_files_takes_a_small_share_of_the_time(
    ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, searched = [0.0], []

    def search(_: PeerProcesses, pid: int, __: int) -> str:
        now_s[0] += 0.05
        searched.append(pid)
        return NOT_DIRECT

    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr(PeerProcesses, "_search", search)
    peers = PeerProcesses(tmp_path)
    for pid in range(1, 10_000):
        now_s[0] += 0.001
        peers.refusal(ends, pid)
    assert peers.refusal(ends, 20_000) == BUSY
    assert 0.02 * now_s[0] < 0.05 * len(searched) < 0.3 + 0.06 * now_s[0]
    now_s[0] += 10.0
    assert peers.refusal(ends, 20_000) == NOT_DIRECT


@given(st.text(max_size=40), st.integers(0, 65535), st.text(max_size=40), st.integers(0, 65535))
def test_no_address_is_an_error(host: str, port: int, local_host: str, local_port: int) -> None:
    assert _inode(Ends(host, port, local_host, local_port)) == 0


@pytest.mark.parametrize(
    ("text", "address"),
    [("::ffff:1.2.3.4", "1.2.3.4"), ("fe80::1%eth0", "fe80::1"), ("1.2.3.4", "1.2.3.4"), ("localhost", "None")],
)
def test_addresses(text: str, address: str) -> None:
    assert str(_address(text)) == address


def test_answers_do_not_grow_without_end(ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerProcesses, "_search", lambda *_: NOT_DIRECT)
    peers = PeerProcesses(tmp_path)
    for pid in range(1, 6000):
        assert peers.refusal(ends, pid) == NOT_DIRECT
    assert len(peers._answers) == 4096
