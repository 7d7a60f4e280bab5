"""Draws docs/images/demo.svg from a run of the demonstration: `python docs/make_picture.py [--seconds 60]`.

The picture is what the demonstration printed, with colours for the regimes and nothing else changed. It always runs on
simulated GPUs and says so in its title.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from gpu_profile.regimes.palette import COLOURS

PICTURE: Final = Path(__file__).parent / "images" / "demo.svg"
WIDTH: Final = 127
#: What stands for each regime; errors of the comparison below 5 % are good.
STYLES: Final = {str(regime): f"bold {colour.terminal}" for regime, colour in COLOURS.items()}
THEME: Final = TerminalTheme(
    (17, 20, 24),
    (214, 219, 226),
    [(60, 66, 74), (236, 106, 94), (98, 190, 118), (222, 184, 84), (96, 158, 230), (190, 132, 220), (84, 190, 200),
     (214, 219, 226)],
)  # fmt: skip


def main() -> None:
    """Run the demonstration and write the picture."""
    parser = argparse.ArgumentParser(description="Draw docs/images/demo.svg from a run of the demonstration.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--output", type=Path, default=PICTURE)
    options = parser.parse_args()
    command = ["-m", "gpu_profile_exporter", "demo", "--simulated", "--seconds", f"{options.seconds:g}"]
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": str(WIDTH)},
    )
    if "true busy" not in done.stdout:
        sys.exit(f"the demonstration did not compare itself with the truth, so there is no picture:\n{done.stdout}")
    options.output.write_text(draw(done.stdout), encoding="utf-8")


def draw(printed: str) -> str:
    """The SVG of what the demonstration printed, without the list of one span's attributes."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ gpu-profile-exporter demo --simulated", style="bold"))
    for line in without_span(printed.splitlines()):
        console.print(coloured(line), soft_wrap=True, no_wrap=True, crop=True)
    svg = console.export_svg(title="gpu-profile: what the regions of a service do on its (simulated) GPU", theme=THEME)
    # rich asks a server for its font; a picture in a repository must stand on its own.
    svg = re.sub(r"@font-face\s*{[^}]*}", "", svg)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def without_span(lines: list[str]) -> list[str]:
    """Leave out the addresses and the span in the middle."""
    kept, inside = [], False
    for line in lines:
        inside = line.startswith("one of ") or (inside and line != "")
        if not inside and not re.match(
            r"((?:live page|metrics) of \w+|work|first joined|Report:|The live pages) ", line
        ):
            kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).splitlines()


def coloured(line: str) -> Text:
    """The line with colours for regimes, rules and headings."""
    text = Text(line)
    text.highlight_regex("^(region .*|─[─ ]*)$", "dim")
    text.highlight_regex("^SIMULATED GPUs", "bold yellow")
    for regime, style in STYLES.items():
        text.highlight_regex(rf"\b{regime}\b", style)
    return text


if __name__ == "__main__":
    main()
