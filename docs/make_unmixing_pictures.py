"""Draws docs/images/mixture.svg and locked.svg: `python docs/make_unmixing_pictures.py`.

Two regions of known power take turns under windows of 100 ms. Each window is a line in the plane of the two powers: all
pairs that explain its reading. In a program whose executions vary the lines cross in one place; in a loop whose period
divides the window they are all the same line. What the pictures say of the rates is what `unmix.Fit` says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.rate import Rate
from gpu_profile.join.unmixing.solving.unmix import Fit

IMAGES: Final = Path(__file__).parent / "images"
WINDOW_MS: Final = 100.0
WATTS: Final = (420.0, 180.0)
MOST_W: Final = 600.0
SHOWN: Final = 4
COLOURS: Final = ("#d9822b", "#2b7fd9")
WIDTH: Final = 760
STRIP: Final = (40.0, 680.0, 60.0)
PLANE: Final = (60.0, 150.0, 230.0)
_FONT: Final = 'font-family="system-ui, sans-serif" font-size="13"'


class Load(NamedTuple):
    """Executions by turns: the ends of each in ms, region A first."""

    ends: Floats

    def shares(self, windows: int) -> Floats:
        """Region A's and B's share of each window."""
        starts = np.concatenate(([0.0], self.ends[:-1]))
        edges = np.arange(windows + 1) * WINDOW_MS
        active = np.array([
            np.clip(edges[:, None], starts[i::2], self.ends[i::2]) - starts[i::2] for i in (0, 1)
        ]).sum(axis=2)  # fmt: skip
        shares: Floats = np.diff(active, axis=1).T / WINDOW_MS
        return shares


def varied() -> Load:
    """Executions of 10 to 60 ms."""
    return Load(np.cumsum(np.random.default_rng(3).uniform(10, 60, 80)))


def locked() -> Load:
    """A loop of 50 ms."""
    return Load(np.cumsum(np.tile([30.0, 20.0], 40)))


def rates(shares: Floats, values: Floats) -> list[Rate]:
    """What the product says of the two regions."""
    equations = Equations()
    equations.add(np.column_stack((np.zeros(len(shares)), shares)), values)
    fit = Fit(equations, most=MOST_W)
    return [fit.rate(np.array([0.0, *unit])) for unit in np.eye(2)]


def draw(load: Load, title: str) -> str:
    """The strip of executions and windows above the plane of the two powers."""
    shares = load.shares(20)
    values = shares @ np.array(WATTS) + np.random.default_rng(0).normal(0, 1, len(shares))
    parts = [f'<text x="40" y="28" {_FONT} font-weight="600" class="ink">{title}</text>']
    parts += _strip(load, values)
    parts += _plane(shares, values)
    parts += _said(rates(shares, values))
    light, dark = (f".ink{{fill:{ink}}}.line{{stroke:{ink}}}" for ink in ("#1c2127", "#e3e7ec"))
    style = f"<style>{light}@media (prefers-color-scheme:dark){{{dark}}}</style>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 420" role="img" aria-label="{title}">'
        f"{style}{''.join(parts)}</svg>\n"
    )


def _strip(load: Load, values: Floats) -> list[str]:
    x, width, y = STRIP
    scale = width / (SHOWN * WINDOW_MS)
    parts, start = [], 0.0
    for i, end in enumerate(load.ends):
        right = min(float(end), SHOWN * WINDOW_MS)
        if right <= start:
            break
        parts.append(
            f'<rect x="{x + start * scale:.1f}" y="{y}" width="{(right - start) * scale:.1f}" height="22" '
            f'fill="{COLOURS[i % 2]}"/>'
        )
        start = right
    for i in range(SHOWN + 1):
        at = x + i * WINDOW_MS * scale
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y - 6}" y2="{y + 46}" class="line"/>')
    for i, value in enumerate(values[:SHOWN]):
        at = x + (i + 0.5) * WINDOW_MS * scale
        parts.append(f'<text x="{at:.1f}" y="{y + 42}" {_FONT} text-anchor="middle" class="ink">{value:.0f} W</text>')
    return parts


def _plane(shares: Floats, values: Floats) -> list[str]:
    x, y, size = PLANE
    scale = size / MOST_W

    def place(a: float, b: float) -> tuple[float, float]:
        return x + a * scale, y + size - b * scale

    parts = [
        f'<clipPath id="plane"><rect x="{x}" y="{y}" width="{size}" height="{size}"/></clipPath>',
        f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="none" class="line"/>',
        (
            f'<text x="{x + size / 2}" y="{y + size + 32}" {_FONT} text-anchor="middle" fill="{COLOURS[0]}">'
            f"power of A, 0 to {MOST_W:.0f} W</text>"
        ),
        (
            f'<text transform="translate({x - 14},{y + size / 2}) rotate(-90)" {_FONT} text-anchor="middle" '
            f'fill="{COLOURS[1]}">power of B</text>'
        ),
    ]
    for (a, b), value in zip(shares, values, strict=True):
        ends = [(value / a, 0.0), (0.0, value / b)] if min(a, b) > 0.02 else []
        if ends:
            (x1, y1), (x2, y2) = (place(*end) for end in ends)
            parts.append(
                f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="line" stroke-opacity="0.35" '
                'clip-path="url(#plane)"/>'
            )
    at = place(*WATTS)
    parts.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="5" fill="none" stroke="#d92b4b" stroke-width="2"/>')
    return parts


def _said(found: list[Rate]) -> list[str]:
    x, y = PLANE[0] + PLANE[2] + 40, PLANE[1] + 20
    lines = [("Each line: all pairs of powers that explain one window.", "ink"), ("Circle: the true pair.", "ink")]
    parts = [
        f'<text x="{x}" y="{y + 22 * i}" {_FONT} class="{kind}">{text}</text>' for i, (text, kind) in enumerate(lines)
    ]
    for i, (rate, name) in enumerate(zip(found, "AB", strict=True)):
        said = rate.reason or f"{rate.value:.0f} ± {rate.half_width:.0f} W"
        text = f"{name}: {said}".replace("not identifiable: the regions run in lock-step", "refused: in lock-step")
        parts.append(f'<text x="{x}" y="{y + 70 + 24 * i}" {_FONT} fill="{COLOURS[i]}">{text}</text>')
    return parts


def main() -> None:
    """Write both pictures."""
    for name, load, title in (
        ("mixture", varied(), "Executions that vary: every window is another mixture"),
        ("locked", locked(), "A loop of 50 ms under windows of 100 ms: every window is the same mixture"),
    ):
        (IMAGES / f"{name}.svg").write_text(draw(load, title), encoding="utf-8")


if __name__ == "__main__":
    main()
