"""What points are called where many are alike: layers that differ only by a number have one name together. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from gpu_profile.roofline.plots.labels import Anchor
from gpu_profile.roofline.plots.theme import literally

_NUMBER: Final = re.compile(r"(\d+)")


def alike(names: Sequence[str]) -> list[list[int]]:
    """Indices of names that are the same but for numbers, in the order of their first."""
    found: dict[tuple[str, ...], list[int]] = {}
    for i, name in enumerate(names):
        found.setdefault(tuple(_NUMBER.split(name)[::2]), []).append(i)
    return list(found.values())


def together(names: Sequence[str], discs: Sequence[Anchor], *, apart: float) -> list[list[int]]:
    """The same, of points that touch each other in a chain; with gaps of less than `apart` they do."""
    groups = []
    for same in alike(names):
        left = sorted(same, key=lambda i: discs[i].x)
        while left:
            group = [left.pop(0)]
            for member in group:
                near = [i for i in left if _gap(discs[member], discs[i]) < apart]
                group += near
                left = [i for i in left if i not in near]
            groups.append(group)
    return groups


def common_name(names: Sequence[str]) -> str:
    """One name for names that differ only by numbers, those as a star, and how many they are: `layers.*.mlp ×6`."""
    if len(names) == 1:
        return literally(names[0])
    parts = zip(*map(_NUMBER.split, names), strict=True)
    return f"{literally(''.join(each[0] if len(set(each)) == 1 else '*' for each in parts))} ×{len(names)}"


def _gap(a: Anchor, b: Anchor) -> float:
    return math.hypot(a.x - b.x, a.y - b.y) - a.radius - b.radius
