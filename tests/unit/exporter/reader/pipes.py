"""A reader process that is none, for the supervisor's state machine, and what a reader would say."""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict

from gpu_profile.catalogue import SIGNALS, Signal
from gpu_profile.catalogue.samples import Device
from gpu_profile_exporter.reader.heartbeat import CallInProgress
from gpu_profile_exporter.reader.process import ReaderProcess
from gpu_profile_exporter.reader.settings import ReaderSettings
from gpu_profile_exporter.reader.wire import Message


class Time:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeProcess:
    """What the supervisor is given instead of a `ReaderProcess`; a test sets what it would show."""

    def __init__(self, settings: ReaderSettings, time: Time) -> None:
        self.settings = settings
        self.key = settings.key
        self.only = settings.only
        self.watches: Mapping[int, str] = {}
        self.leave = frozenset(settings.leave)
        self.time = time
        self.started = self.heard = time.now
        self.turned = 0.0
        self.stale_since: float | None = None
        self.uuids: set[str] = set()
        self.fd, self.other = os.pipe()
        self.pid = id(self) % 100_000
        self.exit_code: int | None = None
        self.where: CallInProgress | None = None
        self.pipe_closed = self.handed_over = self.stopped = False
        self.reopened = self.sends = 0
        self.killed = self.closed = False
        #: Whether a kill ends it: not while a call holds it in the kernel.
        self.mortal = True
        self.waiting: list[Message] = []
        self.error: Exception | None = None

    @property
    def active(self) -> float:
        return max(self.heard, self.turned)

    def messages(self) -> Iterator[Message]:
        waiting, self.waiting = self.waiting, []
        if waiting:
            self.heard = self.time.now
        yield from waiting
        if self.error is not None:
            raise self.error

    def reads(self, index: int | None) -> bool:
        return ReaderProcess.reads(self, index)  # type: ignore[arg-type]

    def order_only(self, index: int) -> None:
        self.key = self.only = index
        self.handed_over = True

    def order_leave(self, indices: Collection[int]) -> None:
        self.leave = frozenset(indices)

    def order_watch(self, gpus: Mapping[int, str]) -> None:
        self.watches = gpus

    def order_send(self) -> None:
        self.sends += 1

    def order_reopen(self) -> None:
        self.uuids.clear()
        self.reopened += 1

    def kill(self) -> None:
        self.killed = True
        if self.mortal and self.exit_code is None:
            self.exit_code = -9

    def wait(self, timeout_s: float) -> bool:
        return self.exit_code is not None

    def close(self) -> None:
        self.closed = True
        os.close(self.fd)
        os.close(self.other)


def about(device: Device, *signals: Signal) -> Message:
    """That there is a device with these signals."""
    fields = {name: str(value) if name == "kind" else value for name, value in asdict(device).items()}
    return "device", fields, [(row.key, row in signals, "" if row in signals else "not there") for row in SIGNALS]


def state(
    uuid: str, *, up: bool = True, reason: str = "", processes: Collection[tuple[int, int, float | None]] = ()
) -> Message:
    """How a device is."""
    return "state", uuid, up, reason, 5 if processes else None, [list(use) for use in processes]


def a_round(
    samples: dict[str, list[tuple[Signal, int, int, int]]] | None = None,
    *,
    took: dict[str, int] | None = None,
    t_ns: int = 1,
) -> Message:
    """One round's end."""
    rows = {
        uuid: [number for row, *rest in found for number in (SIGNALS.index(row), *rest)]
        for uuid, found in (samples or {}).items()
    }
    return "round", t_ns, 1, 0, {"fast": 10}, {"device lost": 1}, took or {}, rows
