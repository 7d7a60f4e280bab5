"""Requests on their way: taken, held until the samples of their spans are there, given attributes, and sent on."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from gpu_profile.catalogue import attributes as names
from gpu_profile.catalogue import receive as rows
from gpu_profile.clock import Clock
from gpu_profile.units import MIB, NS_PER_S, nanoseconds
from gpu_profile_exporter.push.batch import Batch
from gpu_profile_exporter.push.sender import Sender
from gpu_profile_exporter.readings.readings import Reading
from gpu_profile_exporter.sidecar.joining import JoinedRequest, SpanJoin
from gpu_profile_exporter.sidecar.trace_request import TraceRequest

_log = logging.getLogger("gpu_profile_exporter")

#: A request waits at most this long for samples; then what is there must do.
DEADLINE_S: Final = 2.5
#: What may be held here, in bytes of requests.
MOST_HELD: Final = 64 * MIB
#: Requests are sent on together up to so many bytes, which saves connections; collectors take 4 MiB over gRPC.
MOST_SENT: Final = 2 * MIB
_IDLE_S: Final = 3600.0
_UNJOINED: Final = names.UNJOINED.name.encode()
_OUTCOMES: Final = ("joined", "unjoined", "passed")


class _Held(NamedTuple):
    joined: JoinedRequest
    deadline_ns: int


class SpanPipeline:
    """What is received goes to `sender` with what GPUs did. `gzip`: whether the sender packs what it sends."""

    def __init__(self, join: SpanJoin, sender: Sender, clock: Clock, *, gzip: bool) -> None:
        self.join = join
        self.sender = sender
        self.outcomes: Counter[str] = Counter(dict.fromkeys(_OUTCOMES, 0))
        self._clock = clock
        self._gzip = gzip
        self._held: deque[_Held] = deque()
        self._bytes = self._spans = 0
        self._taking, self._lock = threading.Lock(), threading.Lock()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ in

    def take(self, request: TraceRequest) -> bool:
        """Take a request in; False if there is no room, here or on the way on. From any thread."""
        with self._taking:
            if self._bytes + len(request.data) > MOST_HELD or self.sender.is_full:
                return False
            joined = self.join.take(request)
        with self._lock:
            self._held.append(_Held(joined, self._clock.now_ns() + nanoseconds(DEADLINE_S)))
            self._bytes += len(request.data)
            self._spans += len(request)
        self._wake.set()
        return True

    # ------------------------------------------------------------------ out

    def step(self, *, final: bool = False) -> float:
        """Send on what need not wait any more, in the order in which it came; the seconds until there may be more."""
        now_ns = self._clock.now_ns()
        ready: list[JoinedRequest] = []
        size, wait_s = 0, _IDLE_S
        with self._lock:
            while self._held and size < MOST_SENT:
                joined, deadline_ns = self._held[0]
                until_ns = min(joined.covered_ns, deadline_ns)
                # Where the clock was set back, a deadline may be hours away.
                if not final and now_ns < until_ns <= now_ns + nanoseconds(DEADLINE_S):
                    wait_s = (until_ns - now_ns) / NS_PER_S
                    break
                self._held.popleft()
                ready.append(joined)
                size += len(joined.request.data)
                self._bytes -= len(joined.request.data)
                self._spans -= len(joined.request)
        if not ready:
            return wait_s
        # A request is a list of ResourceSpans: two after one another are one.
        content = b"".join(map(self._with_attributes, ready))
        spans = sum(len(joined.request) for joined in ready)
        self.sender.put(Batch.of(content, spans) if self._gzip else Batch(content, spans, plain=True))
        return 0.0 if self._held else wait_s

    def _with_attributes(self, joined: JoinedRequest) -> bytes:
        try:
            added = self.join.added(joined)
            content = joined.request.with_attributes(added)
        except Exception as error:  # noqa: BLE001 - spans must not be lost to a defect of ours
            if not self.join.counts["join errors"]:
                _log.exception("received spans could not be joined: %s", error)
            self.join.counts["join errors"] += 1
            self.outcomes["passed"] += len(joined.request)
            return joined.request.data
        for group in added:
            joins = sum(map(bool, group))
            unjoined = sum(_UNJOINED in one for one in group) if joins else 0
            self.outcomes["joined"] += joins - unjoined
            self.outcomes["unjoined"] += unjoined
        self.outcomes["passed"] += len(joined.request) - sum(sum(map(bool, group)) for group in added)
        return content

    # ------------------------------------------------------------------ the thread

    def start(self) -> None:
        """Join and send on in threads of their own until `stop()`."""
        self.join.start()
        self.sender.start()
        self._thread = threading.Thread(target=self._run, name="gpu-profile-spans", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        delay_s = _IDLE_S
        while not self._stop.is_set():
            self._clock.wait(self._wake, delay_s)
            self._wake.clear()
            if self._stop.is_set():
                break
            delay_s = self.step()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Send on what is held, within this time; what the next receiver does not take by then is dropped."""
        end_ns = self._clock.now_ns() + nanoseconds(timeout_s)
        self._stop.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout_s / 2)
        while self._held and self._clock.now_ns() < end_ns:
            self.step(final=True)
        self.sender.ask_to_stop(max(0.0, end_ns - self._clock.now_ns()) / NS_PER_S)
        self.sender.wait_until_stopped(max(0.0, end_ns - self._clock.now_ns()) / NS_PER_S)
        self.join.stop()

    # ------------------------------------------------------------------ what it says

    def readings(self, now_ns: int) -> Iterator[Reading]:
        """What came in, what waits, and what went on."""
        for outcome in _OUTCOMES:
            yield Reading(rows.RECEIVED, {"outcome": outcome}, self.outcomes[outcome])
        for reason, counted in (("late", "late"), ("too_many", "executions left out")):
            yield Reading(rows.LEFT_OUT, {"reason": reason}, self.join.counts[counted])
        yield Reading(rows.WAITING, {}, self._spans)
        yield from self.sender.readings(now_ns)
