"""When the iterations of an engine ran, from the arrivals of messages without a time. Pure.

Messages give durations, and arrive late by varying delays. With `c` as the sum of durations so far, iteration `i` ended
at `c[i]` plus the least `arrival[j] - c[j]` of all later messages `j`. So messages are kept back for a short time, and
prompt ones correct late ones. A constant delay remains: the account's search for the counter's lag includes it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import pairwise
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
#: If a message arrives this much before the one before, the clock was set back: times begin anew.
CLOCK_STEP_NS: Final = 1_000_000_000
#: An iteration without a duration began when the one before ended, if that was at most this long ago.
_UNTIMED_NS: Final = 1_000_000_000


class TimedPass(NamedTuple):
    """An iteration and its time, in ns since the epoch. `message` is None if it was lost."""

    start_ns: int
    end_ns: int
    message: ForwardPass | None


class _KeptPass(NamedTuple):
    """A message that is kept back, the duration of its iteration, and the number of lost messages before it."""

    arrival_ns: int
    wall_ns: int
    lost: int
    message: ForwardPass


class PassTimes:
    """The iterations of one publisher, with times. A sequence that falls is a restart of the publisher."""

    def __init__(self) -> None:
        self._kept: deque[_KeptPass] = deque()
        self._sequence = -1
        self._lost = 0
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
            MessageError: The message is a copy of the last one, or too many are kept back.
        """
        if message.sequence == self._sequence:
            raise MessageError(MessageFault.REPEATED)
        skipped = message.sequence - self._sequence - 1
        if message.sequence < self._sequence:
            skipped = min(message.sequence, 1)
        elif self._sequence < 0:
            skipped = 0
        self._sequence = message.sequence
        self._lost = min(self._lost + skipped, _MOST_LOST)
        self.gaps += skipped
        if len(self._kept) >= _MOST_KEPT:
            self._lost = min(self._lost + 1, _MOST_LOST)
            raise MessageError(MessageFault.RATE)
        if arrival_ns < self.arrival_ns - CLOCK_STEP_NS:
            self._kept.clear()
            self._last_end_ns, self.arrival_ns, self._idle = 0, arrival_ns, True
        arrival_ns = max(arrival_ns, self.arrival_ns)
        self._kept.append(_KeptPass(arrival_ns, self._duration(message, arrival_ns), self._lost, message))
        self.arrival_ns, self._lost, self._idle = arrival_ns, 0, message.idle

    def _duration(self, message: ForwardPass, arrival_ns: int) -> int:
        """The duration of an iteration. One that the engine did not measure lasted since the one before, or as long as
        usual if that is not clear."""
        if message.wall_s or message.idle:
            return round(message.wall_s * 1e9)
        since_ns = arrival_ns - self.arrival_ns
        if self._idle or self._lost or since_ns > _UNTIMED_NS:
            return min(self._typical_ns, since_ns)
        self._typical_ns = round(0.9 * self._typical_ns + 0.1 * since_ns) if self._typical_ns else since_ns
        return since_ns

    def settled(self, now_ns: int) -> list[TimedPass]:
        """The iterations with final times, each once."""
        kept, until_ns = self._kept, now_ns - KEPT_BACK_NS
        if not kept or kept[0].arrival_ns > until_ns:
            return []
        starts, ends = self._times()
        last_ns, result = self._last_end_ns, list[TimedPass]()
        for start, end, next_ns in zip(starts, ends, [*starts[1:], None], strict=True):
            if kept[0].arrival_ns > until_ns:
                break
            _, _, lost, message = kept.popleft()
            start_ns, end_ns = max(start, last_ns), max(end, last_ns + 1)
            if message.idle:
                if lost:
                    result += _lost(last_ns or end_ns, end_ns, lost)
                continue
            if lost:
                result += _lost(last_ns or start_ns, start_ns, lost)
            if next_ns is not None and 0 < next_ns - end_ns < HOST_GAP_NS and not kept[0].lost:
                end_ns = end_ns if kept[0].message.idle else next_ns
            result.append(TimedPass(start_ns if start_ns < end_ns else end_ns - 1, end_ns, message))
            last_ns = end_ns
        self._last_end_ns = last_ns
        return result

    def _times(self) -> tuple[list[int], list[int]]:
        """The start and the end of each message that is kept back."""
        arrivals, walls = np.array([each[:2] for each in self._kept], np.int64).T
        totals = np.cumsum(walls)
        ends = totals + np.minimum.accumulate((arrivals - totals)[::-1])[::-1]
        return (ends - walls).tolist(), ends.tolist()


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
                del self.streams[key]
        return result
