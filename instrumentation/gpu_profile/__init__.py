"""What GPUs do for the code that uses them: regions as OpenTelemetry spans, joined with sampled GPU signals.

The public names load on first use, so that importing the package costs a service nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpu_profile.errors import GpuBackendError, GpuProfileError
    from gpu_profile.process import configure, use_stream
    from gpu_profile.region_metrics import RegionCollector, serve_metrics
    from gpu_profile.regions import region
    from gpu_profile.spans import GpuSpanProcessor

__version__ = "0.1.0"
__all__ = [
    "GpuBackendError",
    "GpuProfileError",
    "GpuSpanProcessor",
    "RegionCollector",
    "configure",
    "region",
    "serve_metrics",
    "use_stream",
]

_HOMES: Final = {
    "GpuBackendError": "errors",
    "GpuProfileError": "errors",
    "GpuSpanProcessor": "spans",
    "RegionCollector": "region_metrics",
    "configure": "process",
    "region": "regions",
    "serve_metrics": "region_metrics",
    "use_stream": "process",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
