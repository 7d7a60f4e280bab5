"""Which requests were in prefill in which iteration, and with how many tokens. Pure.

Engines compute prompts in the order in which requests were scheduled, and cut the last one if an iteration is full. So
a request has all its remaining tokens in the iteration that gave its first token. The rest of the iteration's tokens
belongs to the next request in order.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu_profile.serving.pass_times import TimedPass
from gpu_profile.serving.request_spans import ServedRequest

#: An iteration with at least this share of the most tokens of any is full: chunks may be whole blocks of tokens.
_FULL: Final = 0.95
#: The most requests that wait for their prefill to leave.
_MOST: Final = 20_000


@dataclass(slots=True)
class _Prompt:
    """A request's prompt: the iteration that ended it, the tokens computed so far, and the cached tokens."""

    number: int
    request: ServedRequest
    at: int
    computed: int
    cached: int | None


class Chunk(NamedTuple):
    """The part of a prompt in one iteration: tokens that it computes, after `context` others."""

    prompt: _Prompt
    tokens: int
    context: int

    @property
    def number(self) -> int:
        """The request's number."""
        return self.prompt.number


class Prefilling:
    """The iterations with prefill that have not left, and the requests in them."""

    def __init__(self) -> None:
        self._at: list[int] = []
        self._ends: list[int] = []
        #: Their tokens of prefill and decode together, None if a message was lost, and the most so far.
        self._sizes: list[int | None] = []
        self._budget = 0
        self._prompts: list[_Prompt] = []

    def add(self, at: int, each: TimedPass) -> None:
        """Add the iteration at position `at`."""
        if each.message is None or each.message.prefills:
            self._at.append(at)
            self._ends.append(each.end_ns)
            size = None if each.message is None else each.message.prefill_tokens + each.message.decodes
            self._sizes.append(size)
            self._budget = max(self._budget, size or 0)

    def _full_between(self, at: int, end: int) -> bool:
        """Whether all iterations with prefill between two positions may be full: only then a prompt needs more."""
        low, high = bisect_left(self._at, at + 1), bisect_left(self._at, end)
        return all(size is None or size >= _FULL * self._budget for size in self._sizes[low:high])

    def ended_at(self, first_ns: int) -> int | None:
        """The position of the iteration from which a first token came at this time, None if there is none."""
        after = bisect_left(self._ends, first_ns)
        near = [each for each in (after - 1, after) if 0 <= each < len(self._ends)]
        best = min(near, key=lambda each: abs(self._ends[each] - first_ns), default=None)
        return None if best is None else self._at[best]

    def put(self, number: int, request: ServedRequest, at: int) -> None:
        """Add a request. Its prefill ended with the iteration at this position."""
        prompt = _Prompt(number, request, at, 0, request.cached)
        order = (at, request.scheduled_ns)
        place = next((n for n, each in enumerate(self._prompts) if (each.at, each.request.scheduled_ns) > order), None)
        self._prompts.insert(len(self._prompts) if place is None else place, prompt)
        del self._prompts[:-_MOST]

    def _continuing(self, at: int, each: TimedPass, tokens: int) -> list[_Prompt]:
        """The prompts that may have a part of the remaining tokens of an iteration, and end later: the likeliest first.

        A prompt is cut where the iteration is full, so that it takes all of the rest. A request is scheduled before
        its first iteration, and stamps are uncertain by some ms.
        """
        middle_ns = (each.start_ns + each.end_ns) // 2
        some = [
            prompt
            for prompt in self._prompts
            if prompt.at > at and prompt.request.scheduled_ns <= middle_ns and self._full_between(at, prompt.at)
        ]
        return sorted(some, key=lambda prompt: prompt.request.prompt - (prompt.cached or 0) - prompt.computed <= tokens)

    def chunks(self, at: int, each: TimedPass) -> list[Chunk]:
        """The parts of prompts in the iteration at a position, which is the first that has not left."""
        if each.message is None or not each.message.prefills:
            return []
        tokens, context = each.message.prefill_tokens, each.message.prefill_kv
        result: list[Chunk] = []
        ending = [prompt for prompt in self._prompts if prompt.at == at][: each.message.prefills]
        unclear = [prompt for prompt in ending if prompt.cached is None]
        for prompt in ending:
            if prompt.cached is not None:
                computed = min(max(0, prompt.request.prompt - prompt.cached - prompt.computed), tokens)
                result.append(Chunk(prompt, computed, prompt.cached + prompt.computed))
                tokens, context = tokens - computed, context - prompt.cached - prompt.computed
        # Prompts without reported cached tokens share the other tokens by their length.
        length = sum(prompt.request.prompt - prompt.computed for prompt in unclear)
        for prompt in unclear:
            left = prompt.request.prompt - prompt.computed
            computed = min(left, tokens * left // max(1, length))
            result.append(Chunk(prompt, computed, prompt.request.prompt - computed))
            tokens, length, context = tokens - computed, length - left, context - prompt.request.prompt + computed
        for prompt in self._continuing(at, each, tokens):
            if tokens <= 0 or len(result) >= each.message.prefills:
                break
            cached = prompt.cached
            if cached is None:
                cached = min(max(0, context), prompt.request.prompt - 1)
            computed = min(prompt.request.prompt - cached - prompt.computed, tokens)
            if computed > 0:
                result.append(Chunk(prompt, computed, cached + prompt.computed))
                tokens, context = tokens - computed, context - cached - prompt.computed
        return result

    def leave(self, at: int, chunks: list[Chunk]) -> None:
        """The iteration at a position has left, with these parts of prompts."""
        for prompt, tokens, context in chunks:
            if prompt.cached is None:
                prompt.cached = context - prompt.computed
            prompt.computed += tokens
        self._prompts = [each for each in self._prompts if each.at > at]
        gone = bisect_left(self._at, at + 1)
        del self._at[:gone], self._ends[:gone], self._sizes[:gone]
