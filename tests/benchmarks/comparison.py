"""How often `compare` shows a difference where there is none, and how often it finds one that there is."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from benchmarks.comparison_worlds import CHANGED, Program, different, pair
from benchmarks.rows import Row

PAIRS: Final = 200


def rows(pairs: int) -> Iterator[Row]:
    """One row for programs that did not change, one for each kind that did, from so many pairs of runs."""
    with ProcessPoolExecutor() as workers:
        wrong = sum(workers.map(differs, range(pairs), chunksize=10))
        yield Row(
            "compare, a program with itself, 8-200 executions, autocorrelated, heavy tails, warm-up, shifts of a run",
            f"A/A pairs with any difference: {wrong} of {pairs}",
            reach="<=7.5 %",
            ok=wrong <= 0.075 * pairs,
            cost=wrong / pairs,
        )
        for calls, warm_up in ((30, 0.0), (60, 0.5)):
            found = sum(workers.map(partial(finds, calls, warm_up), range(pairs), chunksize=10))
            about = f", warm-up of {warm_up:.0%}" if warm_up else ""
            yield Row(
                f"compare, 20 % more time in one of four regions, {calls} executions that spread by 10 %{about}",
                f"found in {found / pairs:.1%} of {pairs} pairs",
                reach=">=90 %",
                ok=found >= 0.9 * pairs,
                cost=1 - found / pairs,
            )


def differs(seed: int) -> bool:
    """Whether any difference is shown between two runs of one program."""
    return bool(different(pair(seed)))


def finds(calls: int, warm_up: float, seed: int) -> bool:
    """Whether any difference is shown in the region that takes 20 % more time."""
    program = Program.draw(np.random.default_rng(seed), calls)
    program = replace(program, spread=0.1, tail=4.0, memory=0.0, warm_up=warm_up)
    return any(region == CHANGED for region, _ in different(pair(seed, slower=1.2, program=program)))
