"""Iterations with the parts of requests, from messages and from the requests that have a place in them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpu_profile.serving.streams.pass_times import TimedPasses
from gpu_profile.serving.work import UNKNOWN_REQUEST, BatchedRequest, DecodeRuns, Iterations, Parts, RequestPhase

if TYPE_CHECKING:
    from gpu_profile.serving.streams.message_types import ForwardPass


def prefill_work(tokens: float, context: float) -> list[float]:
    """The work of a prefill of `tokens` after `context` others. Each token attends to the context and, on average, to
    half of the tokens that are computed with it."""
    return [tokens, tokens * (context + tokens / 2), 0.0, context, 1.0]


def prefills_work(message: ForwardPass) -> list[float]:
    """The work of all prefills of an iteration, from sums. For several, the squares of their tokens are estimated from
    the variance of the prompts' lengths, and all are taken to have the same context."""
    n, tokens, context = max(1, message.prefills), float(message.prefill_tokens), float(message.prefill_kv)
    variance = message.length_variance if n > 1 else 0.0
    squares = min(n * (variance + (tokens / n) ** 2), tokens**2)
    return [tokens, tokens * context / n + squares / 2, 0.0, context, float(message.prefills)]


class PassBatch:
    """Iterations that leave together. `lost` are the times of iterations without a message, and `unclear` the times of
    iterations without reported work: `iterations` sets both."""

    def __init__(self) -> None:
        self.lost: list[tuple[int, int]] = []
        self.unclear: list[tuple[int, int]] = []
        #: Requests, the tokens of prefill by which their parts may be off, and those by which their tenants' may be.
        self.unsure: list[tuple[int, int, int]] = []
        #: Requests, and by phase the tokens that may be theirs or their tenants' and are in no iteration.
        self.lacking: list[tuple[int, RequestPhase, float, int]] = []
        self._passes = TimedPasses.of((), (), [])
        self._rows: list[tuple[int, int, int, list[float]]] = []
        self._runs = DecodeRuns.none()
        self._whole: list[bool] = []

    def __len__(self) -> int:
        return len(self._whole)

    def add(self, count: int, *, whole: bool) -> int:
        """Add so many next iterations. `whole`: all their requests have parts or runs. Returns the index of the first
        one."""
        self._whole += [whole] * count
        return len(self._whole) - count

    def part(self, iteration: int, number: int, phase: RequestPhase, work: list[float]) -> None:
        """Add a part of an iteration."""
        self._rows.append((iteration, number, phase, work))

    def request(self, iteration: int, number: int, request: BatchedRequest) -> None:
        """Add the part of a request that the engine reported."""
        tokens, context = request.tokens, request.context
        work = prefill_work(tokens, context)
        if request.phase is RequestPhase.DECODE:
            work = [float(tokens), 0.0, float(context), 0.0, 1.0]
        self.part(iteration, number, request.phase, work)

    def phases(self, iteration: int, message: ForwardPass) -> None:
        """Add a part for each phase of an iteration, of no request."""
        if message.prefills:
            self.part(iteration, UNKNOWN_REQUEST, RequestPhase.PREFILL, prefills_work(message))
        if message.decodes:
            work = [float(message.decodes), 0.0, float(message.decode_kv), 0.0, float(message.decodes)]
            self.part(iteration, UNKNOWN_REQUEST, RequestPhase.DECODE, work)

    def close(self, passes: TimedPasses, runs: DecodeRuns) -> None:
        """Set the times and messages of all iterations, and their requests in decode."""
        self._passes, self._runs = passes, runs

    def iterations(self) -> Iterations:
        """All iterations with clear work."""
        passes, parts, runs = self._passes, self._parts(), self._runs
        if not passes.messages:
            return Iterations.none()
        work, good = runs.work(len(passes.messages)), np.ones(len(passes.messages), bool)
        np.add.at(work, parts.iteration, parts.work)
        for place in np.flatnonzero(~np.array(self._whole)).tolist():
            if (message := passes.messages[place]) is not None:
                stated = np.array([message.decodes, 0.0, message.decode_kv, 0.0, message.decodes])
                work[place] = np.maximum(stated + prefills_work(message), work[place])
            if message is None or (message.decodes and not message.decode_kv):
                good[place] = False
                times = int(passes.starts[place]), int(passes.ends[place])
                (self.lost if message is None else self.unclear).append(times)
        if good.all():
            return Iterations(passes.starts, passes.ends, work, parts, runs)
        kept, clear = np.where(good, np.cumsum(good) - 1, -1), good[parts.iteration]
        parts = Parts(kept[parts.iteration[clear]], parts.request[clear], parts.phase[clear], parts.work[clear])
        return Iterations(passes.starts[good], passes.ends[good], work[good], parts, runs.moved(kept))

    def _parts(self) -> Parts:
        """The parts, in the order of iterations."""
        if not self._rows:
            return Parts.none()
        iteration, number, phase, work = zip(*self._rows, strict=True)
        return Parts(
            np.array(iteration, np.int64), np.array(number, np.int64), np.array(phase, np.int64),
            np.array(work, np.float64),
        )  # fmt: skip
