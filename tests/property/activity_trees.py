"""Small forests of activities in whole ticks, and the slow, obvious answers that the fast ones are held against."""

from collections.abc import Hashable, Iterable, Iterator, Sequence

from hypothesis import strategies as st

from gpu_profile.join.unmixing.windows.activities import DeviceExecution

#: Ticks that are looked at; activities begin and end before, in and after them.
SPAN = 40


@st.composite
def forests(draw: st.DrawFn, *, most: int = 8, regions: int = 3, circles: bool = False) -> list[DeviceExecution]:
    """Activities whose children may outlive them, begin before them, run beside each other or never end."""
    count = draw(st.integers(0, most))
    result = []
    for key in draw(st.permutations(range(count))):
        parents = range(count + 1) if circles else range(key)  # the last of them is nobody's key
        parent = draw(st.none() | st.sampled_from(parents)) if len(parents) else None
        start = draw(st.integers(-5, SPAN + 5))
        end = draw(st.none() | st.integers(start - 3, SPAN + 10))
        result.append(DeviceExecution(key, parent, f"r{draw(st.integers(0, regions - 1))}", start, end))
    return result


@st.composite
def cuts(draw: st.DrawFn) -> list[int]:
    """Edges of slices that cover the span."""
    return sorted({0, SPAN, *draw(st.lists(st.integers(1, SPAN - 1), max_size=6))})


def runs_at(activity: DeviceExecution, t: int) -> bool:
    return activity.start_ns <= t and (activity.end_ns is None or t < activity.end_ns)


def ancestors(activity: DeviceExecution, by_key: dict[Hashable, DeviceExecution]) -> Iterator[DeviceExecution]:
    """From the parent outwards, each once; the activity itself comes last if it is in a circle."""
    met: set[Hashable] = set()
    parent = activity.parent
    while parent is not None and parent in by_key and parent not in met:
        met.add(parent)
        yield by_key[parent]
        parent = by_key[parent].parent


def innermost_at(activities: Iterable[DeviceExecution], t: int) -> set[Hashable]:
    """The keys of what runs at `t` with none of its descendants running."""
    by_key = {a.key: a for a in activities}
    running = [a for a in by_key.values() if runs_at(a, t)]
    around = {b.key for a in running for b in ancestors(a, by_key)}
    return {a.key for a in running} - around


def shared_at(activities: Sequence[DeviceExecution], t: int) -> list[tuple[DeviceExecution, float]]:
    """Who has the tick from `t` on, and how much of it."""
    by_key = {a.key: a for a in activities}
    found = innermost_at(activities, t)
    return [(by_key[key], 1 / len(found)) for key in sorted(found, key=repr)]
