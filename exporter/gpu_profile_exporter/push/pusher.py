"""Runs the push: encodes readings at a fixed interval and events as they occur, and queues both for the senders."""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from gpu_profile.catalogue.samples import Event
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.units import MIB, NS_PER_S, nanoseconds
from gpu_profile_exporter.push.batch import Batch, Envelope
from gpu_profile_exporter.push.logs import log_batch
from gpu_profile_exporter.push.metrics import MetricEncoder
from gpu_profile_exporter.push.outcome import Client
from gpu_profile_exporter.push.queue import BatchQueue
from gpu_profile_exporter.push.sender import Sender
from gpu_profile_exporter.push.settings import Endpoint
from gpu_profile_exporter.readings.readings import MetricReading

_log = logging.getLogger("gpu_profile_exporter")

#: The time to wait for further events of a burst, so that they are sent together.
LINGER_S: Final = 0.2
#: The most events that wait to be encoded. The oldest are dropped.
_MOST_EVENTS: Final = 10_000
#: Limits of each signal's queue while an endpoint is away: an hour at the usual rate.
_MOST_BYTES: Final = 4 * MIB
_MOST_BATCHES: Final = 1_000


class Pusher:
    """Pushes the result of `readings` every `interval_s`, and each event passed to `event`.

    `metrics`, `logs`: the endpoints; None for a signal that is not pushed. `resource`: this exporter's resource
    attributes (`resource_attributes`). Counters of this process start when the pusher is made. UsageError if a package
    or a file that an endpoint needs is missing.

    The first reading is due at a random time within one interval, so that ten thousand nodes that start together do
    not push together.
    """

    def __init__(
        self,
        readings: Callable[[], Iterable[MetricReading]],
        *,
        metrics: Endpoint | None,
        logs: Endpoint | None = None,
        interval_s: float = 15.0,
        resource: tuple[tuple[str, str], ...] = (),
        version: str = "",
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        if not interval_s > 0:
            raise ValueError(f"the push interval must be positive, not {interval_s} s")
        self._read, self._clock = readings, clock
        self._interval_ns = nanoseconds(interval_s)
        self._rng = random.Random() if rng is None else rng  # noqa: S311 - spreads load, keeps no secret
        self._envelope = Envelope(resource, version)
        self._metrics = MetricEncoder(self._envelope, began_ns=clock.now_ns())
        self.senders: dict[str, Sender] = {}
        for signal, endpoint in (("metrics", metrics), ("logs", logs)):
            if endpoint is not None:
                self.senders[signal] = Sender(
                    signal,
                    client(endpoint, signal, version),
                    where=endpoint.url.partition("?")[0],
                    timeout_s=endpoint.timeout_s,
                    clock=clock,
                    queue=BatchQueue(_MOST_BYTES, _MOST_BATCHES),
                    rng=self._rng,
                )
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._due_ns = clock.now_ns() + round(self._rng.random() * self._interval_ns)
        self._problem = ""
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ any thread

    def start(self) -> None:
        """Read and push in separate threads until `stop()`."""
        for sender in self.senders.values():
            sender.start()
        self._thread = threading.Thread(target=self._run, name="gpu-profile-push", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Read and push a last time, within `timeout_s` in all. Batches that are not accepted by then are dropped."""
        end_ns = self._clock.elapsed_ns() + nanoseconds(timeout_s)
        self._stop.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout_s / 2)
        if thread is None or not thread.is_alive():
            self._take_events()
            self._take_readings()
        for sender in self.senders.values():
            sender.ask_to_stop(max(0.0, end_ns - self._clock.elapsed_ns()) / NS_PER_S)
        for sender in self.senders.values():
            sender.wait_until_stopped(max(0.0, end_ns - self._clock.elapsed_ns()) / NS_PER_S)

    def event(self, event: Event) -> None:
        """Queue this event as a log record. Never blocks. An event sink for a `Sampler`."""
        if "logs" in self.senders:
            self._events.append(event)
            self._wake.set()

    def readings(self, now_ns: int) -> Iterator[MetricReading]:
        """The push's own metrics. Counters are published from 0, so that increase() sees the first failure."""
        for sender in self.senders.values():
            yield from sender.readings(now_ns)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        delay_s = 0.0
        while not self._stop.is_set():
            if self._clock.wait(self._wake, delay_s):
                self._wake.clear()
                self._clock.wait(self._stop, LINGER_S)
            if not self._stop.is_set():
                delay_s = self.step()

    def step(self) -> float:
        """Queue new events, and the readings if they are due. Returns the seconds until the next step."""
        self._take_events()
        if "metrics" not in self.senders:
            return 3600.0
        now_ns = self._clock.now_ns()
        if self._due_ns - now_ns > self._interval_ns:  # the clock was set back
            self._due_ns = now_ns
        if now_ns >= self._due_ns:
            self._due_ns += self._interval_ns * (1 + (now_ns - self._due_ns) // self._interval_ns)
            self._take_readings()
        return max(0.0, (self._due_ns - self._clock.now_ns()) / NS_PER_S)

    def _take_events(self) -> None:
        events = [self._events.popleft() for _ in range(len(self._events))]
        if events:
            self._enqueue("logs", lambda: [log_batch(self._envelope, events, self._clock.now_ns())])

    def _take_readings(self) -> None:
        if "metrics" in self.senders:
            now_ns = self._clock.now_ns()
            self._enqueue("metrics", lambda: self._metrics.batches(self._read(), now_ns))

    def _enqueue(self, signal: str, encode: Callable[[], Iterable[Batch]]) -> None:
        sender = self.senders[signal]
        try:
            for batch in encode():
                sender.put(batch)
        except Exception as error:  # noqa: BLE001 - a defect in one reading must not end the push of all others
            sender.stats.failures["internal"] += 1
            problem = f"{type(error).__name__}: {error}"
            if problem != self._problem:
                self._problem = problem
                _log.exception("OTLP %s: encoding for the push failed: %s", signal, problem)


def client(endpoint: Endpoint, signal: str, version: str) -> Client:
    """The client for an endpoint. Imports gRPC only if the endpoint uses it."""
    user_agent = f"gpu-profile-exporter/{version or '0'}"
    if endpoint.protocol == "grpc":
        from gpu_profile_exporter.push.grpc_client import GrpcClient

        return GrpcClient(endpoint, signal, user_agent=user_agent)
    from gpu_profile_exporter.push.http_client import HttpClient

    return HttpClient(endpoint, user_agent=user_agent)
