"""Which execution is inside which, in whatever order their spans come."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.regions.execution import Execution
from gpu_profile_exporter.sidecar.ancestry import Ancestry

SECOND = 1_000_000_000


def test_a_chain_is_found_in_every_order() -> None:
    """`outer` around `between`, which is no execution, around `inner`."""
    for order in permutations(range(3)):
        outer, inner = Execution("outer"), Execution("inner")
        ancestry = Ancestry(keep_ns=SECOND)
        steps = (
            lambda a=ancestry, e=outer: a.take(b"outer", b"", e),
            lambda a=ancestry: a.leave(b"between", b"outer"),
            lambda a=ancestry, e=inner: a.take(b"inner", b"between", e),
        )
        for i in order:
            steps[i]()
        assert inner.parent is outer, order
        assert outer.parent is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=40))
def test_whatever_spans_say_of_their_parents_no_execution_is_inside_itself(said: list[tuple[int, int, bool]]) -> None:
    ancestry, made = Ancestry(keep_ns=SECOND), []
    for own, parent, taken in said:
        if taken and ancestry.find(bytes([own])) is None:
            made.append(Execution(str(own)))
            ancestry.take(bytes([own]), bytes([parent]), made[-1])
        else:
            ancestry.leave(bytes([own]), bytes([parent]))
    for execution in made:
        seen = set()
        around: Execution | None = execution
        while around is not None:
            assert id(around) not in seen
            seen.add(id(around))
            around = around.parent


def test_what_came_long_ago_is_forgotten() -> None:
    ancestry, outer = Ancestry(keep_ns=SECOND), Execution("outer")
    ancestry.turn(10 * SECOND)
    ancestry.take(b"outer", b"", outer)
    ancestry.turn(11 * SECOND)
    assert ancestry.find(b"outer") is outer
    ancestry.turn(12 * SECOND)
    assert ancestry.find(b"outer") is None
