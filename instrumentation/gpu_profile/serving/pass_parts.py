"""Iterations with the parts of requests, from messages and from the requests that have a place in them. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.serving.forward_pass import BatchedRequest, ForwardPass
from gpu_profile.serving.pass_times import TimedPass
from gpu_profile.serving.work import QUANTITIES, UNKNOWN_REQUEST, Iterations, Parts, RequestPhase, WorkQuantity


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


class DecodeRows(NamedTuple):
    """A request in decode: its number, its iterations of the batch, and its context in each of them."""

    number: int
    iterations: Ints
    contexts: Floats


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
        self._decodes: list[DecodeRows] = []
        self._whole: list[bool] = []

    def add(self, each: TimedPass, *, whole: bool) -> int:
        """Add an iteration. `whole`: all its requests have parts. Returns its index."""
        self.passes.append(each)
        self._whole.append(whole)
        return len(self.passes) - 1

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

    def decode(self, rows: DecodeRows) -> None:
        """Add the parts of a request in decode."""
        if len(rows.iterations):
            self._decodes.append(rows)

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
        parts = self._parts()
        sums, stated = np.zeros((len(self.passes), QUANTITIES)), np.zeros((len(self.passes), QUANTITIES))
        np.add.at(sums, parts.iteration, parts.work)
        unclear = np.zeros(len(self.passes), bool)
        for place, each in enumerate(self.passes):
            message = each.message
            if message is None:
                continue
            stated[place] = prefills_work(message)
            stated[place] += [message.decodes, 0.0, message.decode_kv, 0.0, message.decodes]
            unclear[place] = bool(message.decodes) and not message.decode_kv and not self._whole[place]
        whole = np.array(self._whole)
        work = np.where(whole[:, None], sums, np.maximum(stated, sums))
        times = np.array([(each.start_ns, each.end_ns) for each in self.passes], np.int64)
        if unclear.any():
            self.unclear += [(int(low), int(high)) for low, high in times[unclear]]
            kept = np.cumsum(~unclear) - 1
            clear = ~unclear[parts.iteration]
            parts = Parts(
                kept[parts.iteration[clear]], parts.request[clear], parts.phase[clear], parts.work[clear]
            )  # fmt: skip
            times, work = times[~unclear], work[~unclear]
        return Iterations(times[:, 0], times[:, 1], work, parts)

    def _parts(self) -> Parts:
        """The parts, in the order of iterations."""
        if not self._rows and not self._decodes:
            return Parts.none()
        lengths = [len(each.iterations) for each in self._decodes]
        rows = sum(lengths)
        decode = np.zeros((rows, QUANTITIES))
        decode[:, [WorkQuantity.TOKENS, WorkQuantity.REQUESTS]] = 1.0
        iteration, number, phase = ([row[place] for row in self._rows] for place in range(3))
        numbers = np.repeat(np.array([each.number for each in self._decodes], np.int64), lengths)
        if rows:
            decode[:, WorkQuantity.DECODE_CONTEXT] = np.concatenate([each.contexts for each in self._decodes])
        work = np.array([row[3] for row in self._rows], np.float64).reshape(-1, QUANTITIES)
        result = Parts(
            np.concatenate([np.array(iteration, np.int64), *(each.iterations for each in self._decodes)]),
            np.concatenate([np.array(number, np.int64), numbers]),
            np.concatenate([np.array(phase, np.int64), np.full(rows, int(RequestPhase.DECODE))]),
            np.concatenate([work, decode]),
        )
        order = np.argsort(result.iteration, kind="stable")
        return Parts(result.iteration[order], result.request[order], result.phase[order], result.work[order])
