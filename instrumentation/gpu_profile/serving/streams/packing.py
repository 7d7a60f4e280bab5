"""Which prompts were in an iteration, by their tokens alone. Pure.

The span of a request on a prefill worker has no time of its iteration: SGLang's answers come after the transfer of keys
and values. But an iteration computes all tokens of its prompts, so that their sums identify them. If it is full, one
prompt is cut and goes on. Then the sums of the next iteration must fit too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

#: Further prompts that may be in an iteration instead of the first ones, and the most prompts of one that is searched.
_SPARE, _MOST = 3, 10
#: Engines may round the tokens of a prompt up to whole pages of the cache, of so many tokens at most.
PAGE = 64
#: The most ways to cut a prompt that are tried.
_MOST_CUTS = 64


class PromptState(NamedTuple):
    """A prompt: all of its tokens, the tokens that are not computed yet, and whether some are."""

    whole: int
    left: int
    begun: bool


class PassSums(NamedTuple):
    """An iteration: its prompts, the tokens that it computes, and the tokens before. `full`: it may cut a prompt."""

    prompts: int
    tokens: int
    stored: int
    full: bool


class Packed(NamedTuple):
    """The places of the prompts that end in an iteration, the tokens of each, and the place and tokens of the one that
    goes on. The place is None if there is none."""

    ended: tuple[int, ...]
    tokens: tuple[int, ...]
    goes_on: int | None = None
    rest: int = 0


def packed(prompts: Sequence[PromptState], sums: PassSums, after: PassSums | None, *, unsure: bool) -> Packed | None:
    """The prompts of an iteration, None if no prompts fit or several do.

    `prompts` are in order of the answers, and `after` is the next iteration. `unsure`: the prompts of the one before
    are not certain, so that one prompt may have fewer tokens left.
    """
    if sums.prompts > _MOST:
        return None
    cuts: list[Packed] = []
    rounded: tuple[int, Packed] | None = None
    for chosen in _choices(prompts, sums, unsure=unsure):
        left = [prompts[i].left for i in chosen]
        over = sums.tokens - sum(left)
        if sum(prompts[i].whole for i in chosen) - sum(left) == sums.stored:
            if not over:
                return Packed(chosen, tuple(left))
            if 0 < over < PAGE * sums.prompts and (rounded is None or over < rounded[0]):
                rounded = over, Packed(chosen, tuple(left))
            if sums.full and over < 0:
                cuts += _cuts(prompts, chosen, -over)
        if unsure:
            for i in chosen:
                # Its last part: the tokens before it and its own are the whole prompt.
                own = prompts[i].left + over
                before = sums.stored - sum(prompts[j].whole - prompts[j].left for j in chosen if j != i)
                if 0 < own < prompts[i].left and own + before == prompts[i].whole:
                    return Packed(chosen, tuple(own if j == i else prompts[j].left for j in chosen))
        if len(cuts) > _MOST_CUTS:
            return None
    if len(cuts) == 1:
        return cuts[0]
    fit = next((cut for cut in cuts if after is not None and _continues(prompts, cut, after)), None)
    return fit if cuts or rounded is None else rounded[1]


def _choices(prompts: Sequence[PromptState], sums: PassSums, *, unsure: bool) -> Iterator[tuple[int, ...]]:
    """Sets of prompts, the first ones first. A prompt that has begun goes on at once."""
    begun = set() if unsure else {i for i, prompt in enumerate(prompts) if prompt.begun}
    for chosen in combinations(range(min(len(prompts), sums.prompts + _SPARE)), sums.prompts):
        if begun.issubset(chosen):
            yield chosen


def _cuts(prompts: Sequence[PromptState], chosen: tuple[int, ...], over: int) -> Iterator[Packed]:
    """The ways to leave `over` tokens of one prompt to the next iteration: the last answer first."""
    for cut in reversed(chosen):
        if (rest := prompts[cut].left - over) > 0:
            ended = tuple(i for i in chosen if i != cut)
            yield Packed(ended, tuple(prompts[i].left for i in ended), cut, rest)


def _continues(prompts: Sequence[PromptState], cut: Packed, after: PassSums) -> bool:
    """Whether the next iteration fits after this one."""
    later = [
        prompt._replace(left=prompt.left - cut.rest, begun=True) if i == cut.goes_on else prompt
        for i, prompt in enumerate(prompts)
        if i not in cut.ended
    ]
    for chosen in _choices(later, after, unsure=False):
        over = sum(later[i].left for i in chosen) - after.tokens
        stored = sum(later[i].whole - later[i].left for i in chosen)
        cuttable = after.full and over > 0 and any(later[i].left > over for i in chosen)
        if stored == after.stored and (not over or cuttable):
            return True
    return False
