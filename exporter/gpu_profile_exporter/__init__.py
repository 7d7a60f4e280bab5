"""The exporter: reads every GPU of a node and serves what it finds to Prometheus."""

from __future__ import annotations


def version() -> str:
    """The version that is installed, or `0+source` when the package runs from its sources."""
    # Not needed by reader processes, which count: it brings 6 MiB along.
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("gpu-profile")
    except PackageNotFoundError:
        return "0+source"
