"""The thread that pushes the batches of a queue, in order. Each is tried until it is accepted or dropped."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gpu_profile.catalogue import push as rows
from gpu_profile.clock import Alarm, Clock
from gpu_profile.units import NS_PER_S, nanoseconds
from gpu_profile_exporter.push.batch import Batch
from gpu_profile_exporter.push.outcome import MOST_PATIENCE_S, REASONS, Client, PushFailed
from gpu_profile_exporter.push.queue import BatchQueue, QueuedBatch
from gpu_profile_exporter.readings.readings import MetricReading

_log = logging.getLogger("gpu_profile_exporter")

#: The longest pause after the first failure. It doubles with each further one.
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
#: The most parts of refused batches that may be refused at once, and more of them a second. Each accepted part permits
#: two more: one bad request among many is found, and a receiver that refuses everything gets few requests more.
MOST_PARTS: Final = 500
PARTS_PER_S: Final = 50
#: The wait of an idle thread. A new batch wakes it.
_IDLE_S: Final = 3600.0

#: Reasons to drop batches: the values of `reason`.
GIVEN_UP: Final = ("queue full", "not taken", "stopped", "damaged")


#: Divides a request into two, and counts the items of the first. None if it cannot be divided.
Halved = Callable[[bytes], tuple[bytes, bytes, int] | None]


@dataclass(slots=True)
class SenderStats:
    """Counts of sent, rejected and dropped batches and items, and of failed tries by reason."""

    sent: int = 0
    sent_items: int = 0
    sent_bytes: int = 0
    rejected: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_items: Counter[str] = field(default_factory=Counter)
    last_success_ns: int | None = None


class Sender:
    """Pushes the batches of one signal in `queue` through `client`, oldest first.

    A try takes at most `timeout_s`. A temporary failure is followed by a pause. It gets longer each time, and is random
    so that ten thousand nodes do not retry at the same time. A pause requested by the server takes precedence.

    A batch that is refused for its content is divided by `halved`, and its parts are tried: it may have requests of
    several clients.
    """

    def __init__(
        self,
        signal: str,
        client: Client,
        *,
        where: str,
        timeout_s: float,
        clock: Clock,
        queue: BatchQueue,
        rng: random.Random,
        halved: Halved = lambda _: None,
    ) -> None:
        self.signal = signal
        self.stats = SenderStats()
        self._client, self._where, self._timeout_s = client, where, timeout_s
        self._clock, self._rng = clock, rng
        self._queue, self._halved = queue, halved
        self._parts, self._parts_at_ns = float(MOST_PARTS), clock.elapsed_ns()
        self._lock = threading.Lock()
        self._tries = 0
        self._pause_until_ns = self._paused_at_ns = 0
        #: The key of the last logged state, so that only changes are logged.
        self._logged = ""
        self._logged_full = False
        self._wake, self._stop = Alarm(), threading.Event()
        self._end_ns = 0
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ the queue

    def offer(self, batch: Batch) -> bool:
        """Queue a batch if the queue and the disk have room. Else False, without counting it as dropped."""
        with self._lock:
            if not self._queue.has_room(len(batch.packed)) or not self._queue.offer(batch):
                return False
        self._wake.set()
        return True

    def put(self, batch: Batch) -> None:
        """Queue a batch. If there is no room, the oldest are dropped."""
        with self._lock:
            dropped = self._drop("queue full", self._queue.put(batch))
        if dropped and not self._logged_full:
            self._logged_full = True
            _log.warning("OTLP %s: the queue is full: batches are dropped until %s is back", self.signal, self._where)
        self._wake.set()

    def has_room(self, size: int) -> bool:
        """True if a batch of this many bytes fits without dropping another."""
        return self._queue.has_room(size)

    def lose(self, items: int) -> None:
        """Count items for this endpoint as dropped, because their stored batch is damaged."""
        with self._lock:
            self.stats.dropped_items["damaged"] += items

    def _drop(self, reason: str, batches: Iterable[QueuedBatch]) -> int:
        n = 0
        for n, batch in enumerate(batches, start=1):  # noqa: B007 - counted
            self._queue.finished(batch)
            self.stats.dropped[reason] += 1
            self.stats.dropped_items[reason] += batch.items
        return n

    def waiting(self) -> tuple[int, int]:
        """The number of waiting batches, and their bytes in memory."""
        with self._lock:
            return len(self._queue), self._queue.bytes

    def readings(self, now_ns: int) -> Iterator[MetricReading]:
        """The sender's own metrics, all of one moment. Counters are published from 0, so that increase() sees the first
        failure."""
        with self._lock:
            return iter(list(self._readings(now_ns)))

    def _readings(self, now_ns: int) -> Iterator[MetricReading]:
        of, stats, length, size = {"signal": self.signal}, self.stats, len(self._queue), self._queue.bytes
        yield MetricReading(rows.SENT, of, stats.sent)
        yield MetricReading(rows.ITEMS, of, stats.sent_items)
        yield MetricReading(rows.BYTES, of, stats.sent_bytes)
        yield MetricReading(rows.REJECTED, of, stats.rejected)
        yield MetricReading(rows.QUEUE, of, length)
        yield MetricReading(rows.QUEUE_BYTES, of, size)
        yield MetricReading(rows.QUEUE_ITEMS, of, self._queue.items)
        if self._queue.disk_bytes is not None:
            yield MetricReading(rows.DISK, of, self._queue.disk_bytes)
            yield MetricReading(rows.RESTORED, of, self._queue.restored)
        if stats.last_success_ns is not None:
            yield MetricReading(rows.SUCCESS_AGE, of, max(0, now_ns - stats.last_success_ns) / NS_PER_S)
        for reason in REASONS:
            yield MetricReading(rows.FAILURES, {**of, "error.type": reason}, stats.failures[reason])
        for reason in GIVEN_UP:
            about = {**of, "reason": reason.replace(" ", "_")}
            yield MetricReading(rows.DROPPED, about, stats.dropped[reason])
            yield MetricReading(rows.DROPPED_ITEMS, about, stats.dropped_items[reason])

    # ------------------------------------------------------------------ one step

    def step(self, timeout_s: float | None = None) -> float:
        """Try the oldest batch, unless there is a pause. Returns the seconds until the next step."""
        pause_s = self._pause_s()
        if pause_s > 0:
            return pause_s
        with self._lock:
            waiting = self._queue.take()
        if waiting is None:
            return _IDLE_S
        batch, damaged = self._queue.content(waiting)
        if damaged and damaged == waiting.items:
            with self._lock:
                self._drop("damaged", [waiting])
            return 0.0
        try:
            taken = self._client.send(batch, self._timeout_s if timeout_s is None else timeout_s)
        except PushFailed as failure:
            if not (failure.content and self._divide(waiting, batch, failure, damaged)):
                self._fail(waiting, failure)
        except Exception as error:  # noqa: BLE001 - a defect with one batch must not stop the others
            _log.debug("it failed here", exc_info=True)
            self._fail(waiting, PushFailed("internal", f"was not tried: {type(error).__name__}: {error}", retry=False))
        else:
            self._succeed(waiting, batch, taken.rejected, taken.message, damaged)
        return self._pause_s() if self.waiting()[0] else _IDLE_S

    def _pause_s(self) -> float:
        now_ns = self._clock.now_ns()
        if now_ns < self._paused_at_ns:
            self._pause_until_ns = 0  # the clock was set back: the pause could last for hours
        return max(0, self._pause_until_ns - now_ns) / NS_PER_S

    def _succeed(self, waiting: QueuedBatch, batch: Batch, rejected: int, message: str, damaged: int) -> None:
        stats = self.stats
        rejected = min(rejected, batch.items)
        with self._lock:
            stats.sent += 1
            stats.sent_items += batch.items - rejected
            stats.rejected += rejected
            stats.dropped_items["damaged"] += damaged
            self._queue.finished(waiting)
        stats.sent_bytes += len(batch.packed)
        stats.last_success_ns = self._clock.now_ns()
        self._parts += 2 * waiting.part
        self._tries = 0
        self._logged_full = False
        if rejected or message:
            detail = f": {message}" if message else ""
            self._log_change("partial", f"rejects items of batches (first {rejected} of {batch.items}){detail}")
        elif self._logged and not waiting.part:
            self._logged = ""
            _log.info("OTLP %s: %s takes batches again", self.signal, self._where)

    def _divide(self, waiting: QueuedBatch, batch: Batch, failure: PushFailed, damaged: int) -> bool:
        """Queue the halves of a refused batch. False if it cannot be divided, or too many parts were refused."""
        now_ns = self._clock.elapsed_ns()
        self._parts = min(MOST_PARTS, self._parts + (now_ns - self._parts_at_ns) / NS_PER_S * PARTS_PER_S)
        self._parts_at_ns = now_ns
        self._parts -= waiting.part
        halves = self._halved(batch.unpacked()) if self._parts >= 1 else None
        if halves is None:
            return False
        first, second, items = halves
        items = min(items, batch.items)
        pack = partial(Batch, plain=True) if batch.plain else Batch.of
        parts = pack(first, items), pack(second, batch.items - items)
        self.stats.failures[failure.reason] += 1
        with self._lock:
            self.stats.dropped_items["damaged"] += damaged
            self._drop("queue full", self._queue.put_back_halves(waiting, parts))
        return True

    def _fail(self, batch: QueuedBatch, failure: PushFailed) -> None:
        self.stats.failures[failure.reason] += 1
        action = "tried again" if failure.retry else "dropped"
        self._log_change(f"{failure.reason} {failure.retry}", f"{failure}; the batch is {action}")
        if not failure.retry:
            with self._lock:
                self._drop("not taken", [batch])
            self._tries = 0
            return
        with self._lock:
            self._drop("queue full", self._queue.put_back(batch))
        longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._tries, 16))
        self._tries += 1
        pause_s = longest_s * self._rng.uniform(0.5, 1.0)
        if failure.after_s is not None:
            pause_s = min(MOST_PATIENCE_S, failure.after_s + self._rng.uniform(0.0, 0.1) * failure.after_s)
        self._paused_at_ns = self._clock.now_ns()
        self._pause_until_ns = self._paused_at_ns + nanoseconds(pause_s)

    def _log_change(self, key: str, text: str) -> None:
        if key != self._logged:
            self._logged = key
            _log.warning("OTLP %s: %s %s", self.signal, self._where, text)

    # ------------------------------------------------------------------ the thread

    def start(self) -> None:
        """Push in a separate thread until `ask_to_stop`."""
        self._thread = threading.Thread(target=self._run, name=f"gpu-profile-push-{self.signal}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        delay_s = 0.0
        while True:
            self._clock.wait(self._wake, delay_s)
            self._wake.clear()
            if self._stop.is_set():
                break
            delay_s = self.step()
        self._empty()

    def ask_to_stop(self, timeout_s: float) -> None:
        """Try the queued batches once more, within `timeout_s`, then end."""
        self._end_ns = self._clock.elapsed_ns() + nanoseconds(timeout_s)
        self._stop.set()
        self._wake.set()

    def wait_until_stopped(self, timeout_s: float) -> None:
        """Wait for the thread's end. A thread that hangs in the network is abandoned, as a daemon."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout_s)
        else:
            self._empty()
        self._client.close()  # this also ends a call that hangs, if the client can

    def _empty(self) -> None:
        """Push the remaining batches within the time, until the first failure."""
        if not self._throttled:
            self._pause_until_ns = 0
        while self.waiting()[0]:
            left_s = (self._end_ns - self._clock.elapsed_ns()) / NS_PER_S
            if left_s <= 0 or self._pause_s() > 0:
                break
            self.step(min(left_s, self._timeout_s))
        with self._lock:
            left = self._queue.clear()
            items = sum(batch.items for batch in left)
            if self._queue.kept:
                if items:
                    _log.info("OTLP %s: %d items stay on disk until the next start", self.signal, items)
            elif items:
                _log.warning(
                    "OTLP %s: %d items are dropped: the exporter stops, and %s did not take them in time",
                    self.signal,
                    items,
                    self._where,
                )
                self._drop("stopped", left)
            self._queue.close()

    @property
    def _throttled(self) -> bool:
        return self._logged.startswith("throttled")
