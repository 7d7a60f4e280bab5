"""One reader process, as its keeper sees it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final

from gpu_profile_exporter.reader.launcher import Launcher
from gpu_profile_exporter.reader.settings import ReaderSettings
from gpu_profile_exporter.reader.whereabouts import Where, Whereabouts
from gpu_profile_exporter.reader.wire import Incoming, Message, send

_CHUNK: Final = 1 << 16


class ReaderProcess:
    """A process that was started: what it says, where it is, and an end to it.

    `key` is what it is for, `only` the one GPU that it reads, by NVML index.
    """

    def __init__(self, settings: ReaderSettings, launcher: Launcher) -> None:
        self.key = settings.key
        self.only = settings.only
        self.leave = frozenset(settings.leave)
        self.started = self.heard = time.monotonic()
        #: Whether it has told that the driver's library is another version's than the driver.
        self.stale_since: float | None = None
        #: The GPUs that it was ordered to listen to, by NVML index.
        self.watches: Mapping[int, str] = {}
        #: Whether it read others too when it was left with its GPU.
        self.handed_over = False
        #: The UUIDs that it has told of, since NVML was started.
        self.uuids: set[str] = set()
        #: Whether it has closed its end of the pipe: it is about to end, if it has not.
        self.hung_up = False
        self._incoming = Incoming()
        with ExitStack() as held:
            self._whereabouts = Whereabouts.create()
            held.callback(self._whereabouts.close)
            self.fd, out_fd = _pipe(held)
            orders_fd, self._orders = _pipe(held)
            os.set_blocking(self.fd, False)
            os.set_blocking(self._orders, False)
            self._child = launcher.launch(settings, (out_fd, orders_fd, self._whereabouts.fd))
            held.pop_all()
        os.close(out_fd)
        os.close(orders_fd)

    @property
    def pid(self) -> int | None:
        """Its process id; None while the launcher has not answered."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._child.poll()

    @property
    def where(self) -> Where | None:
        """What it is talking to."""
        return self._whereabouts.now()

    def messages(self) -> Iterator[Message]:
        """What it has said since; ends where there is nothing more for now. WireError for what is no message."""
        while True:
            try:
                data = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.hung_up = True
                return
            for message in self._incoming.feed(data):
                self.heard = time.monotonic()
                yield message
            if len(data) < _CHUNK:
                return

    def reads(self, index: int | None) -> bool:
        """Whether the GPU of this NVML index is its to read."""
        return index not in self.leave if self.only is None else index == self.only

    def order_only(self, index: int) -> None:
        """Have it go on with this GPU alone, by NVML index: it is in a call to it."""
        self.key = self.only = index
        self.handed_over = True
        self._order("only", index)

    def order_leave(self, indices: Collection[int]) -> None:
        """Have it leave these GPUs, by NVML index, to others."""
        self.leave = frozenset(indices)
        self._order("leave", sorted(indices))

    def order_watch(self, gpus: Mapping[int, str]) -> None:
        """Have it listen for events of these GPUs, UUIDs by NVML index."""
        self.watches = gpus
        self._order("watch", dict(gpus))

    def order_reopen(self) -> None:
        """Have it start NVML anew, after which a GPU may have another index."""
        self.uuids.clear()
        self._order("reopen")

    def _order(self, *order: Any) -> None:
        with suppress(OSError):  # it is gone, or hangs and does not read
            send(self._orders, order)

    def kill(self) -> None:
        """End it at once. What hangs in the kernel goes when the kernel lets it."""
        with suppress(OSError):
            self._child.kill()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within `timeout_s`."""
        return self._child.wait(timeout_s)

    def close(self) -> None:
        """Let go of what leads to it; it must have ended, or been killed."""
        os.close(self.fd)
        os.close(self._orders)
        self._whereabouts.close()


def _pipe(held: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for fd in ends:
        held.callback(os.close, fd)
    return ends
