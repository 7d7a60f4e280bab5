"""Which prompts were in an iteration, by their tokens alone. Pure.

The span of a request on a prefill worker has no time of its iteration: SGLang's answers come after the transfer of keys
and values. But an iteration computes all tokens of its prompts, so that their sums identify them. If it is full, the
last prompt goes on in the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

#: Further prompts that may be in an iteration instead of the first ones, and the most prompts of one that is searched.
_SPARE, _MOST = 3, 12
#: Engines may round the tokens of a prompt up to whole pages of the cache, of so many tokens at most.
_PAGE = 64


class Packed(NamedTuple):
    """The places of the prompts that end in an iteration, and of the one that goes on, None if there is none."""

    ended: tuple[int, ...]
    goes_on: int | None


def packed(
    left: Sequence[int], before: Sequence[int], count: int, tokens: int, stored: int, *, full: bool
) -> Packed | None:
    """The prompts of an iteration, None if none have its sums.

    `left` and `before` are the tokens that each prompt has still to compute, and those before them, in order of the
    answers. The iteration has `count` prompts that compute `tokens` after `stored` others. `full`: a prompt may be cut.
    """
    if count > _MOST:
        return None
    cut, best, least = None, None, _PAGE * count
    for chosen in combinations(range(min(len(left), count + _SPARE)), count):
        if sum(before[i] for i in chosen) == stored:
            whole, last = sum(left[i] for i in chosen), chosen[-1]
            if 0 <= tokens - whole < least:
                best, least = Packed(chosen, None), tokens - whole
            if full and cut is None and whole - left[last] < tokens < whole:
                cut = Packed(chosen[:-1], last)
    return best if cut is None or not least else cut
