from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.serving.tiny_engine import all_parts

from gpu_profile.history.timeline import Floats
from gpu_profile.serving.pricing.charging import ChargedParts, charged_parts
from gpu_profile.serving.pricing.terms import TERMS, scales_of, terms_of
from gpu_profile.serving.work import DecodeRuns, Iterations, Parts


def in_runs(seed: int) -> Iterations:
    """Iterations with requests in decode, each in a row of them."""
    drawn, n = np.random.default_rng(seed), 40
    first = drawn.integers(0, n, 12)
    runs = DecodeRuns(
        drawn.integers(0, 6, 12), first, first + 1 + drawn.integers(0, n - first), drawn.integers(1, 100_000, 12)
    )
    starts = np.cumsum(drawn.integers(5_000_000, 9_000_000, n))
    return Iterations(starts, starts + 5_000_000, runs.work(n), Parts.none(), runs)


def by_request(charged: ChargedParts) -> dict[int, Floats]:
    """The sums of all columns by request."""
    result: dict[int, Floats] = {}
    for request, *columns in zip(charged.request.tolist(), charged.totals, charged.terms, strict=True):
        result[request] = result.get(request, 0.0) + np.concatenate(columns)
    return result


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_runs_cost_exactly_what_their_parts_cost(seed: int) -> None:
    some, drawn = in_runs(seed), np.random.default_rng(seed)
    terms = terms_of(some.seconds, some.work, drawn.uniform(size=TERMS), scales_of(some.work))
    weights = [drawn.uniform(size=len(some.starts)) for _ in range(5)]
    prices = drawn.uniform(size=TERMS)
    apart = some._replace(parts=all_parts(some), runs=DecodeRuns.none())
    of_runs, of_parts = (
        by_request(charged_parts(each, terms, prices, 2, weights[0], weights[1], weights[2], weights[3:]))
        for each in (some, apart)
    )
    assert of_runs.keys() == of_parts.keys()
    for request, sums in of_parts.items():
        assert of_runs[request] == pytest.approx(sums, rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_runs_that_are_cut_joined_or_moved_have_the_parts_that_they_had(seed: int) -> None:
    some, drawn = in_runs(seed), np.random.default_rng(seed)
    cuts = [0, *np.sort(drawn.integers(0, 40, 3)).tolist(), 40]
    again = Iterations.joined([some.cut(low, high) for low, high in pairwise(cuts)])
    kept = drawn.uniform(size=40) < 0.7
    moved = again._replace(runs=again.runs.moved(np.where(kept, np.cumsum(kept) - 1, -1)))
    whole, left = all_parts(some), all_parts(moved)
    rows = {
        (np.cumsum(kept)[place] - 1, request, *work)
        for place, request, work in zip(whole.iteration.tolist(), whole.request, whole.work.tolist(), strict=True)
        if kept[place]
    }
    assert {
        (place, request, *work)
        for place, request, work in zip(left.iteration, left.request, left.work.tolist(), strict=True)
    } == rows
    assert moved.runs.work(int(kept.sum())) == pytest.approx(some.work[kept])
