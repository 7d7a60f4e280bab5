"""What runs in one imitated pod: the sidecar, then the service beside it. The sidecar ends when the input does.

`python pod.py SPECIFICATION`, in JSON: the sidecar's words, where it listens, the service's words, and by port the unix
sockets through which this network namespace reaches what is outside of it.
"""

import asyncio
import contextlib
import fcntl
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

_SIOCSIFFLAGS, _UP = 0x8914, 1


def main(specification: str) -> None:
    told = json.loads(specification)
    with socket.socket() as any_socket, contextlib.suppress(PermissionError):
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP))
    asyncio.run(_run(told["sidecar"], told["listens"], told["service"], told["outside"]))


async def _run(sidecar: list[str], listens: int, service: list[str], outside: dict[str, str]) -> None:
    for port, path in outside.items():
        await asyncio.start_server(_carrying(path), "127.0.0.1", int(port))
    beside = subprocess.Popen(sidecar, stdin=subprocess.DEVNULL)
    try:
        await asyncio.to_thread(_wait, listens, beside)
        await asyncio.to_thread(subprocess.run, service, check=True, stdin=subprocess.DEVNULL)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        beside.terminate()
        await asyncio.to_thread(beside.wait, 20)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.05)
    raise SystemExit("the sidecar ended")


def _carrying(path: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await carried(reader, writer, await asyncio.open_unix_connection(path))

    return carry


async def carried(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Carry all that comes over one connection on to another, and back."""
    await asyncio.gather(_copy(reader, to[1]), _copy(to[0], writer))


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while part := await source.read(1 << 16):
            to.write(part)
            await to.drain()
    with contextlib.suppress(ConnectionError):
        to.close()


if __name__ == "__main__":
    main(sys.argv[1])
