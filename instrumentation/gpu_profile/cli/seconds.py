"""Lengths of time on a command line."""

from __future__ import annotations

from math import isfinite
from typing import Any

import click


class Seconds(click.FloatRange):
    """A finite number of at least `min`; click's own range lets NaN through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or click's own error."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return number
