"""Which requests were in prefill in which iteration, and with how many tokens. Pure.

Engines compute prompts in the order in which requests were scheduled, and cut the last one if an iteration is full. So
a request has all its remaining tokens in the iteration that gave its first token. The rest of the iteration's tokens
belongs to the next request in order.
"""

from __future__ import annotations

from bisect import bisect_left, insort_right
from itertools import islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from gpu_profile.serving.streams.packing import PAGE, PassSums, PromptState, packed
from gpu_profile.serving.streams.prompt_shares import Chunk, Prompt, PromptShare, chunks_of
from gpu_profile.serving.streams.request_spans import ServedRequest

if TYPE_CHECKING:
    from gpu_profile.serving.streams.message_types import ForwardPass

#: An iteration with at least this share of the most tokens of any is full: chunks may be whole blocks of tokens.
_FULL: Final = 0.95
#: The most tokens are those of the latest iterations with prefill: of at least so many, and at most twice as many. An
#: engine may restart with a smaller limit.
_LATEST: Final = 1000
#: Two iterations that end in so short a time may be taken for each other.
_NEAR_NS: Final = 30_000_000
#: The weight of a new prompt in its tenant's usual share of computed tokens, and the most tenants with one.
_NEW, _MOST_TENANTS = 0.05, 1000
#: The time from a prefill worker's iteration to its answers: at least, and at most.
_ANSWERS_NS: Final = (-20_000_000, 1_000_000_000)
#: A position after all others.
_NEVER: Final = 2**62
#: The most requests that wait for their prefill to leave.
_MOST: Final = 20_000
#: More tokens than a prompt has.
_MOST_TOKENS: Final = 10**12


def _order(prompt: Prompt) -> tuple[int, int]:
    return prompt.at, prompt.request.scheduled_ns


class _PrefillPass(NamedTuple):
    """An iteration with prefill: its position, and its start and end in ns. Of a lost one, `size` is None, and all
    else 0: its tokens of prefill and decode together, its prompts, their tokens, and the tokens before these."""

    at: int
    start_ns: int
    end_ns: int
    size: int | None
    prompts: int
    tokens: int
    stored: int


_AT, _END, _POSITION = itemgetter(0), itemgetter(2), attrgetter("at")


class Prefilling:
    """The iterations with prefill that have not left, and the requests in them. `apart`: the engine is a prefill
    worker. Its requests' stamps may be late."""

    def __init__(self, *, apart: bool = False) -> None:
        #: Whether prompts are identified by their tokens, and whether those of the last iteration are not certain.
        self._apart, self._packs, self._unsure = apart, False, True
        self._passes: list[_PrefillPass] = []
        #: The most tokens of an iteration, before and in the latest ones, and the number of these.
        self._most_before, self._most, self._seen = 0, 0, 0
        #: Iterations report the exact number of stored tokens before the computed ones.
        self._stores = False
        #: The result of `_full_until` for later calls, as thousands of iterations may wait. None: to be computed.
        self._not_full: int | None = None
        self._prompts: list[Prompt] = []
        #: By tenant: the usual share of a prompt that is computed.
        self._computed: dict[object, float] = {}

    def add(self, at: int, start_ns: int, end_ns: int, message: ForwardPass | None) -> None:
        """Add the iteration at position `at`, which has prefill or was lost."""
        if message is None:
            self._passes.append(_PrefillPass(at, start_ns, end_ns, None, 0, 0, 0))
        else:
            tokens, size = message.prefill_tokens, message.prefill_tokens + message.decodes
            self._passes.append(_PrefillPass(at, start_ns, end_ns, size, message.prefills, tokens, message.prefill_kv))
            self._most = max(self._most, size)
            self._stores |= message.prefill_kv > 0 and not message.estimated
        self._not_full = None
        self._seen += 1
        if self._seen == _LATEST:
            self._most_before, self._most, self._seen = self._most, 0, 0

    def _is_full(self, size: int) -> bool:
        """Whether an iteration of these tokens may be full."""
        return size >= _FULL * max(self._most_before, self._most)

    def _between(self, at: int, end: int) -> list[_PrefillPass]:
        """The iterations with prefill after a position and before another one."""
        low, high = (bisect_left(self._passes, each, key=_AT) for each in (at + 1, end))
        return self._passes[low:high]

    def _full_until(self, at: int) -> int:
        """The position of the first iteration with prefill after another one that is not full. A prompt whose part ends
        in the one at `at` goes on no further. The others' messages may have been lost."""
        if self._not_full is None or self._not_full <= at:
            later = islice(self._passes, bisect_left(self._passes, at + 1, key=_AT), None)
            not_full = (each.at for each in later if each.size is not None and not self._is_full(each.size))
            self._not_full = next(not_full, _NEVER)
        return self._not_full

    def ended_at(self, first_ns: int) -> int | None:
        """The position of the iteration from which a first token came at this time, None if there is none."""
        after = bisect_left(self._passes, first_ns, key=_END)
        near = self._passes[max(0, after - 1) : after + 1]
        best = min(near, key=lambda each: abs(each.end_ns - first_ns), default=None)
        return None if best is None else best.at

    def put(self, number: int, request: ServedRequest, at: int) -> None:
        """Add a request. Its prefill ended with the iteration at this position."""
        prompt = Prompt(number, request, at, 0, request.cached)
        packed_before, self._packs = self._packs, self._apart and request.cached is not None
        if packed_before and not self._packs:
            # Their order was that of the requests' spans.
            self._prompts.sort(key=_order)
        insort_right(self._prompts, prompt, key=_order)
        del self._prompts[:-_MOST]

    def _ending(self, at: int) -> list[Prompt]:
        """The prompts that the iteration at a position ended."""
        low, high = (bisect_left(self._prompts, each, key=_POSITION) for each in (at, at + 1))
        return self._prompts[low:high]

    def _learn(self, prompt: Prompt) -> None:
        """Learn the share of a tenant's prompts that is computed, from one with clear tokens."""
        tenant = prompt.request.tenant
        before = self._computed.pop(tenant, None)
        share = prompt.computed / prompt.request.prompt
        self._computed[tenant] = share if before is None else before + _NEW * (share - before)
        if len(self._computed) > _MOST_TENANTS:
            del self._computed[next(iter(self._computed))]

    def _left(self, prompt: Prompt, at: int) -> int:
        """The most tokens of a prompt in the iteration at a position. Tokens of later
        iterations that are its alone are not among them."""
        alone = (each.tokens for each in self._between(at, prompt.at + 1) if each.prompts == 1)
        return max(0, prompt.left - sum(alone))

    def _move_ends(self, here: _PrefillPass, after: _PrefillPass | None) -> None:
        """Move prompts between the first iteration and the next one if their numbers say so: stamps may be off by one
        iteration."""
        if after is None or after.end_ns - here.end_ns > _NEAR_NS:
            return
        while True:
            own, others = self._ending(here.at), self._ending(after.at)
            if len(own) > here.prompts:
                self._surplus(own, here.tokens).at = after.at
            elif len(own) < here.prompts and len(others) > after.prompts > 0:
                self._surplus(others, after.tokens).at = here.at
            else:
                return
            n = bisect_left(self._prompts, after.at + 1, key=_POSITION)
            self._prompts[:n] = sorted(self._prompts[:n], key=_order)

    @staticmethod
    def _surplus(some: list[Prompt], tokens: int) -> Prompt:
        """The one of several prompts that is not in an iteration with these tokens, else the last one."""
        whole = sum(prompt.left for prompt in some)
        return next((prompt for prompt in some if whole - prompt.left == tokens), some[-1])

    def _continuing(self, here: _PrefillPass, tokens: int) -> list[Prompt]:
        """The prompts that may have a part of the remaining tokens of an iteration, and end later: the likeliest first.

        A prompt is cut where the iteration is full, so that it takes all of the rest. A request is scheduled before
        its first iteration, and stamps are uncertain by some ms.
        """
        middle_ns = (here.start_ns + here.end_ns) // 2
        low, high = (
            bisect_left(self._prompts, 1 + each, key=_POSITION) for each in (here.at, self._full_until(here.at))
        )
        some = [
            prompt
            for prompt in islice(self._prompts, low, high)
            if prompt.request.scheduled_ns <= middle_ns and self._left(prompt, here.at)
        ]
        return sorted(some, key=lambda prompt: self._left(prompt, here.at) <= tokens)

    def _sums(self, each: _PrefillPass | None) -> PassSums | None:
        """The sums of an iteration with prefill, None if there is none or its message was lost."""
        if each is None or each.size is None:
            return None
        return PassSums(each.prompts, each.tokens, each.stored, self._is_full(each.size))

    def _packed(self, here: _PrefillPass, after: _PrefillPass | None) -> list[Chunk]:
        """The parts of prompts in an iteration of a prefill worker, by their tokens. None fit if it is empty."""
        low_ns, high_ns = (here.end_ns + late_ns for late_ns in _ANSWERS_NS)
        # The others were answered before.
        self._prompts = [prompt for prompt in self._prompts if prompt.request.first_token_ns >= low_ns]
        near = sorted(
            (prompt for prompt in self._prompts if prompt.request.first_token_ns <= high_ns),
            key=lambda prompt: prompt.request.first_token_ns,
        )
        states = [PromptState(prompt.request.prompt, prompt.left, prompt.computed > 0) for prompt in near]
        sums = self._sums(here)
        fit = packed(states, sums, self._sums(after), unsure=self._unsure) if sums is not None else None
        for prompt in self._prompts:
            if prompt.at <= here.at:
                prompt.at = here.at + 1
        if fit is None:
            return []
        result = [
            Chunk(near[i], tokens, near[i].request.prompt - tokens)
            for i, tokens in zip(fit.ended, fit.tokens, strict=True)
        ]
        for chunk in result:
            chunk.prompt.at = here.at
        if fit.goes_on is not None:
            prompt = near[fit.goes_on]
            result.append(Chunk(prompt, fit.rest, prompt.request.prompt - prompt.left))
        return result

    def chunks(self, at: int) -> list[Chunk]:
        """The parts of prompts in the iteration at a position, which is the first that has not left."""
        here, after = (*self._passes[:2], None, None)[:2]
        if here is None or here.at != at or not here.prompts:
            return []
        if self._packs:
            return self._packed(here, after)
        self._move_ends(here, after)
        tokens, context = here.tokens, here.stored
        result: list[Chunk] = []
        ending = self._ending(at)[: here.prompts]
        for prompt in ending:
            if prompt.cached is not None:
                computed = min(prompt.left, tokens)
                result.append(Chunk(prompt, computed, prompt.cached + prompt.computed))
                tokens, context = tokens - computed, context - prompt.cached - prompt.computed
        others = [prompt for prompt in ending if prompt.cached is None]
        missing = here.prompts - len(ending)
        more = self._continuing(here, tokens) if missing > 0 else []
        if others or any(prompt.cached is None for prompt in more[:missing]):
            return result + self._uncertain(here._replace(tokens=tokens, stored=context), others, more, missing)
        for prompt in more[:missing]:
            if (computed := min(self._left(prompt, at), tokens)) > 0:
                result.append(Chunk(prompt, computed, (prompt.cached or 0) + prompt.computed))
                tokens -= computed
        return [self._alone(here, result[0])] if len(result) == here.prompts == 1 and self._stores else result

    @staticmethod
    def _alone(here: _PrefillPass, chunk: Chunk) -> Chunk:
        """The part of the only prompt of an iteration, which reports how far the prompt was: an earlier part may have
        been another prompt's."""
        computed = here.stored - (chunk.prompt.cached or 0)
        if computed < 0 or here.stored + here.tokens > chunk.prompt.request.prompt:
            return chunk
        wrong, chunk.prompt.computed = abs(computed - chunk.prompt.computed), computed
        return Chunk(chunk.prompt, here.tokens, here.stored, wrong, wrong)

    def _uncertain(self, rest: _PrefillPass, ending: list[Prompt], more: list[Prompt], missing: int) -> list[Chunk]:
        """The parts of prompts if some do not report their cached tokens. `rest` has the sums without those of other
        prompts. `missing` prompts have a part and end later: `more` may be these.

        The tokens up to the end of a prompt's last part are its length. So the sums give the tokens up to the end of
        the part of a prompt that goes on, and contradict a wrong one.
        """
        until = rest.tokens + rest.stored - sum(prompt.request.prompt for prompt in ending)
        rounded, certain = (PAGE - 1) * len(ending), self._stores and missing == 1
        # Below 0, an earlier part of another prompt was wrong.
        before = rest.stored if self._stores and rest.stored >= 0 else _MOST_TOKENS
        clear = not self._stores or (not missing and 0 <= until <= rounded)
        if certain:
            fit = [prompt for prompt in more if self._goes_on(prompt, rest.at, until - rounded, until)]
            clear = certain = len(fit) == 1 and not self._has_rivals(fit[0])
            # If none fits, its span was lost, or the stamp of one is off by an iteration.
            more = fit or [prompt for prompt in more if not self._is_sure(prompt.at)]
        some = [PromptShare.until(prompt.request.prompt, prompt, rest.tokens, before) for prompt in ending]
        for prompt in more[:missing]:
            if certain:
                some.append(PromptShare.until(until, prompt, rest.tokens, before))
            else:
                some.append(PromptShare(prompt, int(clear), self._left(prompt, rest.at), None))
        usual = [self._computed.get(share.prompt.request.tenant, 1.0) for share in some]
        whole, clear = len(some) == len(ending) + missing, clear and rest.stored >= 0
        result = chunks_of(some, usual, rest.tokens, rest.stored, whole=whole, clear=clear)
        if missing or clear or not self._stores:
            return result
        # The stamp of one is off by an iteration, so that it has its tokens elsewhere.
        return [chunk._replace(unsure=chunk.prompt.request.prompt) for chunk in result]

    def _goes_on(self, prompt: Prompt, at: int, low: int, high: int) -> bool:
        """True if the sums of later iterations allow that `low` to `high` tokens of a prompt, cached or computed, were
        there after the iteration at a position."""
        if high <= (prompt.cached or 0) + prompt.computed - prompt.unsure:
            return False
        for each in self._between(at, prompt.at + 1):
            if each.size is None:
                return True
            alone = each.prompts == 1
            low, high = max(low, each.stored if alone else 0), min(high, each.stored)
            if low > high:
                return False
            low, high = low + (each.tokens if alone else 1), high + each.tokens
        return low - PAGE < prompt.request.prompt <= high

    def _has_rivals(self, prompt: Prompt) -> bool:
        """True if the span of a prompt was lost that may have the place of one that goes on after the first iteration:
        the next iteration with several prompts has one more than spans. At most its last prompt is cut."""
        for each in self._between(self._passes[0].at, prompt.at + 1):
            if each.size is None:
                return True
            if each.prompts > 1:
                return each.prompts > len(self._ending(each.at)) + self._is_full(each.size)
        return False

    def _is_sure(self, at: int) -> bool:
        """True if the prompts that end in the iteration at a position have all of its tokens."""
        some = self._ending(at)
        whole = sum(each.tokens + each.stored for each in self._between(at - 1, at + 1) if each.prompts == len(some))
        return 0 <= whole - sum(prompt.request.prompt for prompt in some) < PAGE * len(some)

    def leave(self, at: int, chunks: list[Chunk]) -> None:
        """The iteration at a position has left, with these parts of prompts."""
        if not self._passes or self._passes[0].at > at:
            return
        for chunk in chunks:
            if chunk.clear and chunk.prompt.cached is None:
                # All later parts follow from the sum, however unsure the first one is.
                chunk.prompt.cached = chunk.context - chunk.prompt.computed
            chunk.prompt.computed += chunk.tokens
            chunk.prompt.unsure += chunk.unsure
            if chunk.prompt.at == at and not chunk.prompt.unsure:
                self._learn(chunk.prompt)
        if self._packs:
            self._prompts = [each for each in self._prompts if each.at > at]
        else:
            del self._prompts[: bisect_left(self._prompts, at + 1, key=_POSITION)]
        self._unsure = not chunks
        del self._passes[: bisect_left(self._passes, at + 1, key=_AT)]
