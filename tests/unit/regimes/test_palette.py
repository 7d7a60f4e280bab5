"""One palette wherever regimes are shown."""

import colorsys

import pytest

from gpu_profile.integrations import jupyter
from gpu_profile.regimes import Regime
from gpu_profile.regimes.palette import COLOURS
from gpu_profile.report import page
from gpu_profile.roofline.plots.theme import DARK, LIGHT
from gpu_profile_exporter.demo import screen


def test_every_view_has_the_colours_of_the_palette() -> None:
    shown = page.document("a", [], by="regime", drawn=None)
    assert set(COLOURS) == set(Regime)
    for regime, colour in COLOURS.items():
        assert f"--r-{regime}: {colour.light};" in shown.replace(" }", ";")
        assert f"--r-{regime}: {colour.dark};" in shown.replace(" }", ";")
        assert jupyter._COLOURS[str(regime)] == colour.either
        assert screen._COLOURS[str(regime)] == colour.terminal
    for theme, ground in ((LIGHT, "light"), (DARK, "dark")):
        assert dict(theme.regimes) == {name: getattr(COLOURS[Regime[name]], ground) for name in theme.regimes}


def saturation(colour: str) -> float:
    return colorsys.rgb_to_hsv(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))[1]


@pytest.mark.parametrize("regime", [Regime.UNKNOWN, Regime.IDLE])
def test_no_result_is_grey_and_never_red(regime: Regime) -> None:
    colour = COLOURS[regime]
    assert colour.terminal == "bright_black"
    assert all(saturation(each) < 0.15 for each in colour[:3])


def test_no_regime_has_the_red_of_faults() -> None:
    assert all("red" not in colour.terminal for colour in COLOURS.values())
