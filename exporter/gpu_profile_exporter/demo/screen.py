"""Standard output of the demonstration."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from typing import Final

import click

from gpu_profile.regimes.palette import COLOURS

_COLOURS: Final = {str(regime): colour.terminal for regime, colour in COLOURS.items()}


class Screen:
    """Standard output. On a terminal, a table below the permanent lines is updated in place."""

    def __init__(self) -> None:
        self.terminal = os.isatty(1) and os.environ.get("TERM") != "dumb"
        self._drawn = 0

    def say(self, text: str) -> None:
        """Print permanent lines."""
        self.draw([])
        click.echo(text, color=self.terminal or bool(os.environ.get("FORCE_COLOR")))

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the lines of the last call, cut to the terminal's size. Does nothing without a terminal."""
        if not self.terminal:
            return
        columns, rows = shutil.get_terminal_size()
        shown = [_coloured(line[:columns]) for line in lines[: rows - 1]]
        # Move up to the first drawn line and clear the screen from there.
        back = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        click.echo(back + "".join(f"{line}\n" for line in shown), nl=False, color=True)
        self._drawn = len(shown)


def _coloured(line: str) -> str:
    if os.environ.get("NO_COLOR"):
        return line
    return re.sub("|".join(_COLOURS), lambda regime: click.style(regime[0], fg=_COLOURS[regime[0]]), line)
