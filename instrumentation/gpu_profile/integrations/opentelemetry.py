"""The instrumentor for `opentelemetry-instrument`: a service gets GPU attributes without a change of its code."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from gpu_profile.errors import UsageError
from gpu_profile.regions.running import begun, innermost
from gpu_profile.regions.session import process
from gpu_profile.regions.telemetry import instruments, log_records, providers, server_spans
from gpu_profile.regions.telemetry.server_spans import VARIABLE, ServerSpanRule, parse_rule

if TYPE_CHECKING:
    from gpu_profile.regions.execution import Execution
    from gpu_profile.regions.session.session import Session

    class BaseInstrumentor:
        """OpenTelemetry's class, for the type checker: it may not be installed."""

        is_instrumented_by_opentelemetry: bool

        def instrument(self, **options: Any) -> Any:
            """Switch on."""

        def uninstrument(self, **options: Any) -> Any:
            """Switch off."""

else:
    try:
        from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
    except ImportError:

        class BaseInstrumentor:
            """Replaces OpenTelemetry's class if `opentelemetry-instrumentation` is not installed."""

            is_instrumented_by_opentelemetry = False

            def instrument(self, **options: Any) -> None:
                """Switch on."""
                self._instrument(**options)
                self.is_instrumented_by_opentelemetry = True

            def uninstrument(self, **options: Any) -> None:
                """Switch off."""
                self._uninstrument(**options)
                self.is_instrumented_by_opentelemetry = False


_log = logging.getLogger("gpu_profile")


class GpuProfileInstrumentor(BaseInstrumentor):
    """Joins the service's spans, including spans that are no regions, and publishes region metrics.

    `instrument()` takes `spans`: a `ServerSpanRule` or its text; default: the environment's GPU_PROFILE_SPANS, else
    `"server,consumer,regions"`. It also takes `tracer_provider`, `meter_provider` and `logger_provider`; default: the
    service's, set before or later. XID errors and lost GPUs are logged through the logger provider, with the trace that
    ran. Raises UsageError for an invalid rule; an invalid GPU_PROFILE_SPANS is logged and ignored.
    Does nothing if gpu-profile is disabled.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """No packages: it works with the spans of any library."""
        return ()

    def _instrument(self, **options: Any) -> None:
        spans = options.get("spans")
        rule = _rule() if spans is None else parse_rule(spans) if isinstance(spans, str) else spans
        if process.disabled:
            return
        server_spans.watch(rule, session=process.session, innermost=_innermost)
        process.on_start(_watch_spans)
        providers.join_spans(options.get("tracer_provider"))
        instruments.instrument_regions(options.get("meter_provider"))
        log_records.log_events(options.get("logger_provider"))

    def _uninstrument(self, **_: Any) -> None:
        process.off_start(_watch_spans)
        server_spans.leave()
        providers.leave_spans()
        instruments.leave_regions()
        log_records.leave_events()


def _rule() -> ServerSpanRule:
    words = os.environ.get(VARIABLE)
    if words:
        try:
            return parse_rule(words)
        except UsageError as error:
            _log.warning("gpu-profile: %s is ignored: %s", VARIABLE, error)
    return ServerSpanRule()


def _watch_spans(session: Session) -> None:
    """From now on regions look for the service's spans around them, even regions without a span of their own."""
    if server_spans.current is not None:
        session.watch_spans()


def _innermost() -> Execution | None:
    return innermost(begun.get())
