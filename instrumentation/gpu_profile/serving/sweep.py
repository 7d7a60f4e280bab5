"""The requests of a sweep: traffic from which the prices of an engine's kinds of work follow. Pure.

Prices follow from windows with different mixes of work. Real traffic may be alike for hours. The first requests of
another kind then have no cost, because their work has no price yet. A sweep varies the lengths of prompts and of
answers and the number of requests at once, each independently of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

#: The shortest prompt, and the longest answer, in tokens.
_SHORTEST, LONGEST_ANSWER = 16, 128
#: Multiples of these numbers, without their whole parts, fill the unit interval evenly, and together the unit cube.
_STEPS: Final = (5**0.5 / 2, 2**0.5, 3**0.5)
#: All prompts of a step together have at most so many times the tokens of the longest prompt.
_MOST_LONGEST: Final = 2


class SweepStep(NamedTuple):
    """Requests that are sent at once: their number, and the tokens of each one's prompt and answer."""

    requests: int
    prompt: int
    answer: int


def sweep_steps(longest: int, most: int) -> Iterator[SweepStep]:
    """Steps without end, with prompts of up to `longest` tokens and up to `most` requests at once. All three numbers
    are evenly distributed in their logarithms, however many steps are taken."""
    place = [0.5] * len(_STEPS)
    while True:
        place = [(at + step) % 1 for at, step in zip(place, _STEPS, strict=True)]
        prompt = round(_SHORTEST * (longest / _SHORTEST) ** place[0])
        requests = min(round(most ** place[1]), max(1, _MOST_LONGEST * longest // prompt))
        yield SweepStep(requests, prompt, round(LONGEST_ANSWER ** place[2]))
