"""GPU profiling of running programs: regions as OpenTelemetry spans, joined with sampled GPU signals.

The packages in the order in which data pass them:

- `catalogue`: signals, metrics and attributes with their names, and the values samples, devices, events.
- `driver`: the sources of samples. `sampling`: the schedule of reading.
- `history`: the bounded past of one device. `join`: intervals over it. `regimes`: from evidence to a verdict.
- `regions`: named parts of a program, from a call to a span with GPU attributes.

`recording` (the file format) and `report` (the forms of output) are beside them. Above them are `monitor` (one measured
run, and the live view), `kernels` (GPU operations by region), `roofline` (an operation against ceilings), `calibration`
(the response of sensors), `serving` (the cost of an LLM server's requests) and `analysis` (recordings). Users enter by
`integrations`, by the command in `cli`, or by the names below. These load on first use, so that importing the package
costs a service nothing. A package imports only from packages before it; `pyproject.toml` has the order. At the bottom
are `units`, `clock`, `errors`, `protobuf` and `user_cache`; at the top is `testing`, a clock for tests of services.
`docs/architecture.md` has the same map, and `CONTRIBUTING.md` the steps to add a signal, a driver, a view or a regime's
rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpu_profile.driver.visible import Visible
    from gpu_profile.errors import GpuBackendError, GpuProfileError
    from gpu_profile.monitor import GpuMonitor, gpu_profile
    from gpu_profile.monitor.gpu_summary import GpuSample, GpuSummary, ProfiledResult
    from gpu_profile.regions.region import region
    from gpu_profile.regions.session import process as process
    from gpu_profile.regions.session.process import configure, session, stop, use_stream
    from gpu_profile.regions.telemetry.instruments import instrument_regions
    from gpu_profile.regions.telemetry.log_records import log_events
    from gpu_profile.regions.telemetry.prometheus import RegionCollector, serve_metrics
    from gpu_profile.regions.telemetry.providers import join_spans, leave_spans
    from gpu_profile.regions.telemetry.spans import GpuSpanProcessor

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
    "Visible",
    "configure",
    "gpu_profile",
    "instrument_regions",
    "join_spans",
    "leave_spans",
    "log_events",
    "region",
    "serve_metrics",
    "session",
    "stop",
    "use_stream",
]

_HOMES: Final = {
    "GpuBackendError": "errors",
    "GpuMonitor": "monitor",
    "GpuProfileError": "errors",
    "GpuSample": "monitor.gpu_summary",
    "GpuSpanProcessor": "regions.telemetry.spans",
    "GpuSummary": "monitor.gpu_summary",
    "ProfiledResult": "monitor.gpu_summary",
    "RegionCollector": "regions.telemetry.prometheus",
    "Visible": "driver.visible",
    "configure": "regions.session.process",
    "gpu_profile": "monitor",
    "instrument_regions": "regions.telemetry.instruments",
    "join_spans": "regions.telemetry.providers",
    "leave_spans": "regions.telemetry.providers",
    "load_ipython_extension": "integrations.jupyter",
    "log_events": "regions.telemetry.log_records",
    "process": "regions.session.process",
    "region": "regions.region",
    "serve_metrics": "regions.telemetry.prometheus",
    "session": "regions.session.process",
    "stop": "regions.session.process",
    "use_stream": "regions.session.process",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = import_module(f"{__name__}.{home}")
    if name != "process":  # a module; the names of its functions are exported themselves
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
