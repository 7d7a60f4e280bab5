"""The way of iterations from messages to requests, one iteration after another: a reference for the way in blocks."""

from collections import deque
from itertools import accumulate, pairwise

from gpu_profile.serving.pricing.pipelines import _ENOUGH, _FORGET, _MOST_BATCHES, PipelineWatch
from gpu_profile.serving.streams.decoding import Decoding
from gpu_profile.serving.streams.membership import Membership
from gpu_profile.serving.streams.message_types import ForwardPass
from gpu_profile.serving.streams.pass_times import (
    _BYTES,
    _OWN,
    HOST_GAP_NS,
    KEPT_BACK_NS,
    PassCounts,
    PassTimes,
    TimedPasses,
)
from gpu_profile.serving.streams.workers import WorkerRole


class PlainTimes(PassTimes):
    """Finds the times of iterations one after another."""

    def settled(self, now_ns: int) -> TimedPasses:
        columns = self._columns()[:_OWN].tolist()
        kept: list[tuple[int, int, int, int, ForwardPass | None]] = list(zip(*columns, self._messages, strict=True))
        n = sum(arrival_ns <= now_ns - KEPT_BACK_NS for arrival_ns, *_ in kept)
        totals = list(accumulate(wall_ns for _, wall_ns, *_ in kept))
        delays = [arrival_ns - total for (arrival_ns, *_), total in zip(kept, totals, strict=True)]
        least = list(accumulate(reversed(delays), min))[::-1]
        ends = [total + delay for total, delay in zip(totals, least, strict=True)]
        rows, last_ns = list[tuple[int, int, ForwardPass | None]](), self._last_end_ns
        for place, (_, wall_ns, lost, idle, message) in enumerate(kept[:n]):
            start_ns, end_ns = max(ends[place] - wall_ns, last_ns), max(ends[place], last_ns + 1)
            if lost:
                until_ns = end_ns if idle else start_ns
                since_ns = last_ns or until_ns
                length_ns = max(until_ns - since_ns, 0)
                edges = [since_ns + length_ns * part // lost for part in range(lost + 1)]
                rows += [(low, high, None) for low, high in pairwise(edges)]
            if idle:
                continue
            _, later_wall_ns, later_lost, later_idle, _ = (
                kept[place + 1] if place + 1 < len(kept) else (0, 0, 1, True, 0)
            )
            if not later_lost and not later_idle:
                later_ns = ends[place + 1] - later_wall_ns
                end_ns = later_ns if 0 < later_ns - end_ns < HOST_GAP_NS else end_ns
            rows.append((start_ns, end_ns, message))
            last_ns = end_ns
        self._last_end_ns = last_ns
        del self._messages[:n], self._numbers[: n * _BYTES]
        return TimedPasses.of([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])


class PlainWatch(PipelineWatch):
    """Looks at iterations one after another."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: deque[tuple[tuple[int, int], int]] = deque(maxlen=_MOST_BATCHES)
        self._last = 0, 0

    def add(self, counts: PassCounts) -> None:
        for prefills, decodes, context, stages, reported in zip(*(each.tolist() for each in counts), strict=True):
            self.recognised |= stages > 1
            prompts, before = self._prompts, (decodes, context - decodes)
            self._prompts += max(prefills, 0)
            if decodes <= 0 or not context or reported:
                continue
            self._others *= 1 - _FORGET
            if before == self._last:
                self._others = max(0.0, self._others - 1)
            elif (was := dict(self._batches).get(before)) is not None and prompts - was < decodes:
                self._others += 1
                self.recognised |= self._others >= _ENOUGH
            self._last = decodes, context
            self._batches.append((self._last, prompts))


class PlainDecoding(Decoding):
    """Looks at each iteration on its own."""

    def clear_run(self, place: int, position: int) -> int:
        return 0


class PlainMembership(Membership):
    """Looks at each iteration on its own."""

    def __init__(self, role: WorkerRole = WorkerRole.WHOLE) -> None:
        super().__init__(role)
        self._decodes = PlainDecoding()
