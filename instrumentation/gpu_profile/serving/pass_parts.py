"""Iterations with the parts of requests, from messages and from the requests that have a place in them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_profile.serving.forward_pass import BatchedRequest, ForwardPass
from gpu_profile.serving.pass_times import TimedPass
from gpu_profile.serving.work import UNKNOWN_REQUEST, DecodeRuns, Iterations, Parts, RequestPhase


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
    iterations without reported work."""

    def __init__(self) -> None:
        self.passes: list[TimedPass] = []
        self.lost: list[tuple[int, int]] = []
        self.unclear: list[tuple[int, int]] = []
        #: Requests, the tokens of prefill by which their parts may be off, and those by which their tenants' may be.
        self.unsure: list[tuple[int, int, int]] = []
        self._rows: list[tuple[int, int, int, list[float]]] = []
        self._runs = DecodeRuns.none()
        self._whole: list[bool] = []

    def add(self, some: Sequence[TimedPass], *, whole: bool) -> int:
        """Add iterations. `whole`: all their requests have parts or runs. Returns the index of the first one."""
        self.passes += some
        self._whole += [whole] * len(some)
        return len(self.passes) - len(some)

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

    def decode(self, runs: DecodeRuns) -> None:
        """Set the requests in decode."""
        self._runs = runs

    def phases(self, iteration: int, message: ForwardPass) -> None:
        """Add a part for each phase of an iteration, of no request."""
        if message.prefills:
            self.part(iteration, UNKNOWN_REQUEST, RequestPhase.PREFILL, prefills_work(message))
        if message.decodes:
            work = [float(message.decodes), 0.0, float(message.decode_kv), 0.0, float(message.decodes)]
            self.part(iteration, UNKNOWN_REQUEST, RequestPhase.DECODE, work)

    def iterations(self) -> Iterations:
        """All iterations with clear work. The times of the others are added to `unclear`."""
        if not self.passes:
            return Iterations.none()
        n, parts, runs = len(self.passes), self._parts(), self._runs
        work, unclear = runs.work(n), np.zeros(n, bool)
        np.add.at(work, parts.iteration, parts.work)
        for place in np.flatnonzero(~np.array(self._whole)).tolist():
            if (message := self.passes[place].message) is not None:
                stated = np.array([message.decodes, 0.0, message.decode_kv, 0.0, message.decodes]) + prefills_work(
                    message
                )
                work[place] = np.maximum(stated, work[place])
                unclear[place] = bool(message.decodes) and not message.decode_kv
        starts, ends, _ = zip(*self.passes, strict=True)
        times = np.array((starts, ends), np.int64)
        if unclear.any():
            self.unclear += [(int(low), int(high)) for low, high in times[:, unclear].T]
            kept = np.where(unclear, -1, np.cumsum(~unclear) - 1)
            clear = ~unclear[parts.iteration]
            parts = Parts(
                kept[parts.iteration[clear]], parts.request[clear], parts.phase[clear], parts.work[clear]
            )  # fmt: skip
            times, work, runs = times[:, ~unclear], work[~unclear], runs.moved(kept)
        return Iterations(times[0], times[1], work, parts, runs)

    def _parts(self) -> Parts:
        """The parts, in the order of iterations."""
        if not self._rows:
            return Parts.none()
        iteration, number, phase, work = zip(*self._rows, strict=True)
        return Parts(
            np.array(iteration, np.int64), np.array(number, np.int64), np.array(phase, np.int64),
            np.array(work, np.float64),
        )  # fmt: skip
