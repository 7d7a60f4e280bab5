from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_profile.roofline.plots.labels import Anchor, Box, places, spread

BOUNDS = Box(0, 0, 800, 500)
ANCHORS = st.lists(
    st.builds(
        Anchor,
        st.floats(0, 800),
        st.floats(0, 500),
        st.floats(2, 14),
        st.floats(10, 150),
        st.floats(8, 14),
    ),
    max_size=14,
)
BOXES = st.lists(
    st.builds(lambda x, y, w, h: Box(x, y, x + w, y + h), *[st.floats(0, 500)] * 2, *[st.floats(1, 200)] * 2),
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(ANCHORS, BOXES, BOXES)
def test_no_label_covers_another_a_point_or_what_is_blocked_nor_leaves_the_bounds(
    anchors: list[Anchor], blocked: list[Box], lines: list[Box]
) -> None:
    found = [box for box in places(anchors, bounds=BOUNDS, blocked=blocked, lines=lines) if box is not None]
    assert all(box.within(BOUNDS) for box in found)
    assert not any(a.shared(b) for a, b in combinations(found, 2))
    assert not any(box.shared(anchor.box) for box in found for anchor in anchors)
    assert not any(box.shared(other) for box in found for other in blocked)


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 800), st.floats(0, 500), st.floats(2, 14), st.floats(10, 150))
def test_a_lone_point_has_its_label_beside_it(x: float, y: float, radius: float, width: float) -> None:
    (box,) = places([Anchor(x, y, radius, width, 11)], bounds=BOUNDS)
    assert box is not None
    apart = max(box.left - x, x - box.right, box.bottom - y, y - box.top)
    assert apart <= radius + 11


def test_each_point_has_a_place_in_the_order_that_they_were_given() -> None:
    cloud = [Anchor(400 + i, 250, 6, 80, 11) for i in range(12)]
    found = places(cloud, bounds=BOUNDS)
    assert None not in found
    far = [abs((box.left + box.right) / 2 - 400) + abs((box.top + box.bottom) / 2 - 250) for box in found if box]
    assert sum(far[:4]) < sum(far[-4:])


def test_a_line_is_avoided_where_there_is_room() -> None:
    point = Anchor(400, 250, 5, 80, 11)
    line = [Box(x, 247, x + 6, 253) for x in range(400, 800, 6)]
    (plain,), (beside,) = places([point], bounds=BOUNDS), places([point], bounds=BOUNDS, lines=line)
    assert plain is not None
    assert beside is not None
    assert any(map(plain.shared, line))
    assert not any(map(beside.shared, line))


def test_where_there_is_no_room_there_is_no_label() -> None:
    assert places([Anchor(5, 5, 2, 100, 11)], bounds=Box(0, 0, 50, 50)) == [None]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 500), max_size=9).map(lambda places: sorted(places, reverse=True)), st.floats(1, 40))
def test_spread_places_keep_their_order_and_a_gap(wanted: list[float], gap: float) -> None:
    found = spread(wanted, gap=gap)
    assert len(found) == len(wanted)
    assert all(a - b >= gap - 1e-6 for a, b in pairwise(found))
    assert sum(found) == pytest.approx(sum(wanted))
    if all(a - b >= gap for a, b in pairwise(wanted)):
        assert found == pytest.approx(wanted)


def test_places_that_are_too_close_move_apart_by_the_same() -> None:
    assert spread([100, 100, 40], gap=10) == pytest.approx([105, 95, 40])
