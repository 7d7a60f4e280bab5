"""Queues requests until the samples of their spans have arrived, adds attributes, and forwards them."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from gpu_profile.catalogue import receive as rows
from gpu_profile.clock import Alarm, Clock
from gpu_profile.units import MIB, NS_PER_S, nanoseconds
from gpu_profile_exporter.push.batch import Batch
from gpu_profile_exporter.push.disk_queue import DiskQueue, QueuedItem
from gpu_profile_exporter.push.sender import Sender
from gpu_profile_exporter.readings.readings import MetricReading
from gpu_profile_exporter.sidecar.joining import JoinedRequest, SpanJoin
from gpu_profile_exporter.sidecar.request_costs import RequestCosts, SpanTicket
from gpu_profile_exporter.sidecar.trace_request import RequestPart, TraceRequest

_log = logging.getLogger("gpu_profile_exporter")

#: Longest wait of a request for samples. Then it is joined with the samples that have arrived.
DEADLINE_S: Final = 2.5
#: Most bytes of waiting requests, attributes included.
MOST_HELD: Final = 128 * MIB
#: Requests are forwarded together up to this size, which saves connections.
MOST_SENT: Final = 2 * MIB
#: Larger requests are forwarded in parts: collectors accept 4 MiB over gRPC and 20 MiB over HTTP.
_LARGEST: Final = 4 * MIB - (1 << 16)
#: Most bytes of a span's attributes. Room for them is reserved in advance.
_MOST_ADDED: Final = 1_024
#: The same for the cost of an LLM server's request.
_MOST_COST: Final = 512
_IDLE_S: Final = 3600.0
#: The shortest time from one step to the next. Requests that arrive meanwhile are processed and forwarded together: a
#: step and a connection take 0.6 ms of CPU, as much as a hundred spans.
_GATHER_S: Final = 0.01
#: Pause between two looks at the requests that wait for costs.
_COSTS_S: Final = 0.25
#: Above this share of the room, requests do not wait for costs.
_MOST_FOR_COSTS: Final = 0.5
#: Pause of receiving after the sender's disk queue was full.
_FULL_S: Final = 1.0
_OUTCOMES: Final = ("joined", "unjoined", "passed")


class _WaitingRequest(NamedTuple):
    joined: JoinedRequest
    deadline_ns: int
    reserved: int
    record: QueuedItem | None
    tickets: list[SpanTicket]


class _Ready(NamedTuple):
    """A request with attributes, in parts to forward. `outcomes`: spans by outcome."""

    held: _WaitingRequest
    parts: list[RequestPart]
    outcomes: Counter[str]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


class SpanPipeline:
    """Passes received requests with GPU attributes to `sender`. `gzip`: whether the sender compresses.

    With `costs`, requests with spans of an LLM server's requests also wait for their costs, and others overtake them.

    With `disk`, each request stays on disk until it is in the sender's queue. Requests that an earlier process left on
    disk are processed again.
    """

    def __init__(
        self,
        join: SpanJoin,
        sender: Sender,
        clock: Clock,
        *,
        gzip: bool,
        disk: DiskQueue | None = None,
        costs: RequestCosts | None = None,
    ) -> None:
        self.join = join
        self._costs = costs
        #: Requests that wait for costs alone.
        self._uncosted: list[_WaitingRequest] = []
        self.sender = sender
        self.outcomes: Counter[str] = Counter(dict.fromkeys(_OUTCOMES, 0))
        self._clock = clock
        self._gzip = gzip
        self._disk = disk
        self._left = deque(disk.left if disk is not None else ())
        self._held: deque[_WaitingRequest] = deque()
        self._reserved = self._spans = 0
        #: Nothing is received until this time, because the sender's disk queue was full.
        self._full_until_ns = 0
        self._taking, self._lock = threading.Lock(), threading.Lock()
        #: Locked while spans move on to the sender, so that a scrape counts each once.
        self._counting = threading.Lock()
        self._wake, self._stop = Alarm(), threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ in

    def take(self, request: TraceRequest) -> bool:
        """Accept a request. False if there is no room here or in the sender. From any thread."""
        with self._taking:
            reserved = self._room(request)
            if not reserved:
                return False
            record = None
            if self._disk is not None:
                record = self._disk.append(request.data, len(request), plain=True)
                if record is None:
                    return False
            self._hold(request, reserved, record)
        self._wake.set()
        return True

    def prompt(self) -> bool:
        """True if `take` need not wait now, neither for another request nor for a disk. From any thread."""
        return self._disk is None and not self._taking.locked()

    def _room(self, request: TraceRequest) -> int:
        """The bytes to reserve for a request; 0 if there is no room."""
        if 0 < self._full_until_ns - self._clock.now_ns() <= nanoseconds(_FULL_S):
            return 0
        reserved = len(request.data) + (_MOST_ADDED + (_MOST_COST if self._costs else 0)) * len(request)
        held = self._reserved + reserved
        return reserved if held <= MOST_HELD and self.sender.has_room(held) else 0

    def _hold(self, request: TraceRequest, reserved: int, record: QueuedItem | None) -> None:
        joined = self.join.take(request)
        tickets = self._costs.take(request) if self._costs is not None else []
        request.release()
        with self._lock:
            deadline_ns = self._clock.now_ns() + nanoseconds(DEADLINE_S)
            self._held.append(_WaitingRequest(joined, deadline_ns, reserved, record, tickets))
            self._reserved += reserved  # `step` may have released a part meanwhile
            self._spans += len(request)

    def _restore(self) -> None:
        """Process the requests that an earlier process left on disk, while there is room."""
        while self._left and self._disk is not None:
            record = self._left[0]
            content = self._disk.read(record)
            try:
                request = TraceRequest(content or b"")
            except ValueError:
                content = None
            if content is None:
                with self._counting:
                    self.outcomes["passed"] += record.items
                    self.sender.lose(record.items)
                self._disk.done(record)
            else:
                with self._taking:
                    reserved = self._room(request)
                    if not reserved:
                        return
                    self._hold(request, reserved, record)
            self._left.popleft()

    # ------------------------------------------------------------------ out

    def step(self, *, final: bool = False) -> float:
        """Forward the requests that need not wait, in order of arrival except for those that wait for costs. Returns
        the seconds until the next ones."""
        if self._left and not final:
            self._restore()
        now_ns = self._clock.now_ns()
        ready: list[_WaitingRequest] = []
        size, wait_s = 0, 0.1 if self._left else _IDLE_S
        with self._lock:
            while self._held and size < MOST_SENT:
                held = self._held[0]
                until_ns = min(held.joined.covered_ns, held.deadline_ns)
                # After the clock was set back, a deadline may be hours away.
                if not final and now_ns < until_ns <= now_ns + nanoseconds(DEADLINE_S):
                    wait_s = min(wait_s, (until_ns - now_ns) / NS_PER_S)
                    break
                self._held.popleft()
                if held.tickets and not final:
                    self._uncosted.append(held)
                else:
                    ready.append(held)
                    size += len(held.joined.request.data)
            ready += self._costed(final=final)
            if self._uncosted:
                wait_s = min(wait_s, _COSTS_S)
        if not ready:
            return wait_s
        together: list[_Ready] = []
        for one in (_Ready(held, *self._with_attributes(held.joined, held.tickets)) for held in ready):
            # A request in parts is sent alone: it is done when all its parts are.
            if together and (len(one.parts) > 1 or sum(each.size for each in (*together, one)) > MOST_SENT):
                self._send(together)
                together = []
            together.append(one)
            if len(one.parts) > 1:
                self._send(together)
                together = []
        self._send(together)
        with self._lock:
            # Only now: until a request is in the sender's queue, its reservation covers its room there.
            self._reserved -= sum(held.reserved for held in ready)
            self._spans -= sum(len(held.joined.request) for held in ready)
        return 0.0 if self._held else wait_s

    def _costed(self, *, final: bool) -> list[_WaitingRequest]:
        """Take the requests that need not wait for costs any more: all, if they fill too much of the room."""
        waiting = self._uncosted
        crowded = sum(held.reserved for held in waiting) > _MOST_FOR_COSTS * MOST_HELD
        if final or crowded or self._costs is None:
            self._uncosted = []
            return waiting
        ready: list[_WaitingRequest] = []
        self._uncosted = []
        for held in waiting:
            (ready if self._costs.are_ready(held.tickets) else self._uncosted).append(held)
        return ready

    def _send(self, together: list[_Ready]) -> None:
        """Pass requests to the sender. Requests that its disk queue rejects stay on disk and are sent later."""
        parts = [part for one in together for part in one.parts]
        if len(together) > 1:
            # A request is a list of ResourceSpans, so concatenated requests are one request.
            pieces = [piece for part in parts for piece in part.pieces]
            parts = [RequestPart(pieces, sum(part.size for part in parts), sum(part.spans for part in parts))]
        pack = Batch.of if self._gzip else partial(Batch, plain=True)
        batches = [pack(b"".join(part.pieces), part.spans) for part in parts]
        with self._counting:
            taken = all(map(self._offer, batches))
            for one in together if taken else ():
                self.outcomes.update(one.outcomes)
        if taken:
            for one in together:
                if one.held.record is not None and self._disk is not None:
                    self._disk.done(one.held.record)
        else:
            self._full_until_ns = self._clock.now_ns() + nanoseconds(_FULL_S)
            self._left.extendleft(one.held.record for one in reversed(together) if one.held.record is not None)

    def _offer(self, batch: Batch) -> bool:
        if self._disk is not None:
            return self.sender.offer(batch)
        self.sender.put(batch)
        return True

    def _with_attributes(
        self, joined: JoinedRequest, tickets: list[SpanTicket]
    ) -> tuple[list[RequestPart], Counter[str]]:
        """The request with attributes, in parts if it is too large; spans by outcome."""
        request = joined.request
        try:
            added = self.join.added(joined)
            passed = added.by_span.count(b"")
            if self._costs is not None:
                self._costs.add(added.by_span, tickets)
            parts = request.parts(request.by_scope(added.by_span), _LARGEST)
        except Exception as error:  # noqa: BLE001 - a defect must not lose spans
            if not self.join.counts["join errors"]:
                _log.exception("received spans could not be joined: %s", error)
            self.join.counts["join errors"] += 1
            return [RequestPart([request.data], len(request.data), len(request))], Counter(passed=len(request))
        joined_n = len(request) - passed - added.unjoined
        return parts, Counter(joined=joined_n, unjoined=added.unjoined, passed=passed)

    # ------------------------------------------------------------------ the thread

    def start(self) -> None:
        """Join and forward in background threads until `stop()`."""
        self.join.start()
        self.sender.start()
        self._thread = threading.Thread(target=self._run, name="gpu-profile-spans", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        delay_s = 0.0 if self._left else _IDLE_S
        began_ns = self._clock.elapsed_ns() - nanoseconds(_GATHER_S)
        while not self._stop.is_set():
            # Not on `_wake` at first: the thread that receives would have to wake this one for each step.
            gather_s = max(0.0, _GATHER_S - (self._clock.elapsed_ns() - began_ns) / NS_PER_S)
            self._clock.wait(self._stop, gather_s)
            self._clock.wait(self._wake, delay_s - gather_s)
            began_ns = self._clock.elapsed_ns()
            self._wake.clear()
            if self._stop.is_set():
                break
            try:
                delay_s = self.step()
            except Exception:  # noqa: BLE001 - a defect with one request must not block the following ones
                _log.exception("received spans were not sent on; the next ones are")
                delay_s = 0.0

    def stop(self, timeout_s: float = 2.0) -> None:
        """Forward the waiting requests within `timeout_s`. Later, they stay on disk or are dropped without one."""
        end_ns = self._clock.elapsed_ns() + nanoseconds(timeout_s)
        self.join.hurried = True
        self._stop.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout_s / 2)
        while (self._held or self._uncosted) and self._clock.elapsed_ns() < end_ns:
            self.step(final=True)
        if (waiting := self._waiting) and self._disk is None:
            _log.warning("%d received spans are dropped: there was no time to send them on", waiting)
        elif waiting:
            _log.info("%d received spans stay on disk until the next start", waiting)
        self.sender.ask_to_stop(max(0.0, end_ns - self._clock.elapsed_ns()) / NS_PER_S)
        self.sender.wait_until_stopped(max(0.0, end_ns - self._clock.elapsed_ns()) / NS_PER_S)
        self.join.stop()
        if self._disk is not None:
            self._disk.close()

    # ------------------------------------------------------------------ metrics

    @property
    def _waiting(self) -> int:
        """Spans that are not yet in the sender's queue, in memory or on disk only."""
        return self._spans + sum(record.items for record in list(self._left))

    def readings(self, now_ns: int) -> Iterator[MetricReading]:
        """Counts of received, waiting and forwarded spans."""
        with self._counting:
            outcomes, sent = [self.outcomes[outcome] for outcome in _OUTCOMES], list(self.sender.readings(now_ns))
        for outcome, n in zip(_OUTCOMES, outcomes, strict=True):
            yield MetricReading(rows.RECEIVED, {"outcome": outcome}, n)
        for reason in ("late", "impossible", "too_many"):
            counted = "executions left out" if reason == "too_many" else reason
            yield MetricReading(rows.LEFT_OUT, {"reason": reason}, self.join.counts[counted])
        yield MetricReading(rows.WAITING, {}, self._waiting)
        yield MetricReading(rows.LOST_ROWS, {}, self.join.lost_rows)
        yield from sent
