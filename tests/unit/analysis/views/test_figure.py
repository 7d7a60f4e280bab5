import sys
from dataclasses import replace
from math import isnan
from typing import Any

import pytest
from support.analysis import EMPTY, GPU, B, Run, analysed, hostile, with_gap
from support.programs import printed

from gpu_profile.analysis.views.figure import draw
from gpu_profile.errors import UsageError

pytest.importorskip("matplotlib")


def png(figure: object) -> bytes:
    made = figure._repr_png_()  # type: ignore[attr-defined] # what a notebook calls
    assert isinstance(made, bytes)
    return made


def test_a_figure_has_a_panel_for_each_signal_and_one_for_the_regions() -> None:
    figure = draw(analysed(Run().recording()))
    busy, power, regions = figure.axes
    assert busy.get_title("left") == "GPU 0 NVIDIA H200"
    assert (busy.get_ylabel(), power.get_ylabel()) == ("GPU busy, %", "power, W")
    assert busy.get_ylim() == (0, 100)
    told = [label.get_text() for label in regions.get_yticklabels()]
    assert [text.split()[0] for text in told] == ["load", "step", "forward"]
    assert all("60 ×" in text for text in told)
    assert regions.get_xlim()[1] == pytest.approx(18.5, abs=0.2)
    assert png(figure).startswith(b"\x89PNG")


def test_the_mean_that_is_drawn_is_what_was_measured() -> None:
    analysis = analysed(Run().recording())
    (line,) = draw(analysis).axes[0].lines
    values: Any = line.get_ydata()
    assert max(values) <= 100
    assert float(sum(values) / len(values)) == pytest.approx(100 * (analysis.devices[0].utilization or 0), rel=0.02)


def test_gaps_are_hatched_and_no_line_crosses_them() -> None:
    whole, broken = (draw(analysed(recording)) for recording in (Run().recording(), with_gap(Run())))
    hatched = [[patch for patch in figure.axes[0].patches if patch.get_hatch()] for figure in (whole, broken)]
    assert (len(hatched[0]), len(hatched[1])) == (0, 1)
    (line,) = broken.axes[0].lines
    values: Any = line.get_ydata()
    assert any(isnan(value) for value in values)


def test_only_devices_that_regions_ran_on_are_drawn_if_there_are_any() -> None:
    recording = Run().recording()
    columns = recording.samples[GPU.uuid]
    both = replace(recording, devices=(GPU, B), samples={GPU.uuid: columns, B.uuid: columns})
    assert len(draw(analysed(both)).axes) == 3
    assert len(draw(analysed(replace(both, spans=()))).axes) == 4


def test_hostile_names_and_nothing_at_all_can_be_drawn() -> None:
    run = Run(calls=8)
    run.spans = [span._replace(name="$\\frac{1}{") for span in run.spans]
    for recording in (run.recording(), hostile(Run(calls=8)), EMPTY):
        assert png(draw(analysed(recording))).startswith(b"\x89PNG")


def test_without_matplotlib_there_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(UsageError, match=r"^a figure needs matplotlib.*: pip install matplotlib$"):
        draw(analysed(EMPTY))


def test_nothing_else_loads_matplotlib() -> None:
    code = "import sys, gpu_profile.analysis; print('matplotlib' in sys.modules)"
    assert printed("-c", code) == "False\n"
