"""Which execution is inside which, in whatever order their spans come."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.regions.execution import Execution
from gpu_profile_exporter.sidecar import ancestry as module
from gpu_profile_exporter.sidecar.ancestry import MOST_NESTED, Ancestry, RecentSpans

SECOND = 1_000_000_000
TRACE = bytes(range(16))
NOWHEN = np.zeros(1, np.int64)
OUTER, BETWEEN, INNER = (TRACE + name for name in (b"outer---", b"between-", b"inner---"))


def begun(name: str) -> Execution:
    """An execution with times, so that it is its own in the ancestry."""
    made = Execution(name)
    made.start_ns, made.end_ns = 1, 2
    return made


def add(to: Ancestry, span: bytes, parent: bytes, execution: Execution) -> None:
    to.add([span], [parent], [execution], NOWHEN, NOWHEN)


def test_a_chain_is_found_in_every_order() -> None:
    """`outer` around `between`, which is no execution, around `inner`."""
    for order in permutations(range(3)):
        outer, inner = begun("outer"), begun("inner")
        ancestry = Ancestry(keep_ns=SECOND)
        steps = (
            lambda a=ancestry, e=outer: add(a, OUTER, b"", e),
            lambda a=ancestry: a.skip(BETWEEN, OUTER),
            lambda a=ancestry, e=inner: add(a, INNER, BETWEEN, e),
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
            made.append(begun(str(own)))
            add(ancestry, TRACE + bytes([own]), TRACE + bytes([parent]), made[-1])
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
    ancestry, outer = Ancestry(keep_ns=SECOND), begun("outer")
    ancestry.expire(10 * SECOND)
    add(ancestry, OUTER, b"", outer)
    ancestry.expire(11 * SECOND)
    assert ancestry.find(OUTER) == 0
    assert ancestry.row(0)[0] is outer
    ancestry.expire(12 * SECOND)
    assert ancestry.find(OUTER) is None


@pytest.mark.parametrize(("parent", "own"), [("missing", True), ("missing", False), ("", True)])
def test_of_very_many_spans_in_a_short_time_the_oldest_are_forgotten(
    parent: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_LINKED" if parent else "_MOST_ROWS", 1_000)
    ancestry = Ancestry(keep_ns=SECOND)
    for n in range(1, 5_000, 100):
        ancestry.expire(10 * SECOND)
        keys = [TRACE + i.to_bytes(8, "big") for i in range(n, n + 100)]
        parents = [TRACE + b"m" + i.to_bytes(7, "big") if parent else b"" for i in range(n, n + 100)]
        if own:
            ancestry.add(keys, parents, [begun("a")] * 100, np.zeros(100, np.int64), np.zeros(100, np.int64))
        else:
            for key, above in zip(keys, parents, strict=True):
                ancestry.skip(key, above)
        kept = [len(each.ends) + len(each.skipped) for each in (ancestry.recent, ancestry._before)]
        assert max(kept) <= 1_000
        assert ancestry.arrive([keys[0]]), "the last ones are found"
    assert not ancestry.arrive([TRACE + bytes(7) + b"\1"])


@pytest.mark.parametrize("inner_first", [True, False])
def test_no_more_are_inside_one_another_than_the_join_can_take(inner_first: bool) -> None:
    ancestry, made = Ancestry(keep_ns=SECOND), [begun(str(i)) for i in range(200)]
    keys = [TRACE + i.to_bytes(8, "big") for i in range(1, 202)]
    for i in sorted(range(200), reverse=inner_first):
        add(ancestry, keys[i], keys[i - 1] if i else b"", made[i])
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
    add(ancestry, TRACE + span_id, b"", begun("first"))
    assert ancestry.find(TRACE + span_id) is None


@given(st.permutations(range(8)), st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=8, max_size=8))
def test_spans_that_come_together_are_nested_as_if_each_came_alone(
    own: list[int], about: list[tuple[int, bool]]
) -> None:
    keys = [TRACE + bytes([i, 1]) for i in range(9)]
    rows = [(keys[i], keys[parent], taken) for i, (parent, taken) in zip(own, about, strict=True)]
    together, alone = Ancestry(keep_ns=SECOND), Ancestry(keep_ns=SECOND)
    chosen = [(key, parent) for key, parent, taken in rows if taken]
    of_each = {key: begun(str(key)) for key, _ in chosen}
    of_all = {key: begun(str(key)) for key, _ in chosen}
    for key, parent, taken in rows:
        if taken:
            add(alone, key, parent, of_each[key])
        else:
            alone.skip(key, parent)
            together.skip(key, parent)
    times = np.zeros(len(chosen), np.int64)
    together.add([key for key, _ in chosen], [parent for _, parent in chosen], list(of_all.values()), times, times)

    def nested(made: dict[bytes, Execution]) -> dict[bytes, str | None]:
        return {key: None if each.parent is None else each.parent.name for key, each in made.items()}

    if not any(_is_in_a_cycle(key, {key: parent for key, parent, _ in rows}) for key in keys):
        assert nested(of_all) == nested(of_each)


def _is_in_a_cycle(key: bytes, parents: dict[bytes, bytes]) -> bool:
    at: bytes | None = parents.get(key)
    for _ in parents:
        if at is None or at == key:
            break
        at = parents.get(at)
    return at == key


def keys_of(numbers: list[int]) -> list[bytes]:
    return [TRACE + number.to_bytes(8, "big") for number in numbers]


#: Numbers of spans by request, how many they are moved on, and whether their executions are selected. Mostly new spans.
requests = st.lists(
    st.tuples(st.integers(1, 150), st.integers(-3, 200), st.booleans(), st.booleans(), st.integers(0, 1)), max_size=12
)


@given(requests)
def test_exactly_the_spans_that_arrived_recently_have_arrived(sent: list[tuple[int, int, bool, bool, int]]) -> None:
    ancestry, end, now_ns = Ancestry(keep_ns=SECOND), 1, 10 * SECOND
    generations: list[dict[bytes, int | None]] = [{}, {}]
    rows = 0
    for n, ahead, selected, repeats, seconds in sent:
        now_ns += seconds * SECOND
        ancestry.expire(now_ns)
        if seconds:
            generations = [{}, generations[0]]
        first = max(1, end + ahead)
        spans = keys_of([*range(first, first + n)])
        spans += spans[:1] * repeats
        end = first + n
        known = generations[1] | generations[0]
        assert ancestry.arrive(spans) == known.keys() & set(spans)
        if selected:
            distinct = list(dict.fromkeys(spans))
            times = np.zeros(len(distinct), np.int64)
            ancestry.add(distinct, [b""] * len(distinct), [Execution("a")] * len(distinct), times, times)
            generations[0].update(zip(distinct, range(rows, rows + len(distinct)), strict=True))
            rows += len(distinct)
        else:
            for span in spans:
                ancestry.skip(span, TRACE + b"elsewhere"[:8])
                generations[0].setdefault(span, None)
    for generation in generations:
        for span, number in generation.items():
            if number is not None and generations[0].get(span, number) == number:
                assert ancestry.find(span) == number


def test_a_parent_that_came_among_many_is_found() -> None:
    ancestry, inner = Ancestry(keep_ns=SECOND), begun("inner")
    spans = keys_of([*range(1, 100)])
    times = np.arange(1, 100)
    assert not ancestry.arrive(spans)
    ancestry.add(spans, [b""] * 99, [Execution("outer")] * 99, times, times + 1)
    assert not ancestry.arrive([INNER])
    add(ancestry, INNER, spans[40], inner)
    assert inner.parent is not None
    assert inner.parent.start_ns == 41
    assert [number for number, _ in ancestry.nested] == [40]


def test_spans_that_are_skipped_or_looked_up_leave_no_hashes() -> None:
    ancestry = Ancestry(keep_ns=SECOND)
    times = np.zeros(5_000, np.int64)
    skipped, looked_up = keys_of([*range(1, 5_001)]), keys_of([*range(5_001, 10_001)])
    ancestry.arrive(skipped)
    for span in skipped:
        ancestry.skip(span, b"")
    assert len(ancestry.recent.hashes) == 0
    ancestry.arrive(looked_up)
    ancestry.add(looked_up, [b""] * 5_000, [Execution("a")] * 5_000, times, times)
    assert len(ancestry.recent.hashes) == 5_000
    assert ancestry.find(looked_up[4_000]) == 4_000
    assert len(ancestry.recent.hashes) == 0
    assert ancestry.arrive(looked_up) == set(looked_up)


def test_many_spans_with_a_parent_among_them_never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = list[RecentSpans]()
    monkeypatch.setattr(RecentSpans, "settle", moved.append)
    ancestry, spans, times = Ancestry(keep_ns=SECOND), keys_of([*range(1, 100)]), np.arange(1, 100)
    assert not ancestry.arrive(spans)
    ancestry.add(spans, [b""] * 98 + spans[:1], [Execution("a")] * 99, times, times + 1)
    assert not moved
    assert [number for number, _ in ancestry.nested] == [98, 0]
    assert ancestry.find(spans[50]) == 50


@pytest.mark.parametrize("span_id", [b"", bytes(8)])
def test_many_spans_without_an_id_are_not_taken_for_one_another(span_id: bytes) -> None:
    ancestry = Ancestry(keep_ns=SECOND)
    spans = [*keys_of([*range(1, 100)]), TRACE + span_id]
    times = np.zeros(100, np.int64)
    for _ in range(2):
        ancestry.arrive(spans)
        ancestry.add(spans, [b""] * 100, [Execution("a")] * 100, times, times)
    assert ancestry.find(TRACE + span_id) is None
    assert ancestry.find(spans[0]) is not None
