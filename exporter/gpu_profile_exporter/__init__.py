"""The exporter: reads every GPU of a node and serves what it finds to Prometheus."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _installed


def version() -> str:
    """The version that is installed, or `0+source` when the package runs from its sources."""
    try:
        return _installed("gpu-profile")
    except PackageNotFoundError:
        return "0+source"
