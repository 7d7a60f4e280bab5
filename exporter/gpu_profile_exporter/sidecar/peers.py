"""Whether a request came from the process that its resource names."""

from __future__ import annotations

import os
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

from gpu_profile_exporter.server.connection import Ends

#: An answer holds for this long: another process may get the port.
_HOLDS_S: Final = 10.0
_MOST_ANSWERS: Final = 4096
_TABLES: Final = ("tcp", "tcp6")
#: The fields of a line of /proc/net/tcp: local and remote address, and the socket's inode (proc(5)).
_LOCAL, _REMOTE, _INODE = 1, 2, 9


class PeerProcesses:
    """Proves that a peer is the process with a given id.

    A process id is unique only within its pid namespace: every container has a process 1. The proof is that the
    process with this id, as `/proc` shows it here, holds the other end of the connection. It needs one network
    namespace and one pid namespace for both, and the right to list the process's files (the same user, or
    CAP_SYS_PTRACE). Not for several threads at once.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._answers: OrderedDict[tuple[Ends, int], tuple[float, bool]] = OrderedDict()

    def proven(self, ends: Ends, pid: int) -> bool:
        """Whether the process `pid` holds the peer's end of the connection."""
        now_s, key = time.monotonic(), (ends, pid)
        kept = self._answers.get(key)
        if kept is not None and now_s - kept[0] < _HOLDS_S:
            return kept[1]
        answer = self._holds(pid, set(self._inodes(ends)))
        self._answers[key] = now_s, answer
        self._answers.move_to_end(key)
        while len(self._answers) > _MOST_ANSWERS:
            self._answers.popitem(last=False)
        return answer

    def _inodes(self, ends: Ends) -> Iterator[str]:
        """The inodes of the sockets that are the peer's end."""
        try:
            host = _plain(ip_address(ends.host.partition("%")[0]))
        except ValueError:
            return
        ports = f":{ends.port:04X}", f":{ends.local_port:04X}"
        for name in _TABLES:
            with suppress(OSError), (self._proc / "net" / name).open(encoding="ascii", errors="replace") as lines:
                for line in lines:
                    fields = line.split()
                    if len(fields) <= _INODE or fields[_INODE] == "0":
                        continue
                    local, remote = fields[_LOCAL], fields[_REMOTE]
                    if local.endswith(ports[0]) and remote.endswith(ports[1]) and _address(local) == host:
                        yield fields[_INODE]

    def _holds(self, pid: int, inodes: set[str]) -> bool:
        if not inodes or pid <= 0:
            return False
        wanted = {f"socket:[{inode}]" for inode in inodes}
        with suppress(OSError), os.scandir(self._proc / str(pid) / "fd") as files:
            for file in files:
                with suppress(OSError):
                    if os.readlink(file.path) in wanted:  # noqa: PTH115 - a link to nothing
                        return True
        return False


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """The address of `ADDRESS:PORT`: words of 32 bits in the machine's byte order, each as a hexadecimal number."""
    try:
        data = bytes.fromhex(text.partition(":")[0])
    except ValueError:
        return None
    if len(data) not in (4, 16):
        return None
    if sys.byteorder == "little":
        data = b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4))
    return _plain(ip_address(data))


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An IPv4 address that is written as an IPv6 one, as an IPv4 address."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
