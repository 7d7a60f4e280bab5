"""Which requests were in which iteration, from the requests' spans and the iterations' counts. Pure.

A request's iterations of decode are chosen by the times of its first and its last token. Stamps are uncertain by some
ms, so that a choice may be off by one: `decoding` corrects it. Iterations leave in order, with the parts of requests.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpu_profile.serving.streams.decoding import DecodeFit, Decoding
from gpu_profile.serving.streams.pass_parts import PassBatch, prefill_work
from gpu_profile.serving.streams.pass_times import MOST_LOST, TimedPasses
from gpu_profile.serving.streams.prefill import Prefilling
from gpu_profile.serving.streams.prompt_shares import Chunk
from gpu_profile.serving.streams.request_spans import ServedRequest
from gpu_profile.serving.streams.workers import WorkerRole
from gpu_profile.serving.work import BatchedRequest, RequestPhase

if TYPE_CHECKING:
    from gpu_profile.serving.streams.message_types import ForwardPass

#: Tokens after the first one, per iteration in which a request could have been in decode: above the first ratio,
#: several tokens come from one iteration. Below the second one, the request was interrupted. A few are uncertain.
_SPECULATIVE, _INTERRUPTED, _EDGES = 1.2, 0.8, 3
#: The most iterations by which the first decode after a prefill may contradict the place of the last token.
_NEAR = 2
#: Requests with this many tokens count for the detection of speculative decoding, from this many requests on. Only the
#: latest ones do.
_LONG_ENOUGH, _ENOUGH, _MOST_RATIOS = 12, 10, 101
#: The least share of an iteration's tokens of prefill that its requests have.
_COMPUTED = 0.99
#: From this many iterations on that a request was not in since its prefill, it may have been interrupted in between.
_PAUSED = 2
#: Engines count the current token as context or not.
_CONTEXT_ROUNDING = 2
#: The weights of a new iteration and of a new request in the shares that do not fit, and the share from which no
#: request has a place in decode.
_NEW_MISFIT, _NEW_FAULT, _MOST_MISFIT = 0.01, 0.03, 0.1
#: Stamps may be so much too early.
_EARLY_NS = 20_000_000
_NO_DECODE = DecodeFit(0, agrees=True)
#: The most requests and iterations that wait.
MOST_REQUESTS, MOST_PASSES = 20_000, 100_000


class PlacingFault(StrEnum):
    """Why a request has no place in the iterations. Values of the label `reason`."""

    TOO_OLD = "iterations_gone"
    SPECULATIVE = "speculative_decoding"
    INTERRUPTED = "interrupted"
    FULL = "too_many_requests"
    STAGES = "pipeline_stages"


class _Pause(NamedTuple):
    """A request that may have been interrupted, and the positions of the iterations that gave its first and its last
    token. The engine computes an interrupted request again, as a prompt that no span describes."""

    number: int
    tenant: object
    first_at: int
    last_at: int


def _is_exact(message: ForwardPass, chunks: list[Chunk]) -> bool:
    """Whether prompts with these parts have all of an iteration's tokens of prefill."""
    return len(chunks) == message.prefills and sum(each.tokens for each in chunks) >= _COMPUTED * message.prefill_tokens


class Membership:
    """The iterations that wait for their requests. Requests are numbered by the caller, each with its own number.
    `role` is the part of requests that they compute."""

    def __init__(self, role: WorkerRole = WorkerRole.WHOLE) -> None:
        self._passes = TimedPasses.of((), (), [])
        #: The position of the first of them among all iterations.
        self._gone = 0
        self._decodes = Decoding()
        self._prefills = Prefilling(apart=role is WorkerRole.PREFILL)
        #: The tokens and iterations of the latest requests, and their sums.
        self._ratios: deque[tuple[int, int]] = deque()
        self._sums = 0, 0
        self._pauses: list[_Pause] = []
        #: The requests of the last iteration that the engine reported, and the lost ones since then.
        self._reported: dict[int, BatchedRequest] = {}
        self._lost = 1
        #: Iterations without parts for decode, because their requests disagree with their counts.
        self.disagreeing = 0
        #: The share of iterations that disagree, and of requests with more tokens than iterations.
        self._misfit, self._impossible = 0.0, 0.0

    def __len__(self) -> int:
        return len(self._passes.messages)

    @property
    def first_start_ns(self) -> int | None:
        """The start of the first iteration that waits."""
        return int(self._passes.starts[0]) if len(self) else None

    @property
    def delay_ns(self) -> int:
        """The delay of requests' stamps behind those of iterations."""
        return self._decodes.delay.ns

    @property
    def speculative(self) -> bool:
        """Whether requests get several tokens from one iteration."""
        tokens, iterations = self._sums
        return len(self._ratios) >= _ENOUGH and tokens > _SPECULATIVE * iterations

    def add(self, passes: TimedPasses) -> None:
        """Add iterations, later than all earlier ones."""
        if not passes.messages:
            return
        before, counts = self._gone + len(self), passes.counts
        self._passes = self._passes.followed_by(passes)
        for at in np.flatnonzero(counts.prefills).tolist():
            self._prefills.add(before + at, int(passes.starts[at]), int(passes.ends[at]), passes.messages[at])
        some = np.flatnonzero(counts.decodes)
        alone = (counts.reported[some] == 0) & (counts.prefills[some] == 0)
        self._decodes.add(
            before + some, passes.starts[some], passes.ends[some], counts.decodes[some], counts.context[some], alone
        )

    # ------------------------------------------------------------------ placing

    def place(self, number: int, request: ServedRequest) -> PlacingFault | None:
        """Find the iterations of a request, all of which have been added."""
        start_ns = self.first_start_ns
        if start_ns is None or request.end_ns < start_ns:
            return PlacingFault.TOO_OLD
        decodes = self._decodes
        if request.completion > 1:
            decodes.learn_delay(request.end_ns)
        first_ns, end_ns = request.first_token_ns - self.delay_ns, request.end_ns - self.delay_ns
        if decodes.requests >= MOST_REQUESTS:
            return PlacingFault.FULL
        # If the prefill has left, it can be nobody's any more. Decode still has its place. Iterations leave with all of
        # their requests, so that a stamp just before the first one means that one.
        left = first_ns < start_ns - _EARLY_NS
        prefill_at = None if left else self._prefills.ended_at(first_ns)
        tokens = request.completion - 1
        if tokens:
            last = decodes.nearest(end_ns)
            follows = None if prefill_at is None else decodes.after(prefill_at)
            if follows is not None:
                possible = max(1, last + 1 - follows)
                if tokens >= _LONG_ENOUGH:
                    self._add_ratio(tokens, possible)
                impossible = tokens > _SPECULATIVE * possible + _EDGES
                self._impossible += _NEW_FAULT * (impossible - self._impossible)
                if self.speculative or impossible:
                    return PlacingFault.SPECULATIVE
                if tokens < _INTERRUPTED * possible - _EDGES:
                    return PlacingFault.INTERRUPTED
                if possible - tokens >= _PAUSED and prefill_at is not None:
                    self._pauses.append(_Pause(number, request.tenant, prefill_at, decodes.position(last)))
                last = min(max(last, tokens - 1), len(decodes) - 1)
            if last < 0:
                return PlacingFault.TOO_OLD
            first = last - tokens + 1
            if follows is not None and abs(follows - first) <= _NEAR and follows + tokens <= len(decodes):
                # Decode follows the prefill directly. Few iterations have prefill, so that its place is surer.
                first = follows
            decodes.place(number, request.prompt, first, tokens)
        if prefill_at is not None:
            self._prefills.put(number, request, prefill_at)
        return None

    def _add_ratio(self, tokens: int, iterations: int) -> None:
        self._ratios.append((tokens, iterations))
        gone = self._ratios.popleft() if len(self._ratios) > _MOST_RATIOS else (0, 0)
        self._sums = self._sums[0] + tokens - gone[0], self._sums[1] + iterations - gone[1]

    # ------------------------------------------------------------------ leaving

    def leave(
        self, before_ns: int, number_of: Callable[[BatchedRequest], int], *, phases_only: bool, spans_until_ns: int = 0
    ) -> PassBatch:
        """The first iterations with all their requests, and all iterations that ended before a time.

        `number_of` numbers requests that the engine reports. `phases_only`: there are no requests, so that each
        iteration has a part for each phase. `spans_until_ns`: the spans of requests that ended before have come.
        """
        batch, usable, passes, decodes = PassBatch(), list[int](), self._passes, self._decodes
        decodes.count()
        ended_at: int | None = None
        while (place := len(batch)) < len(passes.messages):
            if not phases_only and (run := decodes.clear_run(len(usable), self._gone)) and self._is_clear:
                usable += range(place, place + run)
                self._misfit *= (1 - _NEW_MISFIT) ** run
                batch.add(run, whole=True)
                self._gone += run
                continue
            message, end_ns = passes.messages[place], int(passes.ends[place])
            index, chunks = -1, list[Chunk]()
            if message is None:
                batch.add(1, whole=False)
                self._lost += 1
            elif message.requests is not None:
                self._add_reported(batch, message.requests, number_of)
            elif phases_only:
                if end_ns > before_ns:
                    break
                batch.add(1, whole=False)
                batch.phases(place, message)
            else:
                late = end_ns <= before_ns or len(passes.messages) - place > MOST_PASSES
                fit = decodes.fitted(len(usable)) if message.decodes else _NO_DECODE
                chunks = self._prefills.chunks(self._gone)
                exact = _is_exact(message, chunks)
                if not late and (fit.excess or not self._has_prompts(message, chunks, exact=exact)):
                    ended_at = decodes.ended_at(spans_until_ns) if ended_at is None else ended_at
                    if self._gone >= ended_at:
                        break
                index = self._add_shared(batch, chunks, fit, exact=exact)
                if not exact and self._pauses:
                    self._add_lacking(batch, message.prefill_tokens - sum(chunk.tokens for chunk in chunks))
            if message is None or message.decodes:
                usable.append(index)
            self._prefills.leave(self._gone, chunks)
            self._gone += 1
        self._passes = passes.cut(len(batch))
        self._pauses = [each for each in self._pauses if each.last_at > self._gone]
        batch.close(passes.cut(0, len(batch)), decodes.leave(np.array(usable, np.int64)))
        return batch

    def _has_prompts(self, message: ForwardPass, chunks: list[Chunk], *, exact: bool) -> bool:
        """Whether no other prompt can have a part in the first iteration. `exact`: these have all of its tokens."""
        # Of an iteration in which all of its prompts end, no other span can come.
        ended = len(chunks) == message.prefills and all(chunk.prompt.at == self._gone for chunk in chunks)
        return exact or ended

    def _add_shared(self, batch: PassBatch, chunks: list[Chunk], fit: DecodeFit, *, exact: bool) -> int:
        """Add an iteration with prompts that have these parts. Returns its index, -1: without decode."""
        fits = fit.agrees and fit.excess <= 0
        self.disagreeing += not fits
        self._misfit += _NEW_MISFIT * ((not fits) - self._misfit)
        index = batch.add(1, whole=fit.agrees and not fit.excess and exact)
        for chunk in chunks:
            batch.part(index, chunk.number, RequestPhase.PREFILL, prefill_work(chunk.tokens, chunk.context))
            if chunk.unsure:
                batch.unsure.append((chunk.number, chunk.unsure, chunk.tenant_unsure))
        # Where many do not fit, the engine's clock is off, so that the others fit by chance.
        return index if fits and self._is_clear else -1

    def _add_reported(
        self, batch: PassBatch, requests: Sequence[BatchedRequest], number_of: Callable[[BatchedRequest], int]
    ) -> None:
        """Add an iteration with the requests that the engine reports."""
        place, before, self._reported = batch.add(1, whole=True), self._reported, {}
        for request in requests:
            number = number_of(request)
            batch.request(place, number, request)
            self._reported[number] = request
        if self._lost:
            batch.lacking += self._lost_tokens(before)
            self._lost = 0

    def _lost_tokens(self, before: dict[int, BatchedRequest]) -> Iterator[tuple[int, RequestPhase, float, int]]:
        """The tokens of requests in the lost iterations between reported ones. Contexts show them. Other requests may
        have ended there. The energy that tenants lack follows from the windows."""
        for number, request in self._reported.items():
            last = before.pop(number, None)
            tokens = request.context - (last.context + last.tokens if last else 0)
            if tokens > _CONTEXT_ROUNDING:
                yield number, request.phase if last else RequestPhase.PREFILL, tokens, 0
        for number, last in before.items():
            bounded = last.phase is RequestPhase.DECODE and self._lost < MOST_LOST
            yield number, last.phase, self._lost if bounded else math.inf, 0

    def _add_lacking(self, batch: PassBatch, tokens: int) -> None:
        """Tokens of prompts without a span may be those of a request that was interrupted."""
        tenants = set[object]()
        for number, tenant, first_at, last_at in self._pauses:
            if tokens > 0 and first_at < self._gone < last_at:
                batch.lacking.append((number, RequestPhase.PREFILL, tokens, 0 if tenant in tenants else tokens))
                tenants.add(tenant)

    @property
    def _is_clear(self) -> bool:
        return max(self._misfit, self._impossible) <= _MOST_MISFIT
