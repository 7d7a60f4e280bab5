"""Receives the messages of engines in a thread of its own, so that the times of their arrival are exact."""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpu_profile.clock import Clock
from gpu_profile.errors import UsageError
from gpu_profile.serving.streams.forward_pass import frames_of
from gpu_profile.units import MIB

_log = logging.getLogger("gpu_profile_exporter")

#: The largest message.
MOST_BYTES: Final = MIB
#: Most messages of an engine that wait, and their bytes.
_MOST_WAITING, _MOST_WAITING_BYTES = 20_000, 16 * MIB
#: Messages of one engine in a row, before the others get their turn.
_IN_TURN: Final = 256
_STEP_MS: Final = 500
_UNIX: Final = "unix:"


class EngineMessage(NamedTuple):
    """The frames of a message, and the time of its arrival in ns since the epoch."""

    frames: Sequence[bytes]
    arrival_ns: int


class _MessageQueue:
    """The messages of one engine that wait. If there is no room, the newest is dropped and counted."""

    def __init__(self) -> None:
        self.messages: deque[EngineMessage] = deque()
        self.size = 0
        self.dropped: Counter[str] = Counter()

    def add(self, message: EngineMessage) -> None:
        size = sum(map(len, message.frames))
        if size > MOST_BYTES:
            self.dropped["too_large"] += 1
        elif len(self.messages) >= _MOST_WAITING or self.size + size > _MOST_WAITING_BYTES:
            self.dropped["no_room"] += 1
        else:
            self.messages.append(message)
            self.size += size

    def take(self) -> list[EngineMessage]:
        taken = [self.messages.popleft() for _ in range(len(self.messages))]
        self.size -= sum(len(frame) for message in taken for frame in message.frames)
        return taken


class EngineListener:
    """Listens to engines by name, from `start` to `stop`. A publisher may start later, and restart.

    An address is `tcp://HOST:PORT` or `ipc://PATH` of a ZeroMQ publisher, or `unix://PATH`, a local socket that this
    process makes for datagrams. Raises UsageError if packages are missing, or if an address cannot be used.
    """

    def __init__(self, addresses: Mapping[str, str], clock: Clock) -> None:
        try:
            import zmq
        except ImportError as error:
            raise UsageError("--serving: needs ZeroMQ: pip install 'gpu-profile[serving]'") from error
        owners: dict[str, str] = {}
        for name, address in addresses.items():
            place = str(_path(address)) if address.startswith(_UNIX) else address
            if (owner := owners.setdefault(place, name)) != name:
                # Each would have the other one's iterations, or one would take the other one's socket away.
                raise UsageError(f"--serving: {owner} and {name} have one address; each engine publishes at its own")
        self._zmq: Any = zmq
        self._clock = clock
        self._waiting = {name: _MessageQueue() for name in addresses}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._context = zmq.Context(io_threads=1)
        self._paths: list[Path] = []
        self._sockets: list[tuple[str, Any]] = []
        try:
            for name, address in addresses.items():
                self._sockets.append((name, self._open(name, address)))
        except BaseException:
            self.close()
            raise

    def _open(self, name: str, address: str) -> Any:
        if address.startswith(_UNIX):
            path = _path(address)
            try:
                made = _datagram_socket(path)
            except OSError as error:
                raise UsageError(f"--serving: {name}: {path}: {error.strerror or error}") from error
            self._paths.append(path)
            return made
        zmq = self._zmq
        subscriber = self._context.socket(zmq.SUB)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.RCVHWM, _MOST_WAITING),
            (zmq.MAXMSGSIZE, MOST_BYTES),
            (zmq.RECONNECT_IVL, 100),
            (zmq.RECONNECT_IVL_MAX, 2_000),
            # Otherwise a host that vanishes leaves a connection open for ever.
            (zmq.HEARTBEAT_IVL, 5_000),
            (zmq.HEARTBEAT_TIMEOUT, 15_000),
            (zmq.IPV6, 1),
        ):
            subscriber.setsockopt(option, value)
        subscriber.subscribe(b"")
        try:
            subscriber.connect(address)
        except zmq.ZMQError as error:
            subscriber.close()
            raise UsageError(f"--serving: {name}: {address}: {error}") from error
        return subscriber

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Receive in a background thread."""
        self._thread = threading.Thread(target=self._run, name="gpu-profile-engines", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close all sockets."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)
            self._thread = None
        for _, each in self._sockets:
            each.close()
        self._sockets = []
        self._context.destroy(linger=0)
        for path in self._paths:
            with suppress(OSError):
                path.unlink()
        self._paths = []

    def _run(self) -> None:
        poller = self._zmq.Poller()
        for _, each in self._sockets:
            poller.register(each, self._zmq.POLLIN)
        while not self._stop.is_set():
            try:
                ready = {key for key, _ in poller.poll(_STEP_MS)}
                for name, each in self._sockets:
                    key = each.fileno() if isinstance(each, socket.socket) else each
                    if key in ready:
                        self._receive(name, each)
            except Exception:  # noqa: BLE001 - a defect with one message must not end all engines' costs
                _log.exception("a message of an engine was not received; the next ones are")
                self._stop.wait(0.1)

    def _receive(self, name: str, each: Any) -> None:
        waiting = self._waiting[name]
        for _ in range(_IN_TURN):
            try:
                if isinstance(each, socket.socket):
                    frames = frames_of(each.recv(MOST_BYTES + 1, socket.MSG_DONTWAIT))
                else:
                    frames = each.recv_multipart(self._zmq.NOBLOCK)
            except (BlockingIOError, self._zmq.Again):
                return
            message = EngineMessage(frames, self._clock.now_ns())
            with self._lock:
                waiting.add(message)

    # ------------------------------------------------------------------ out

    def take(self, name: str) -> list[EngineMessage]:
        """The messages of an engine since the last call, in order of arrival."""
        with self._lock:
            return self._waiting[name].take()

    def dropped(self, name: str) -> Mapping[str, int]:
        """The number of an engine's dropped messages, by reason."""
        with self._lock:
            return dict(self._waiting[name].dropped)


def _path(address: str) -> Path:
    """The path of a local socket's address."""
    return Path("/" + address.removeprefix(_UNIX).lstrip("/"))


def _datagram_socket(path: Path) -> socket.socket:
    """A socket at this path that all users may write to; the directory's mode restricts them. An old one is removed."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(0, "exists and is no socket")
        path.unlink()
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        made.bind(os.fspath(path))
        path.chmod(0o666)
    except OSError:
        made.close()
        raise
    return made
