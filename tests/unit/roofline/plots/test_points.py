import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_profile.roofline.plots.points import alike, common_name, together

pytest.importorskip("matplotlib")

from matplotlib.transforms import Bbox


def place(x: float, y: float = 0.0) -> Bbox:
    return Bbox.from_bounds(x - 5, y - 5, 10, 10)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["conv1"], "conv1"),
        (["layers.0.mlp", "layers.1.mlp", "layers.11.mlp"], "layers.*.mlp ×3"),
        (["layer1.0.conv1", "layer1.1.conv1"], "layer1.*.conv1 ×2"),
        (["layer1.0.conv1", "layer2.1.conv1"], "layer*.*.conv1 ×2"),
        (["fc", "fc"], "fc ×2"),
        (["", ""], " ×2"),
        (["x" * 40 + "1", "x" * 40 + "2"], "x" * 27 + "… ×2"),
    ],
)
def test_the_common_name_has_a_star_for_each_number_that_differs(names: list[str], says: str) -> None:
    assert common_name(names) == says


def test_names_are_alike_that_differ_by_numbers_alone() -> None:
    assert alike(["a.0", "b", "a.17", "a", "b", "a.x"]) == [[0, 2], [1, 4], [3], [5]]


def test_only_points_that_touch_are_together_and_a_chain_of_them_is() -> None:
    names = ["a.0", "a.1", "a.2", "a.3", "b.0"]
    places = [place(0), place(12), place(24), place(60), place(12)]
    assert together(names, places, apart=5) == [[0, 1, 2], [3], [4]]
    assert together(names, places, apart=1) == [[0], [1], [2], [3], [4]]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["a.0", "a.1", "b.1", "b"]), st.floats(0, 200), st.floats(0, 50)), max_size=12)
)
def test_every_point_is_in_one_group_and_no_two_groups_touch(points: list[tuple[str, float, float]]) -> None:
    names, places = [name for name, _, _ in points], [place(x, y) for _, x, y in points]
    groups = together(names, places, apart=5)
    assert sorted(i for group in groups for i in group) == list(range(len(points)))
    kinds = {i: number for number, same in enumerate(alike(names)) for i in same}
    group_of = {i: number for number, group in enumerate(groups) for i in group}
    for i, one in enumerate(places):
        for j, other in enumerate(places):
            near = one.padded(5).overlaps(other)
            assert group_of[i] == group_of[j] or not near or kinds[i] != kinds[j]
            assert group_of[i] != group_of[j] or kinds[i] == kinds[j]
