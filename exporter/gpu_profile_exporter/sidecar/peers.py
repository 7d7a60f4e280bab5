"""Whether a request came from the process that its resource names."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import islice
from pathlib import Path
from typing import Final

from gpu_profile_exporter.server.connection import Ends

#: Socket diagnostics of Linux, sock_diag(7): the request for one connection, by both of its ends.
_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_ANY_COOKIE: Final = b"\xff" * 8
_HEADER: Final = struct.Struct("=IHHII")
#: Family, protocol, extensions, padding, states; ports and addresses in network order, interface, cookie.
_QUERY: Final = struct.Struct("=BBBBI2s2s16s16sI8s")
_ERROR: Final = 2
#: An answer after its header: family, state, timer, retransmissions, the connection, four numbers and the inode.
_ANSWER: Final = struct.Struct("=BBBB2s2s16s16sI8s16xI")
_LISTENS: Final = 10
_ALL_STATES: Final = 0xFFFFFFFF
#: A refusal holds for this long, for example until a process has been given the right.
_HOLDS_S: Final = 10.0
_MOST_ANSWERS: Final = 4096
#: The files of processes are searched for at most this share of the time, so that other senders do not wait.
_MOST_SHARE: Final = 0.05
_BURST_S: Final = 0.2
#: The number of other threads whose files are searched if the main thread lists none. One may end meanwhile.
_MOST_THREADS: Final = 4
#: Instead of the inode of a socket that its process has closed.
_ABANDONED: Final = -1

NOT_DIRECT: Final = "its process.pid is not proven: its spans did not come straight from that process on this machine"
CLOSED: Final = (
    "its process.pid is not proven: its process closed the connection before the answer; it must wait for the answer"
)
NO_RIGHT: Final = "its process.pid cannot be checked: this needs the user of that process, or CAP_SYS_PTRACE"
BUSY: Final = "its process.pid was not checked: too many connections are new"


class PeerProcesses:
    """Proves that the sender of a request is the process with a given id.

    A process id is unique only within its pid namespace: every container has a process 1. The proof is that the
    process with this id, as `/proc` shows it here, holds the other end of the connection. It needs one network
    namespace and one pid namespace for both, an open connection, and the right to list the process's files (the same
    user, or CAP_SYS_PTRACE). Not for several threads at once.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        #: By process id and inode of the sender's socket: the time of the answer, and the answer.
        self._answers: OrderedDict[tuple[int, int], tuple[float, str]] = OrderedDict()
        self._spent_s, self._since_s = 0.0, time.monotonic()

    def refusal(self, ends: Ends, pid: int) -> str:
        """The reason why it is not proven that the process `pid` holds the client's end; empty if it is."""
        inode = _inode(ends) if pid > 0 else 0
        if inode <= 0:
            return CLOSED if inode == _ABANDONED else NOT_DIRECT
        now_s, key = time.monotonic(), (pid, inode)
        kept = self._answers.get(key)
        if kept is not None and (not kept[1] or now_s - kept[0] < _HOLDS_S):
            return kept[1]
        # The time that was spent is forgiven at a steady rate.
        self._spent_s = max(0.0, self._spent_s - _MOST_SHARE * (now_s - self._since_s))
        self._since_s = now_s
        if self._spent_s > _BURST_S:
            return BUSY
        answer = self._search(pid, inode)
        self._spent_s += time.monotonic() - now_s
        self._answers[key] = now_s, answer
        self._answers.move_to_end(key)
        while len(self._answers) > _MOST_ANSWERS:
            self._answers.popitem(last=False)
        return answer

    def _search(self, pid: int, inode: int) -> str:
        """Whether the process has a file that is this socket."""
        wanted, refusal = f"socket:[{inode}]", NOT_DIRECT
        for directory in self._listings(pid):
            try:
                with os.scandir(directory) as files:
                    lists_files = False
                    for file in files:
                        lists_files = True
                        with suppress(FileNotFoundError):
                            if os.readlink(file.path) == wanted:  # noqa: PTH115 - a link to nothing
                                return ""
            except PermissionError:
                refusal = NO_RIGHT
            except OSError:
                pass
            else:
                if lists_files:
                    return NOT_DIRECT
        return refusal

    def _listings(self, pid: int) -> Iterator[Path]:
        """The directories of the process's files, by the main thread and by the next ones: all threads have the same.

        A main thread that has ended (`pthread_exit`) has no files any more, and belongs to root.
        """
        process = self._proc / str(pid)
        yield process / "fd"
        with suppress(OSError), os.scandir(process / "task") as threads:
            for thread in islice((one for one in threads if one.name != str(pid)), _MOST_THREADS):
                yield Path(thread.path, "fd")


def _inode(ends: Ends) -> int:
    """The inode of the socket that is the client's end; `_ABANDONED` if its process has closed it.

    0 if it is not on this machine, or the kernel does not report it.
    """
    client, here = _address(ends.host), _address(ends.local_host)
    if client is None or here is None or client.version != here.version or not (ends.port and ends.local_port):
        return 0
    family = socket.AF_INET if client.version == 4 else socket.AF_INET6
    ports = ends.port.to_bytes(2, "big"), ends.local_port.to_bytes(2, "big")
    addresses = client.packed.ljust(16, b"\0"), here.packed.ljust(16, b"\0")
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES, *ports, *addresses, 0, _ANY_COOKIE)
    with (
        suppress(OSError),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel,
    ):
        kernel.settimeout(1.0)
        kernel.send(_HEADER.pack(_HEADER.size + len(query), _BY_FAMILY, _REQUEST, 1, 0) + query)
        answer = kernel.recv(4096)
        if len(answer) >= _HEADER.size + _ANSWER.size and _HEADER.unpack_from(answer)[1] != _ERROR:
            kind, state, _, _, *answered_ports, source, target, _, _, inode = _ANSWER.unpack_from(answer, _HEADER.size)
            # A client's socket for IPv6 may have an IPv4 connection.
            size = 4 if kind == socket.AF_INET else 16
            answered = [_plain(ip_address(each[:size])) for each in (source, target)]
            # Without such a connection the kernel names a listener with the client's port.
            if state != _LISTENS and answered_ports == [*ports] and answered == [client, here]:
                return int(inode) or _ABANDONED
    return 0


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """An address without its zone."""
    try:
        return _plain(ip_address(host.partition("%")[0]))
    except ValueError:
        return None


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An IPv4 address that is written as an IPv6 one, as an IPv4 address."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
