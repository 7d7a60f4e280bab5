import math
import sys
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import printed

from gpu_profile.errors import UsageError
from gpu_profile.roofline.ceilings.ceilings import Ceiling, Ceilings, Level
from gpu_profile.roofline.plots.points import Point
from gpu_profile.roofline.plots.roofs import roofline_figure, spread
from gpu_profile.roofline.plots.theme import DARK, LIGHT, MARKERS, check_file
from gpu_profile.roofline.precision import Precision

pytest.importorskip("matplotlib")

FP32, BF16 = Precision.FP32, Precision.BF16
H200 = Ceilings(
    "NVIDIA H200",
    {},
    compute={
        Precision.FP64: Ceiling(59e12, "measured"),
        FP32: Ceiling(54e12, "measured"),
        BF16: Ceiling(790e12, "measured"),
        Precision.FP16: Ceiling(795e12, "measured"),
        Precision.FP8: Ceiling(1979e12, "datasheet"),
    },
    levels=(Level("L2", 50 << 20, Ceiling(9.8e12, "measured")), Level("memory", None, Ceiling(4.2e12, "measured"))),
    calibrated_ns=1_795_000_000_000_000_000,
)
NONE = Ceilings("A new GPU", {}, missing={"memory": "unknown GPU"})
#: Twenty of one place with names that are not alike, and as many layers.
CROWD = [
    Point(f"block.{'abcdefghijklmnopqrst'[i]}.mlp", 60 + i, 150e12 + i * 1e12, "LATENCY_BOUND", 0.3 / (i + 1), BF16)
    for i in range(20)
]
LAYERS = [point._replace(name=f"layers.{i}.mlp") for i, point in enumerate(CROWD)]
SPREAD = [
    Point("conv1", 150.0, 400e12, "COMPUTE_BOUND", 0.5, BF16),
    Point("relu", 0.125, 0.5e12, "MEMORY_BOUND", 0.2, FP32),
    Point("add", 0.083, 1e9, "OVERHEAD_BOUND", 0.05, FP32),
]


def png(figure: Any) -> bytes:
    made = figure._repr_png_()
    assert isinstance(made, bytes)
    return made


def texts(figure: Any) -> list[Any]:
    from matplotlib.text import Text

    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


def words(figure: Any) -> str:
    return "\n".join(text.get_text() for text in texts(figure))


def dots(figure: Any) -> list[tuple[float, float]]:
    """The points that are drawn, without the rings of the ridges."""
    return [tuple(each.get_offsets()[0]) for each in figure.axes[0].collections if each.get_zorder() == 4]


def test_every_point_is_drawn_at_its_intensity_and_throughput() -> None:
    assert sorted(dots(roofline_figure(H200, SPREAD))) == sorted((p.intensity, p.flops_per_s) for p in SPREAD)


def test_the_roofs_are_those_of_the_machine_and_named() -> None:
    figure = roofline_figure(H200, SPREAD)
    lines: list[Any] = [line.get_xydata() for line in figure.axes[0].lines]
    slanted = {round(y / x) for ends in lines for x, y in ends if len({y / x for x, y in ends}) == 1}
    assert {round(each.bandwidth.value) for each in H200.levels} <= slanted
    level = {ends[0][1] for ends in lines if ends[0][1] == ends[1][1]}
    assert {each.value for each in H200.compute.values()} <= level
    for name in ("memory 4.20 TB/s", "L2 9.80 TB/s", "bf16  790 TFLOP/s", "fp8  1980 TFLOP/s, data sheet"):
        assert name in words(figure)


def test_the_ridge_of_the_precision_that_takes_most_time_is_marked_where_its_roofs_meet() -> None:
    figure = roofline_figure(H200, SPREAD)
    assert f"ridge of bf16: {790 / 4.2:.3g} FLOP/B" in words(figure)
    dotted: list[Any] = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    (x, _), (_, top) = dotted[0].get_xydata()
    assert (x, top) == (pytest.approx(790e12 / 4.2e12), 790e12)


def test_marks_tell_regimes_apart_and_areas_the_share_of_the_time() -> None:
    figure = roofline_figure(H200, SPREAD)
    marks: list[Any] = [each for each in figure.axes[0].collections if each.get_zorder() == 4]
    areas = [each.get_sizes()[0] for each in marks]
    assert areas == sorted(areas, reverse=True)
    assert len(set(areas)) == 3
    assert len({tuple(each.get_facecolor()[0]) for each in marks}) == 3
    assert len({len(each.get_paths()[0].vertices) for each in marks}) > 1
    for regime in ("COMPUTE_BOUND", "MEMORY_BOUND", "OVERHEAD_BOUND"):
        assert regime in words(figure)
    assert "BALANCED" not in words(figure)


def test_each_regime_has_a_shape_and_a_colour_of_its_own() -> None:
    assert len(set(MARKERS.values())) == len(MARKERS)
    for theme in (LIGHT, DARK):
        assert set(theme.regimes) == set(MARKERS)
        assert len(set(theme.regimes.values())) == len(MARKERS)


@pytest.mark.parametrize("points", [CROWD, SPREAD], ids=["crowd", "spread"])
def test_the_twelve_that_take_most_time_are_named_and_no_name_covers_another(points: list[Point]) -> None:
    figure = roofline_figure(H200, points)
    named = [text for text in texts(figure) if text.get_text() in {point.name for point in points}]
    longest = sorted(points, key=lambda point: -(point.share or 0))[:12]
    assert {text.get_text() for text in named} == {point.name for point in longest}
    boxes = [text.get_window_extent() for text in named]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    inside = figure.axes[0].get_window_extent()
    assert all(inside.contains(*box.min) and inside.contains(*box.max) for box in boxes)
    marks = [figure.axes[0].transData.transform((point.intensity or 0.0, point.flops_per_s or 0.0)) for point in points]
    assert not any(box.contains(*mark) for box in boxes for mark in marks)


@pytest.mark.parametrize("ceilings", [H200, NONE], ids=["known", "unknown"])
def test_no_text_leaves_the_figure_or_is_smaller_than_8_points(ceilings: Ceilings) -> None:
    figure = roofline_figure(ceilings, [*CROWD, Point("x" * 90, None, None, "UNKNOWN")])
    png(figure)
    whole = figure.bbox
    assert all(text.get_fontsize() >= 8 for text in texts(figure))
    for text in [*figure.texts, *figure.axes[0].texts]:
        box = text.get_window_extent()
        assert box.x0 >= 0, text.get_text()
        assert box.x1 <= whole.x1, text.get_text()


def test_layers_alike_in_one_place_have_one_name_together() -> None:
    figure = roofline_figure(H200, [*LAYERS, *SPREAD])
    assert "layers.*.mlp ×20" in words(figure)
    assert "layers.0.mlp" not in words(figure)
    assert "× counts those alike" in words(figure)
    assert len(dots(figure)) == 23
    assert "the largest are named" not in words(figure)
    assert "the largest are named" in words(roofline_figure(H200, CROWD))


def test_layers_alike_that_lie_apart_have_names_of_their_own() -> None:
    far = [point._replace(intensity=10.0**i) for i, point in enumerate(LAYERS[:4])]
    figure = roofline_figure(H200, far)
    assert all(point.name in words(figure) for point in far)


@settings(max_examples=60)
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


def test_names_of_roofs_do_not_cover_each_other_even_of_the_same_height() -> None:
    from matplotlib.text import Text

    same = {precision: Ceiling(1979e12, "datasheet") for precision in Precision}
    for compute in (H200.compute, same):
        figure = roofline_figure(Ceilings("A GPU", {}, compute=compute, levels=H200.levels), SPREAD)
        png(figure)
        names = [text for text in figure.axes[0].texts if text.get_text().endswith(("OP/s", "OP/s, data sheet"))]
        assert len(names) == len(compute)
        # An annotation's own extent has its line in it.
        boxes = [Text.get_window_extent(text) for text in names]
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_a_point_far_right_does_not_raise_the_top_of_the_figure() -> None:
    point = Point("matmul", 5000.0, 100e12, "COMPUTE_BOUND", precision=BF16)
    low, high = roofline_figure(H200, [point]).axes[0].get_ylim()
    assert low < 100e12
    assert 1979e12 < high < 1e16


def test_the_title_says_what_is_shown_and_the_machine_where_nobody_told() -> None:
    assert "Roofline of NVIDIA H200" in words(roofline_figure(H200, SPREAD))
    figure = roofline_figure(H200, SPREAD, title="ResNet on NVIDIA H200", what="module")
    assert "Roofline of" not in words(figure)
    assert "ResNet on NVIDIA H200" in words(figure)
    assert "Each point is a module" in words(figure)
    assert "Each point" not in words(roofline_figure(H200, SPREAD[:1]))


def test_what_neither_computes_nor_moves_anything_is_listed_once() -> None:
    nothing = Point("identity", None, 0.0, "UNKNOWN")
    text = words(roofline_figure(H200, [*SPREAD, nothing, Point("strange", math.nan, 1e9, "UNKNOWN")]))
    assert "since they do no FLOPs: identity" in text
    assert "FLOPs or bytes are not known: strange" in text
    assert text.count("identity") == 1


def test_what_has_no_place_is_told_beneath_and_not_drawn() -> None:
    unknown = [Point("my_kernel", None, 1e9, "UNKNOWN"), Point("other", 3.0, None, "UNKNOWN")]
    figure = roofline_figure(H200, [*SPREAD, *unknown, Point("copy_", 0.0, 0.0, "MEMORY_BOUND")])
    assert len(dots(figure)) == len(SPREAD)
    assert "FLOPs or bytes are not known: my_kernel, other" in words(figure)
    assert "since they do no FLOPs: copy_" in words(figure)


def test_a_machine_whose_ceilings_are_not_known_says_so_and_shows_the_points() -> None:
    figure = roofline_figure(NONE, SPREAD)
    assert len(dots(figure)) == len(SPREAD)
    assert "No roof is known" in words(figure)
    assert "No roof for memory: unknown GPU" in words(figure)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [Point("$\\frac{1}{", 1.0, 1e9, "NO_SUCH_REGIME", 1.0)],
        [Point("a\nb", 1e-7, 1e-3, "UNKNOWN"), Point("c", 1e12, 1e18, "BALANCED", 3.0)],
        [Point("nan", math.nan, math.inf, "UNKNOWN", 0.1)],
        [Point("same", 1.0, 1e9, "BALANCED", 0.1)] * 40,
    ],
    ids=["none", "mathematics", "far apart", "not finite", "the same"],
)
@pytest.mark.parametrize("ceilings", [H200, NONE], ids=["known", "unknown"])
@pytest.mark.parametrize("dark", [False, True])
def test_whatever_the_points_are_there_is_a_figure(ceilings: Ceilings, points: list[Point], dark: bool) -> None:
    assert png(roofline_figure(ceilings, points, dark=dark)).startswith(b"\x89PNG")


def test_without_matplotlib_there_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(UsageError, match=r"^a figure needs matplotlib.*: pip install matplotlib$"):
        roofline_figure(H200, [])


def test_no_library_that_draws_is_loaded_before_a_figure_is_drawn() -> None:
    modules = "gpu_profile.roofline.plots.roofs, gpu_profile.roofline.plots.panels, gpu_profile.roofline.workloads"
    code = f"import sys, {modules}; print([m for m in ('matplotlib', 'torch') if m in sys.modules])"
    assert printed("-c", code) == "[]\n"


def test_a_file_that_no_figure_can_be_written_to_is_told_in_one_line(tmp_path: Path) -> None:
    assert check_file(tmp_path / "a.PNG") == tmp_path / "a.PNG"
    for name, says in (
        ("a.xyz", r"a\.xyz: a figure's name ends in \.png, \.svg or \.pdf$"),
        ("a", "ends in"),
        ("missing/a.png", "cannot be written: there is no directory"),
        ("", "ends in"),
    ):
        with pytest.raises(UsageError, match=says):
            check_file(tmp_path / name)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UsageError, match="it is a directory"):
        check_file(tmp_path / "folder.png")
