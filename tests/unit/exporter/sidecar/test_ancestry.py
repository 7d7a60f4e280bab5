"""Which execution is inside which, in whatever order their spans come."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.regions.execution import Execution
from gpu_profile_exporter.sidecar.ancestry import MOST_NESTED, Ancestry

SECOND = 1_000_000_000
TRACE = bytes(range(16))
OUTER, BETWEEN, INNER = (TRACE + name for name in (b"outer---", b"between-", b"inner---"))


def test_a_chain_is_found_in_every_order() -> None:
    """`outer` around `between`, which is no execution, around `inner`."""
    for order in permutations(range(3)):
        outer, inner = Execution("outer"), Execution("inner")
        ancestry = Ancestry(keep_ns=SECOND)
        steps = (
            lambda a=ancestry, e=outer: a.add(OUTER, b"", e),
            lambda a=ancestry: a.skip(BETWEEN, OUTER),
            lambda a=ancestry, e=inner: a.add(INNER, BETWEEN, e),
        )
        for i in order:
            steps[i]()
        assert inner.parent is outer, order
        assert outer.parent is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=40))
def test_whatever_spans_say_of_their_parents_no_execution_is_inside_itself(said: list[tuple[int, int, bool]]) -> None:
    ancestry, made = Ancestry(keep_ns=SECOND), []
    for own, parent, taken in said:
        if taken and ancestry.find(TRACE + bytes([own])) is None:
            made.append(Execution(str(own)))
            ancestry.add(TRACE + bytes([own]), TRACE + bytes([parent]), made[-1])
        else:
            ancestry.skip(TRACE + bytes([own]), TRACE + bytes([parent]))
    for execution in made:
        seen = set()
        around: Execution | None = execution
        while around is not None:
            assert id(around) not in seen
            seen.add(id(around))
            around = around.parent


def test_what_came_long_ago_is_forgotten() -> None:
    ancestry, outer = Ancestry(keep_ns=SECOND), Execution("outer")
    ancestry.expire(10 * SECOND)
    ancestry.add(OUTER, b"", outer)
    ancestry.expire(11 * SECOND)
    assert ancestry.find(OUTER) is outer
    ancestry.expire(12 * SECOND)
    assert ancestry.find(OUTER) is None


@pytest.mark.parametrize("inner_first", [True, False])
def test_no_more_are_inside_one_another_than_the_join_can_take(inner_first: bool) -> None:
    ancestry, made = Ancestry(keep_ns=SECOND), [Execution(str(i)) for i in range(200)]
    keys = [TRACE + i.to_bytes(8, "big") for i in range(1, 202)]
    for i in sorted(range(200), reverse=inner_first):
        ancestry.add(keys[i], keys[i - 1] if i else b"", made[i])
    depths = []
    for execution in made:
        depth, around = 1, execution.parent
        while around is not None:
            depth, around = depth + 1, around.parent
        depths.append(depth)
    assert MOST_NESTED / 2 <= max(depths) <= MOST_NESTED
    assert sum(depth == 1 for depth in depths) < 20


@pytest.mark.parametrize("span_id", [b"", bytes(8)])
def test_spans_without_an_id_are_not_taken_for_one_another(span_id: bytes) -> None:
    ancestry = Ancestry(keep_ns=SECOND)
    ancestry.add(TRACE + span_id, b"", Execution("first"))
    assert ancestry.find(TRACE + span_id) is None
