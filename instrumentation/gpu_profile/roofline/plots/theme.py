"""Colours, marks, text and file output of the figures. Creating a figure loads matplotlib."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from gpu_profile.errors import UsageError
from gpu_profile.regimes import Regime
from gpu_profile.regimes.palette import COLOURS
from gpu_profile.report.notebook_figure import notebook_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

#: The smallest size of text, in points.
SMALL: Final = 8.0
_LONGEST: Final = 28
_PREFIXES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class Theme(NamedTuple):
    """A figure's colours. Marks have shapes of their own (`MARKERS`), for readers who do not see the hues."""

    surface: str
    ink: str
    soft: str
    faint: str
    grid: str
    regimes: Mapping[str, str]


#: The shape of each regime's marks, so that colour is not needed to distinguish regimes.
MARKERS: Final[Mapping[str, str]] = {
    "OVERHEAD_BOUND": "v",
    "MEMORY_BOUND": "o",
    "COMPUTE_BOUND": "s",
    "LATENCY_BOUND": "D",
    "BALANCED": "P",
    "UNKNOWN": "X",
}


def _regimes(ground: Literal["light", "dark"]) -> Mapping[str, str]:
    return {name: getattr(COLOURS[Regime[name]], ground) for name in MARKERS}


LIGHT: Final = Theme(
    surface="#ffffff", ink="#1c2024", soft="#60646c", faint="#b4b8c1", grid="#e6e8ec", regimes=_regimes("light")
)
DARK: Final = Theme(
    surface="#14161a", ink="#edeef0", soft="#a9adb6", faint="#555b66", grid="#2b2f36", regimes=_regimes("dark")
)


def check_file(path: str | Path) -> Path:
    """The path. Raises UsageError if no figure can be written to it, or if matplotlib is not installed."""
    target = Path(path)
    formats = notebook_figure(1, 1).canvas.get_supported_filetypes()
    if target.suffix[1:].lower() not in formats:
        raise UsageError(f"{target}: a figure's name ends in .png, .svg or .pdf")
    folder = target.parent
    problem = ""
    if target.is_dir():
        problem = "it is a directory"
    elif not folder.is_dir():
        problem = f"there is no directory {folder}"
    elif not os.access(target if target.exists() else folder, os.W_OK):
        problem = "no permission"
    if problem:
        raise UsageError(f"{target}: cannot be written: {problem}")
    return target


def save(figure: Figure, target: Path) -> None:
    """Write a figure to a file that `check_file` accepted. Raises UsageError if that fails."""
    try:
        figure.savefig(target, dpi=130)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror or error}") from error


def plain(axes: Axes, theme: Theme) -> None:
    """Style the axes: thin grid, no frame at the top and right, text of 8 points."""
    axes.set_facecolor(theme.surface)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.soft)
    axes.spines[["left", "bottom"]].set_linewidth(0.6)
    axes.tick_params(which="both", labelsize=SMALL, length=2.5, width=0.6, color=theme.soft, labelcolor=theme.soft)
    axes.grid(visible=True, which="major", color=theme.grid, linewidth=0.6)
    axes.set_axisbelow(True)


def decade(value: float) -> str:
    """A tick label with an SI prefix: `10 G`."""
    scale, prefix = next((row for row in _PREFIXES if value >= row[0]), (1.0, ""))
    return f"{value / scale:g} {prefix}".rstrip()


def literally(text: str, longest: int = _LONGEST) -> str:
    """The text on one line of at most `longest` characters, with `$` escaped, which would begin mathematics."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return (text if len(text) <= longest else text[: longest - 1] + "…").replace("$", r"\$")


def marker(regime: str) -> str:
    """The shape of a regime's marks."""
    return MARKERS.get(regime, MARKERS["UNKNOWN"])


def colour(regime: str, theme: Theme) -> str:
    """The colour of a regime's marks."""
    return theme.regimes.get(regime, theme.regimes["UNKNOWN"])


def halo(text: Text, theme: Theme) -> None:
    """Outline the text in the colour of the background, so that it stays legible on lines."""
    from matplotlib.patheffects import withStroke

    text.set_path_effects([withStroke(linewidth=2.5, foreground=theme.surface)])


def legend(where: Any, regimes: Iterable[str], theme: Theme, *, columns: int = 9, **place: Any) -> None:
    """Draw a legend of the regimes' marks, `columns` in a row, in the order of `MARKERS`. `where`: axes or figure."""
    from matplotlib.lines import Line2D

    given = set(regimes)
    shown = [regime for regime in MARKERS if regime in given or (regime == "UNKNOWN" and given - set(MARKERS))]
    look: dict[str, Any] = {"linestyle": "", "markersize": 7, "markeredgecolor": theme.surface}
    handles = [Line2D([], [], marker=marker(each), color=colour(each, theme), label=each, **look) for each in shown]
    if handles:
        where.legend(
            handles=handles,
            ncols=min(columns, len(handles)),
            frameon=False,
            fontsize=SMALL,
            labelcolor=theme.ink,
            handletextpad=0.1,
            columnspacing=1.4,
            **place,
        )
