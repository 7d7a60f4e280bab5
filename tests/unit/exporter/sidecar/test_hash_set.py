"""Sets of hashes against Python's own sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile_exporter.sidecar.hash_set import HashSet

#: Few different highest bits, so that hashes share places, and all bits.
hashes = st.integers(1, 6).map(lambda n: n << 61 | n) | st.integers(1, 6) | st.integers(1, 2**64 - 1)
blocks = st.lists(st.lists(hashes, min_size=1, max_size=20), max_size=20)


@given(blocks, st.integers(0, 5_000))
def test_hashes_overlap_exactly_if_one_of_them_was_added(requests: list[list[int]], expected: int) -> None:
    made, model = HashSet(expected), set[int]()
    for request in requests:
        column = np.array(request, np.uint64)
        assert made.overlaps(column) == (not model.isdisjoint(request))
        made.add(column)
        model.update(request)
        assert made.overlaps(column[-1:])
    assert len(made) == sum(map(len, requests))


@pytest.mark.parametrize("requests", [[[5, 0]], [[0, 5]], [[0], [5]], [[5], [0]]])
def test_a_hash_of_zero_hides_no_other_hash_and_is_found(requests: list[list[int]]) -> None:
    made = HashSet()
    assert not made.overlaps(np.array([0, 5], np.uint64))
    for request in requests:
        made.add(np.array(request, np.uint64))
    assert made.overlaps(np.array([5], np.uint64))
    assert made.overlaps(np.array([0], np.uint64))


def test_a_set_that_grows_keeps_all_hashes() -> None:
    rng = np.random.default_rng(1)
    every, made = rng.integers(1, 2**63, 60_000, dtype=np.uint64), HashSet()
    for first in range(0, 50_000, 500):
        made.add(every[first : first + 500])
    assert all(made.overlaps(every[i : i + 1]) for i in range(0, 50_000, 7))
    assert not made.overlaps(every[50_000:])
