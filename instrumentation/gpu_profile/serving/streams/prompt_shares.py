"""The parts of prompts in an iteration, if some of them do not report their cached tokens. Pure.

The sums of the iteration then leave the tokens of each open. They are divided by the usual shares of the tenants'
prompts that are computed, and may be off by as much as the limits of all parts allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_profile.serving.streams.request_spans import ServedRequest


@dataclass(slots=True)
class Prompt:
    """A request's prompt: the iteration that ended it, the tokens computed so far, which may be off by `unsure`, and
    its cached tokens."""

    number: int
    request: ServedRequest
    at: int
    computed: int
    cached: int | None
    unsure: int = 0

    @property
    def left(self) -> int:
        """The most tokens that it still has to compute."""
        return max(0, self.request.prompt - (self.cached or 0) - self.computed)


class Chunk(NamedTuple):
    """The part of a prompt in one iteration: tokens that it computes, after `context` others. The tokens may be off by
    `unsure`, and its tenant's by `tenant_unsure` beside the same of the tenant's other chunks. `clear`: their sum with
    the context is certain."""

    prompt: Prompt
    tokens: int
    context: int
    unsure: int = 0
    tenant_unsure: int = 0
    clear: bool = False

    @property
    def number(self) -> int:
        """The request's number."""
        return self.prompt.number


class PromptShare(NamedTuple):
    """A prompt, and the fewest and the most tokens of its part in an iteration. `end`: its tokens, cached or computed,
    up to the end of the part. None: unknown."""

    prompt: Prompt
    fewest: int
    most: int
    end: int | None

    @classmethod
    def until(cls, end: int, prompt: Prompt, tokens: int, before: int) -> PromptShare:
        """The part up to a known end, with at most `tokens` tokens after at most `before` others."""
        most = max(0, min(tokens, end - (prompt.cached or 0) - prompt.computed + prompt.unsure))
        return cls(prompt, min(max(1, end - before), most), most, end)


def chunks_of(
    some: list[PromptShare], usual: Sequence[float], tokens: int, context: int, *, whole: bool, clear: bool
) -> list[Chunk]:
    """The parts of prompts that compute `tokens` after `context` others, divided by the `usual` shares of prompts.
    `whole`: the iteration has as many prompts, and `clear`: surely these."""
    if not some:
        return []
    computed = _divided(tokens, some, usual, whole=whole)
    clear = clear and whole and sum(each.fewest for each in some) <= tokens <= sum(each.most for each in some)
    result: list[Chunk] = []
    seen: set[object] = set()
    for place, (prompt, _, _, end) in enumerate(some):
        tenant = prompt.request.tenant
        mine = [each.prompt.request.tenant == tenant for each in some]
        of_tenant = 0 if tenant in seen else _unsure(some, computed, mine, clear=clear)
        seen.add(tenant)
        unsure = _unsure(some, computed, [each.prompt is prompt for each in some], clear=clear)
        # One that goes on has at most the context that remains.
        before = min(prompt.request.prompt - computed[place], max(0, context)) if end is None else end - computed[place]
        result.append(Chunk(prompt, computed[place], before, unsure, of_tenant, clear=end is not None))
        context -= before
    return result


def _divided(tokens: int, some: list[PromptShare], usual: Sequence[float], *, whole: bool) -> list[int]:
    """The tokens of prompts, within their limits. `whole`: all of the tokens are theirs."""
    expected = [share.most * each for share, each in zip(some, usual, strict=True)]
    left, rest, computed = sum(expected), tokens, []
    for share, each in zip(some, expected, strict=True):
        computed.append(min(share.most, max(share.fewest, round(rest * each / left) if left else 0)))
        rest, left = rest - computed[-1], left - each
    for place, share in enumerate(some):
        part = max(share.fewest - computed[place], min(share.most - computed[place], rest))
        computed[place], rest = computed[place] + part, rest - part
    # If they have too few left, an earlier iteration got too many. No prompt has more tokens than its length.
    computed[0] += min(rest, some[0].prompt.request.prompt - computed[0]) if whole and rest > 0 else 0
    return computed


def _unsure(some: list[PromptShare], computed: list[int], mine: list[bool], *, clear: bool) -> int:
    """By how many tokens the sum over some prompts may be off. Where earlier parts are unsure, so are the tokens that
    are left of a prompt. If the prompts are not `clear`, others may have any of the tokens."""
    mosts = [each.most + (each.prompt.unsure if each.end is None else 0) for each in some]
    own, most, fewest = (
        sum(each for each, of in zip(values, mine, strict=True) if of)
        for values in (computed, mosts, [each.fewest for each in some])
    )
    tokens, others = sum(computed), sum(mosts) - most
    high = min(most, tokens - sum(each.fewest for each in some) + fewest)
    low = max(fewest, tokens - others) if clear else fewest
    return max(0, high - own, own - low)
