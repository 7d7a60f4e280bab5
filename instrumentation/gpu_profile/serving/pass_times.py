"""When the iterations of an engine ran, from the arrivals of messages without a time. Pure.

Messages give durations, and arrive late by varying delays. With `c` as the sum of durations so far, iteration `i` ended
at `c[i]` plus the least `arrival[j] - c[j]` of all later messages `j`. So messages are kept back for a short time, and
prompt ones correct late ones. A constant delay remains: the account's search for the counter's lag includes it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from itertools import islice, pairwise
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.serving.forward_pass import ForwardPass, MessageError, MessageFault

#: A message is kept back for this long, so that later ones correct its time.
KEPT_BACK_NS: Final = 500_000_000
#: A shorter time to the next iteration is the host's work for it. A longer one is idle.
HOST_GAP_NS: Final = 5_000_000
#: The most messages kept back: 8,000 iterations per second.
_MOST_KEPT: Final = 4096
#: The most lost iterations in a row that get places. More are one loss.
_MOST_LOST: Final = 256
#: Refused messages in a row whose sequence rises as one publisher's can: so many are a restart.
_RISING: Final = 8
#: If a message arrives this much before the one before, the clock was set back: times begin anew.
CLOCK_STEP_NS: Final = 1_000_000_000
#: An iteration without a duration began when the one before ended, if that was at most this long ago.
_UNTIMED_NS: Final = 1_000_000_000


class TimedPass(NamedTuple):
    """An iteration and its time, in ns since the epoch. `message` is None if it was lost."""

    start_ns: int
    end_ns: int
    message: ForwardPass | None


class PassTimes:
    """The iterations of one publisher, with times. A sequence that falls is a restart of the publisher.

    A sequence that the time since the last message cannot hold is refused: it is of another publisher, or wrong. If the
    next message continues it, or several in a row rise from it with gaps that the time can hold, it was a restart. All
    lost messages together are no more than the time can hold either.
    """

    def __init__(self) -> None:
        #: Of the messages that are kept back: their arrivals, the durations of their iterations, the numbers of lost
        #: messages before them, and whether each is a heartbeat.
        self._arrivals: list[int] = []
        self._walls: list[int] = []
        self._lost_before: list[int] = []
        self._idles: list[bool] = []
        self._messages: list[ForwardPass] = []
        self._sequence, self._refused = -1, -1
        #: Refused messages in a row that rise, and when the last one arrived.
        self._rising, self._refused_ns = 0, 0
        self._lost = 0
        #: The lost messages for which there is room at a time, besides those that later time can hold.
        self._room, self._room_ns = _MOST_KEPT, 0
        self._last_end_ns, self._typical_ns, self._idle = 0, 0, True
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
        if len(self._arrivals) >= _MOST_KEPT:
            self._lost = min(self._lost + 1, _MOST_LOST)
            raise MessageError(MessageFault.RATE)
        if arrival_ns < self.arrival_ns:
            if arrival_ns < self.arrival_ns - CLOCK_STEP_NS:
                self._drop(len(self._arrivals))
                self._last_end_ns, self.arrival_ns, self._idle = 0, arrival_ns, True
            arrival_ns = self.arrival_ns
        idle = message.idle
        self._walls.append(self._duration(message, arrival_ns, idle=idle))
        self._arrivals.append(arrival_ns)
        self._lost_before.append(self._lost)
        self._idles.append(idle)
        self._messages.append(message)
        self.arrival_ns, self._lost, self._idle = arrival_ns, 0, idle

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
        self._lost = min(self._lost + skipped, _MOST_LOST)
        self.gaps += skipped

    def _drop(self, n: int) -> None:
        for each in (self._arrivals, self._walls, self._lost_before, self._idles, self._messages):
            del each[:n]

    def _duration(self, message: ForwardPass, arrival_ns: int, *, idle: bool) -> int:
        """The duration of an iteration. One that the engine did not measure lasted since the one before, or as long as
        usual if that is not clear."""
        if message.wall_s or idle:
            return round(message.wall_s * 1e9)
        since_ns = arrival_ns - self.arrival_ns
        if self._idle or self._lost or since_ns > _UNTIMED_NS:
            return min(self._typical_ns, since_ns)
        self._typical_ns = round(0.9 * self._typical_ns + 0.1 * since_ns) if self._typical_ns else since_ns
        return since_ns

    def settled(self, now_ns: int) -> list[TimedPass]:
        """The iterations with final times, each once."""
        n, result = bisect_right(self._arrivals, now_ns - KEPT_BACK_NS), list[TimedPass]()
        if not n:
            return result
        starts, ends = self._times()
        last_ns = self._last_end_ns
        before = zip(starts, ends, self._lost_before, self._idles, self._messages, strict=True)
        after = zip([*starts[1:], 0], [*self._lost_before[1:], 1], [*self._idles[1:], True], strict=True)
        for (start, end, lost, idle, message), (later, later_lost, later_idle) in islice(
            zip(before, after, strict=True), n
        ):
            start_ns, end_ns = max(start, last_ns), max(end, last_ns + 1)
            if lost:
                until_ns = end_ns if idle else start_ns
                result += _lost(last_ns or until_ns, until_ns, lost)
            if idle:
                continue
            if not later_lost and not later_idle and 0 < later - end_ns < HOST_GAP_NS:
                end_ns = later
            result.append(TimedPass(start_ns if start_ns < end_ns else end_ns - 1, end_ns, message))
            last_ns = end_ns
        self._last_end_ns = last_ns
        self._drop(n)
        return result

    def _times(self) -> tuple[list[int], list[int]]:
        """The start and the end of each message that is kept back."""
        arrivals, walls = np.array(self._arrivals, np.int64), np.array(self._walls, np.int64)
        totals = np.cumsum(walls)
        ends = totals + np.minimum.accumulate((arrivals - totals)[::-1])[::-1]
        return (ends - walls).tolist(), ends.tolist()


def _held_in(length_ns: int) -> int:
    """The most messages that a time can hold."""
    return _MOST_KEPT * max(0, length_ns) // KEPT_BACK_NS


def _lost(start_ns: int, end_ns: int, count: int) -> list[TimedPass]:
    """Places for lost iterations, spread evenly over a time."""
    length_ns = max(end_ns - start_ns, 0)
    edges = [start_ns + length_ns * place // count for place in range(count + 1)]
    return [TimedPass(low, high, None) for low, high in pairwise(edges)]


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

    def settled(self, now_ns: int) -> dict[tuple[str, int], list[TimedPass]]:
        """By publisher: iterations with final times, each once. Publishers that are silent for 60 s end."""
        result = {key: passes for key, stream in self.streams.items() if (passes := stream.settled(now_ns))}
        for key in [key for key, stream in self.streams.items() if stream.arrival_ns < now_ns - 60_000_000_000]:
            if key not in result:
                self._gaps_before += self.streams.pop(key).gaps
        return result
