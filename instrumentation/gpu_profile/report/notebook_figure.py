"""A matplotlib figure that a notebook displays even without pyplot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_profile.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def notebook_figure(width: float, height: float, **options: Any) -> Figure:
    """An empty figure, sizes in inches, with the `options` of `Figure`. UsageError if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            f"a figure needs matplotlib, which cannot be loaded ({error}): pip install matplotlib"
        ) from error

    class Drawing(Figure):
        def _repr_png_(self) -> bytes:
            from io import BytesIO

            out = BytesIO()
            self.savefig(out, format="png", dpi=110)
            return out.getvalue()

    figure = Drawing(figsize=(width, height), **options)
    FigureCanvasAgg(figure)
    return figure
