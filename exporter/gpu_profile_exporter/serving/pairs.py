"""Joins the two parts of a request, of a prefill worker and of a decode worker, by the trace of their spans."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpu_profile.serving.streams.workers import WorkerRole

if TYPE_CHECKING:
    from gpu_profile.serving.streams.request_spans import ServedRequest
    from gpu_profile_exporter.serving.tickets import CostTicket

#: The attribute with which SGLang identifies a request on both workers.
BOOTSTRAP_ROOM: Final = "bootstrap_room"
#: The most parts in memory, of all traces and of one trace.
_MOST, _MOST_IN_TRACE = 10_000, 256


@dataclass(slots=True, eq=False)
class _Part:
    """A part of a request, with the identity of the request that both of its spans may have, and its other part."""

    room: str
    request: ServedRequest
    ticket: CostTicket
    other: _Part | None = None


class RequestPairs:
    """The latest requests of a server's two workers. Any thread may call `take`.

    A trace may have several requests. Both parts have the same number of tokens in their prompts, and the first token
    of the decode comes after the prefill has begun. Of several such parts, the same id goes first, then the decode that
    begins nearest to the prefill's end: that of the last try. Each prefill is in one total at most. Both workers are on
    this node, with one clock.

    Spans come in any order. A part that fits better takes the place of one that came before, which looks for another,
    so that the pairs do not depend on the order. A span that was sent keeps its total.
    """

    def __init__(self) -> None:
        self._parts: dict[bytes, list[_Part]] = {}
        self._kept = 0
        self._lock = threading.Lock()

    def take(self, trace: bytes, room: str, ticket: CostTicket) -> None:
        """Take a part, whose ticket has its request and its role. Joins it if the other part waits."""
        request = ticket.request
        if request is None:
            return
        ticket.paired = ticket.role is WorkerRole.DECODE
        part = _Part(room, request, ticket)
        with self._lock:
            others = self._parts.setdefault(trace, [])
            if any(part.ticket.role is each.ticket.role and part.request == each.request for each in others):
                return  # a copy, which the engine refuses
            _place(part, others)
            if len(others) >= _MOST_IN_TRACE:
                del others[0]
                self._kept -= 1
            others.append(part)
            self._kept += 1
            while self._kept > _MOST:
                self._kept -= len(self._parts.pop(next(iter(self._parts))))


def _place(part: _Part | None, others: list[_Part]) -> None:
    """Join a part with the one that fits best and has none that fits better. A part that loses its other part looks for
    another."""
    while part is not None:
        some = [(_distance(part, each), n) for n, each in enumerate(others) if _fits(part, each) and _free(part, each)]
        if not some:
            return
        best = others[min(some)[1]]
        loser = best.other
        if loser is not None:
            _ordered(loser, best)[1].ticket.prefill = loser.other = None
        part.other, best.other = best, part
        prefill, decode = _ordered(part, best)
        decode.ticket.prefill = prefill.ticket
        part = loser


def _free(part: _Part, other: _Part) -> bool:
    """Whether a part may be joined with this one: it has none that fits as well, and no total was sent."""
    before = other.other
    if any(each.ticket.sent for each in (part, other, before) if each and each.ticket.role is WorkerRole.DECODE):
        return False
    return before is None or _distance(part, other) < _distance(before, other)


def _ordered(one: _Part, other: _Part) -> tuple[_Part, _Part]:
    """The prefill, and the decode."""
    return (one, other) if one.ticket.role is WorkerRole.PREFILL else (other, one)


def _distance(one: _Part, other: _Part) -> tuple[bool, int]:
    """Whether the ids differ, and the time between the end of the prefill and the begin of the decode."""
    prefill, decode = _ordered(one, other)
    return one.request.id != other.request.id, abs(decode.request.scheduled_ns - prefill.request.end_ns)


def _fits(one: _Part, other: _Part) -> bool:
    prefill, decode = _ordered(one, other)
    return (
        prefill.ticket.role is not decode.ticket.role
        and (prefill.room == decode.room or not prefill.room or not decode.room)
        and prefill.request.prompt == decode.request.prompt
        and prefill.request.scheduled_ns <= decode.request.first_token_ns
    )
