"""What GPUs do for the code that uses them: regions as OpenTelemetry spans, joined with sampled GPU signals.

The public names load on first use, so that importing the package costs a service nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpu_profile.errors import GpuBackendError, GpuProfileError
    from gpu_profile.gpu_summary import GpuSample, GpuSummary, ProfiledResult
    from gpu_profile.monitor import GpuMonitor, gpu_profile
    from gpu_profile.process import configure, use_stream
    from gpu_profile.providers import join_spans, leave_spans
    from gpu_profile.region_instruments import instrument_regions
    from gpu_profile.region_metrics import RegionCollector, serve_metrics
    from gpu_profile.regions import region
    from gpu_profile.spans import GpuSpanProcessor

__version__ = "0.1.0"
__all__ = [
    "GpuBackendError",
    "GpuMonitor",
    "GpuProfileError",
    "GpuSample",
    "GpuSpanProcessor",
    "GpuSummary",
    "ProfiledResult",
    "RegionCollector",
    "configure",
    "gpu_profile",
    "instrument_regions",
    "join_spans",
    "leave_spans",
    "region",
    "serve_metrics",
    "use_stream",
]

_HOMES: Final = {
    "GpuBackendError": "errors",
    "GpuMonitor": "monitor",
    "GpuProfileError": "errors",
    "GpuSample": "gpu_summary",
    "GpuSpanProcessor": "spans",
    "GpuSummary": "gpu_summary",
    "ProfiledResult": "gpu_summary",
    "RegionCollector": "region_metrics",
    "configure": "process",
    "gpu_profile": "monitor",
    "instrument_regions": "region_instruments",
    "join_spans": "providers",
    "leave_spans": "providers",
    "load_ipython_extension": "integrations.jupyter",
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
