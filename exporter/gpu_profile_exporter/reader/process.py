"""One reader process, from the supervisor's side."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final

from gpu_profile_exporter.reader.heartbeat import CallInProgress, Heartbeat
from gpu_profile_exporter.reader.launcher import Launcher
from gpu_profile_exporter.reader.settings import ReaderSettings
from gpu_profile_exporter.reader.usage import blocked, stopped
from gpu_profile_exporter.reader.wire import Incoming, Message, send

_CHUNK: Final = 1 << 16


class ReaderProcess:
    """Starts a process, receives its messages, sends it orders and kills it.

    `key`: its purpose (`ReaderSettings.key`). `only`: the one GPU that it reads, by NVML index; None for several.
    `heard`: monotonic time of its last message.
    """

    def __init__(self, settings: ReaderSettings, launcher: Launcher) -> None:
        self.key = settings.key
        self.only = settings.only
        self.leave = frozenset(settings.leave)
        self.started = self.heard = time.monotonic()
        #: When it reported that the driver's library has another version than the driver. None if it did not.
        self.stale_since: float | None = None
        #: The GPUs that it was ordered to watch for events: UUIDs by NVML index.
        self.watches: Mapping[int, str] = {}
        #: Whether it read other GPUs too before it was restricted to its GPU.
        self.handed_over = False
        #: The UUIDs of the devices that it has listed since NVML was started.
        self.uuids: set[str] = set()
        #: Whether it has closed its end of the pipe: it has ended or is about to.
        self.pipe_closed = False
        self._incoming = Incoming()
        with ExitStack() as cleanup:
            self._heartbeat = Heartbeat.create()
            cleanup.callback(self._heartbeat.close)
            self.fd, out_fd = _pipe(cleanup)
            orders_fd, self._orders = _pipe(cleanup)
            os.set_blocking(self.fd, False)
            os.set_blocking(self._orders, False)
            self._child = launcher.launch(settings, (out_fd, orders_fd, self._heartbeat.fd))
            cleanup.pop_all()
        os.close(out_fd)
        os.close(orders_fd)

    @property
    def pid(self) -> int | None:
        """Its process id. None until the launcher has answered."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code. None while it runs."""
        return self._child.poll()

    @property
    def active(self) -> float:
        """Monotonic time of its last message or the end of its last turn; of its start before the first."""
        return max(self.heard, self._heartbeat.turned)

    @property
    def where(self) -> CallInProgress | None:
        """The call in progress. None if there is none."""
        return self._heartbeat.now(lambda: self.pid is not None and blocked(self.pid))

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return self.pid is not None and stopped(self.pid)

    def messages(self) -> Iterator[Message]:
        """Its new messages, until the pipe is empty. WireError for data that is no message."""
        while True:
            try:
                data = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.pipe_closed = True
                return
            for message in self._incoming.feed(data):
                self.heard = time.monotonic()
                yield message
            if len(data) < _CHUNK:
                return

    def reads(self, index: int | None) -> bool:
        """True if this process is to read the GPU of this NVML index."""
        return index not in self.leave if self.only is None else index == self.only

    def order_only(self, index: int) -> None:
        """Order it to read only this GPU, by NVML index: it is in a call to that GPU now."""
        self.key = self.only = index
        self.handed_over = True
        self._order("only", index)

    def order_leave(self, indices: Collection[int]) -> None:
        """Order it to read all GPUs except these, by NVML index."""
        self.leave = frozenset(indices)
        self._order("leave", sorted(indices))

    def order_watch(self, gpus: Mapping[int, str]) -> None:
        """Order it to watch these GPUs for events: UUIDs by NVML index."""
        self.watches = gpus
        self._order("watch", dict(gpus))

    def order_send(self) -> None:
        """Order it to send its samples now."""
        self._order("send")

    def order_reopen(self) -> None:
        """Order it to restart NVML. Afterwards a GPU may have another index."""
        self.uuids.clear()
        self._order("reopen")

    def _order(self, *order: Any) -> None:
        with suppress(OSError):  # it has ended, or it hangs and its pipe is full
            send(self._orders, order)

    def kill(self) -> None:
        """Kill it. A process in a kernel call ends only after the call returns."""
        with suppress(OSError):
            self._child.kill()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end. False if it still runs after `timeout_s`."""
        return self._child.wait(timeout_s)

    def close(self) -> None:
        """Close its pipes and its shared memory. It must have ended or been killed."""
        os.close(self.fd)
        os.close(self._orders)
        self._heartbeat.close()


def _pipe(cleanup: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for fd in ends:
        cleanup.callback(os.close, fd)
    return ends
