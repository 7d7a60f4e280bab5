"""When the iterations of an engine ran, from the arrivals of messages without a time. Pure.

Messages give durations, and arrive late by varying delays. With `c` as the sum of durations so far, iteration `i` ended
at `c[i]` plus the least `arrival[j] - c[j]` of all later messages `j`. So messages are kept back for a short time, and
prompt ones correct late ones. A constant delay remains: the account's search for the counter's lag includes it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Ints
from gpu_profile.serving.streams.forward_pass import MessageError, MessageFault
from gpu_profile.serving.work import BatchedRequest

if TYPE_CHECKING:
    from gpu_profile.serving.streams.message_types import ForwardPass

#: A message is kept back for this long, so that later ones correct its time.
KEPT_BACK_NS: Final = 500_000_000
#: A shorter time to the next iteration is the host's work for it. A longer one is idle.
HOST_GAP_NS: Final = 5_000_000
#: The most messages kept back, and of a step: in steps of 2 s, 1,600 iterations per second.
_MOST_KEPT: Final = 4096
#: The most lost iterations in a row that get places. More are one loss.
MOST_LOST: Final = 256
#: Refused messages in a row whose sequence rises as one publisher's can: so many are a restart.
_RISING: Final = 8
#: If a message arrives this much before the one before, the clock was set back: times begin anew.
CLOCK_STEP_NS: Final = 1_000_000_000
#: An iteration without a duration began when the one before ended, if that was at most this long ago.
_UNTIMED_NS: Final = 1_000_000_000
#: The counts of a lost iteration.
_LOST: Final = -1, -1, 0, 1, 0
#: The numbers that are kept of a message, of which the first `_OWN` are not the fields of `PassCounts`.
_OWN: Final = 4
_KEPT: Final = _OWN + len(_LOST)
_packed: Final = Struct(f"{_KEPT}q").pack
_BYTES: Final = 8 * _KEPT


class PassCounts(NamedTuple):
    """The requests of iterations in prefill and in decode (-1: the message was lost), the context of the latter, the
    stages of the engine's pipeline, and 1 if the engine reported the requests: `[n]` each."""

    prefills: Ints
    decodes: Ints
    context: Ints
    stages: Ints
    reported: Ints


class TimedPasses(NamedTuple):
    """Iterations in order of time, with `starts` and `ends` in ns since the epoch. A message is None if it was lost.
    `columns` are the fields of `counts`: `[5, n]`."""

    starts: Ints
    ends: Ints
    messages: list[ForwardPass | None]
    columns: Ints

    @classmethod
    def of(cls, starts: Sequence[int], ends: Sequence[int], messages: list[ForwardPass | None]) -> TimedPasses:
        """The iterations with these times and messages."""
        columns = np.array([_counts_of(each) for each in messages], np.int64).reshape(-1, len(_LOST)).T
        return cls(np.array(starts, np.int64), np.array(ends, np.int64), messages, columns)

    @property
    def counts(self) -> PassCounts:
        """The counts in the messages."""
        return PassCounts(*self.columns)

    def cut(self, first: int, last: int | None = None) -> TimedPasses:
        """The iterations from index `first` to before `last`, or on."""
        some = slice(first, last)
        return TimedPasses(self.starts[some], self.ends[some], self.messages[some], self.columns[:, some])

    def followed_by(self, later: TimedPasses) -> TimedPasses:
        """These iterations and later ones."""
        starts, ends = (np.concatenate(each) for each in zip(self[:2], later[:2], strict=True))
        columns = np.concatenate((self.columns, later.columns), axis=1)
        return TimedPasses(starts, ends, self.messages + later.messages, columns)


def _counts_of(message: ForwardPass | None) -> tuple[int, int, int, int, int]:
    """The fields of `PassCounts` in a message."""
    if message is None:
        return _LOST
    return message.prefills, message.decodes, message.decode_kv, message.stages, int(message.requests is not None)


class PassTimes:
    """The iterations of one publisher, with times. A sequence that falls is a restart of the publisher.

    A sequence that the time since the last message cannot hold is refused: it is of another publisher, or wrong. If the
    next message continues it, or several in a row rise from it with gaps that the time can hold, it was a restart. All
    lost messages together are no more than the time can hold either.
    """

    def __init__(self) -> None:
        #: By message that is kept back, `_KEPT` numbers: its arrival and the duration of its iteration in ns, the lost
        #: messages before it, whether it is a heartbeat, and the fields of `PassCounts`. As bytes, because lists of
        #: numbers become arrays slowly.
        self._numbers = bytearray()
        self._messages: list[ForwardPass | None] = []
        self._sequence, self._refused = -1, -1
        #: Refused messages in a row that rise, and when the last one arrived.
        self._rising, self._refused_ns = 0, 0
        self._lost = 0
        #: The lost messages for which there is room at a time, besides those that later time can hold.
        self._room, self._room_ns = _MOST_KEPT, 0
        self._last_end_ns, self._typical_ns, self._idle = 0, 0, True
        #: The requests of the last iteration that have not ended, if the engine reports them.
        self._open: tuple[BatchedRequest, ...] = ()
        #: Lost messages so far, and when the last one arrived.
        self.gaps, self.arrival_ns = 0, 0

    @property
    def busy(self) -> bool:
        """Whether requests ran at the last message."""
        return not self._idle

    def take(self, message: ForwardPass, arrival_ns: int) -> None:
        """Add a message.

        Raises:
            MessageError: The message is a copy of the last one, its sequence is impossible, or too many are kept back.
        """
        if message.sequence != self._sequence + 1 and self._sequence >= 0:
            self._skip(message.sequence, arrival_ns)
        self._sequence, self._refused = message.sequence, -1
        if len(self._messages) >= _MOST_KEPT:
            self._lost = min(self._lost + 1, MOST_LOST)
            raise MessageError(MessageFault.RATE)
        if arrival_ns < self.arrival_ns:
            if arrival_ns < self.arrival_ns - CLOCK_STEP_NS:
                self._numbers, self._messages = bytearray(), []
                self._last_end_ns, self.arrival_ns, self._idle = 0, arrival_ns, True
            arrival_ns = self.arrival_ns
        idle = not (message.prefills or message.decodes)
        timed = message.wall_s or idle
        wall_ns = round(message.wall_s * 1e9) if timed else self._duration(arrival_ns)
        self._numbers += _packed(
            arrival_ns, wall_ns, self._lost, idle, message.prefills, message.decodes, message.decode_kv, message.stages,
            message.requests is not None,
        )  # fmt: skip
        self._messages.append(message)
        if not idle:
            self._open = message.requests or ()
        elif message.ended:
            # Others may go on.
            self._open = tuple(each for each in self._open if each.id not in message.ended)
        self.arrival_ns, self._lost, self._idle = arrival_ns, 0, idle and not (message.ended and self._open)

    def _skip(self, sequence: int, arrival_ns: int) -> None:
        """Count the lost messages before one that does not continue the last one."""
        if sequence == self._sequence:
            raise MessageError(MessageFault.REPEATED)
        room = min(_MOST_KEPT, self._room + _held_in(self.arrival_ns - self._room_ns))
        possible = room + _held_in(arrival_ns - self.arrival_ns)
        before = sequence if sequence < self._sequence else sequence - self._sequence - 1
        skipped = min(sequence, 1) if sequence < self._sequence else before
        if before > possible:
            gap = sequence - self._refused - 1
            rises = self._refused >= 0 and 0 <= gap <= _held_in(arrival_ns - self._refused_ns)
            self._rising = self._rising + 1 if rises else 1
            self._refused, self._refused_ns = sequence, arrival_ns
            if not (rises and gap == 0) and self._rising < _RISING:
                raise MessageError(MessageFault.SEQUENCE)
            skipped = 1
        self._room, self._room_ns = max(0, possible - skipped), arrival_ns
        self._lost = min(self._lost + skipped, MOST_LOST)
        self.gaps += skipped

    def _duration(self, arrival_ns: int) -> int:
        """The duration of an iteration that the engine did not measure: since the one before, or as long as usual if
        that is not clear."""
        since_ns = arrival_ns - self.arrival_ns
        if self._idle or self._lost or since_ns > _UNTIMED_NS:
            return max(1, min(self._typical_ns, since_ns))
        self._typical_ns = round(0.9 * self._typical_ns + 0.1 * since_ns) if self._typical_ns else since_ns
        return max(1, since_ns)

    def settled(self, now_ns: int) -> TimedPasses:
        """The iterations with final times, each once."""
        arrivals, walls, lost, idle, *_ = columns = self._columns()
        n = int(np.searchsorted(arrivals, now_ns - KEPT_BACK_NS, side="right"))
        if not n:
            return TimedPasses.of((), (), [])
        totals = np.cumsum(walls)
        raw_ends = totals + np.minimum.accumulate((arrivals - totals)[::-1])[::-1]
        raw_starts, busy = raw_ends - walls, idle == 0
        some = np.flatnonzero(busy[:n])
        # Iterations that left have their times: the others end after them, one after another.
        last_ns, place = self._last_end_ns, np.arange(len(some))
        ends = np.maximum.accumulate(np.maximum(raw_ends[some] - place, last_ns + 1)) + place
        later = np.append(raw_starts[1:], 0)[some]
        follows = np.append(busy[1:] & (lost[1:] == 0), False)[some]
        ends = np.where(follows & (ends < later) & (later < ends + HOST_GAP_NS), later, ends)
        starts = np.maximum(raw_starts[some], np.append(last_ns, ends[:-1]))
        messages = self._messages
        result = TimedPasses(starts, ends, [messages[at] for at in some.tolist()], columns[_OWN:, some])
        for at in reversed(np.flatnonzero(lost[:n]).tolist()):
            # The places of lost iterations are spread evenly over the time before this message.
            i = bisect_left(some, at)
            since_ns = int(ends[i - 1]) if i else last_ns
            until_ns = int(starts[i]) if busy[at] else max(int(raw_ends[at]), since_ns + 1)
            since_ns, count = since_ns or until_ns, int(lost[at])
            edges = [since_ns + max(until_ns - since_ns, 0) * each // count for each in range(count + 1)]
            between = TimedPasses.of(edges[:-1], edges[1:], [None] * count)
            result = result.cut(0, i).followed_by(between).followed_by(result.cut(i))
        self._last_end_ns = int(ends[-1]) if len(ends) else last_ns
        del messages[:n], self._numbers[: n * _BYTES]
        return result

    def _columns(self) -> Ints:
        """The numbers of the messages that are kept back: `[_KEPT, messages]`."""
        return np.array(np.frombuffer(self._numbers, np.int64).reshape(-1, _KEPT).T)


def _held_in(length_ns: int) -> int:
    """The most messages that a time can hold."""
    return _MOST_KEPT * max(0, length_ns) // KEPT_BACK_NS


class PublishedPasses:
    """The iterations of all publishers at one address, by worker and rank. Refused messages are counted by reason."""

    #: The most publishers at one address. A publisher that has been silent for the longest time leaves its place.
    MOST: Final = 64

    def __init__(self) -> None:
        self.streams: dict[tuple[str, int], PassTimes] = {}
        self.refused: dict[MessageFault, int] = defaultdict(int)
        self._gaps_before = 0

    @property
    def gaps(self) -> int:
        """Lost messages so far, of all publishers that there were."""
        return self._gaps_before + sum(stream.gaps for stream in self.streams.values())

    def take(self, message: ForwardPass, arrival_ns: int) -> None:
        """Add a message to the iterations of its publisher."""
        key = message.worker, message.rank
        stream = self.streams.get(key)
        if stream is None:
            if len(self.streams) >= self.MOST:
                self.refused[MessageFault.STREAMS] += 1
                return
            stream = self.streams[key] = PassTimes()
        try:
            stream.take(message, arrival_ns)
        except MessageError as error:
            self.refused[error.fault] += 1

    def settled(self, now_ns: int) -> dict[tuple[str, int], TimedPasses]:
        """By publisher: iterations with final times, each once. Publishers that are silent for 60 s end."""
        settled = {key: stream.settled(now_ns) for key, stream in self.streams.items()}
        result = {key: passes for key, passes in settled.items() if passes.messages}
        for key in [key for key, stream in self.streams.items() if stream.arrival_ns < now_ns - 60_000_000_000]:
            if key not in result:
                self._gaps_before += self.streams.pop(key).gaps
        return result
