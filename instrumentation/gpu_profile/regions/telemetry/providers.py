"""Wraps the span processors of the service's tracer provider, so that they get joined spans, whenever they are added.

Also publishes region metrics on the service's meter provider, once there is one.

OpenTelemetry's SDK has no public way to wrap the processors of a provider, so this uses private names:
`TracerProvider._active_span_processor`, its `_span_processors` and `_lock`, and the API's `trace._TRACER_PROVIDER` and
`trace._set_tracer_provider`. If one is missing, spans are exported without GPU attributes, which is logged once. Region
metrics are not affected. A `GpuSpanProcessor` around the service's own processor needs none of these names.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics, trace

from gpu_profile.regions.session import process
from gpu_profile.regions.session.exits import FINISH_S
from gpu_profile.regions.session.session import Session

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

    from gpu_profile.regions.telemetry.spans import GpuSpanProcessor

_log = logging.getLogger("gpu_profile")
#: The attribute of a wrapper with the function that it replaces.
_ORIGINAL: Final = "_gpu_profile_original"


class _Joined:
    """A provider with wrapped processors: the present ones and any that are added later."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider
        self._multi: Any = provider._active_span_processor
        self._multi._lock, self._multi._span_processors  # noqa: B018 - fail before anything is changed
        self._ours: list[GpuSpanProcessor] = []
        #: The processors after the last wrapping; None if some are not wrapped.
        self._wrapped: tuple[SpanProcessor, ...] | None = None
        self.renew()
        add = provider.add_span_processor

        @functools.wraps(add)
        def add_and_wrap(span_processor: SpanProcessor) -> None:
            add(span_processor)
            _safely(_look)

        self._shadow = provider.add_span_processor = add_and_wrap

    @property
    def changed(self) -> bool:
        return self._multi._span_processors is not self._wrapped

    def renew(self) -> None:
        """Wrap the processors that are not wrapped yet."""
        from gpu_profile.regions.telemetry.spans import GpuSpanProcessor

        # Made outside the SDK's lock, which must be held only for a moment.
        wrapped = {
            id(processor): GpuSpanProcessor(processor)
            for processor in self._multi._span_processors
            if not isinstance(processor, GpuSpanProcessor)
        }
        with self._multi._lock:
            now = tuple(wrapped.get(id(processor), processor) for processor in self._multi._span_processors)
            self._multi._span_processors = now
            left_out = any(not isinstance(processor, GpuSpanProcessor) for processor in now)
        self._ours += wrapped.values()
        self._wrapped = None if left_out else now  # one was added in between: the next `_look` wraps it

    def leave(self) -> None:
        """Restore the original processors, then pass the waiting spans on to them."""
        if vars(self.provider).get("add_span_processor") is self._shadow:
            del self.provider.add_span_processor
        inner = {id(ours): ours.inner for ours in self._ours}
        with self._multi._lock:
            self._multi._span_processors = tuple(
                inner.get(id(processor), processor) for processor in self._multi._span_processors
            )
        for ours in self._ours:
            ours.inner = _outliving(ours.inner)
            ours.shutdown()


def _outliving(inner: SpanProcessor) -> SpanProcessor:
    """A processor that forwards the last spans to `inner` but not the shutdown of its wrapper."""
    from opentelemetry.sdk.trace import SpanProcessor

    class Outliving(SpanProcessor):
        def on_start(self, span: Span, parent_context: Any = None) -> None:
            inner.on_start(span, parent_context=parent_context)

        def on_end(self, span: ReadableSpan) -> None:
            inner.on_end(span)

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return inner.force_flush(timeout_millis)

    return Outliving()


_joined: list[_Joined] = []
#: Whether to join the provider that the service sets. None before `join_spans` and `leave_spans`.
_wanted: bool | None = None
#: The last provider that could not be joined: it is logged once.
_refused: Any = None


def join_spans(provider: trace.TracerProvider | None = None) -> bool:
    """Add GPU attributes to region spans for every span processor of a provider, including ones added later.

    Default for `provider`: the one that the service sets, now or later. A processor that is a `GpuSpanProcessor` is
    left unchanged. The others get the span of an ended region up to a second later. A second call does nothing.

    Returns True if the provider's spans are joined now. Returns False if there is no provider yet, or if it is not the
    OpenTelemetry SDK's. The latter is logged: its spans then have no GPU attributes, but region metrics are complete.
    """
    global _wanted  # noqa: PLW0603 - one service, one provider
    with process._lock:  # making a processor takes this lock: taking it first avoids a deadlock
        if provider is None:
            _wanted = True
            _await_provider()
            provider = _provider()
        return provider is not None and _join(provider)


def leave_spans() -> None:
    """Undo `join_spans`: restore the providers' own processors and pass the waiting spans on to them."""
    global _wanted, _refused
    with process._lock:
        _wanted, _refused = False, None
        shadow = getattr(trace, "_set_tracer_provider", None)
        if shadow is not None and hasattr(shadow, _ORIGINAL):
            trace._set_tracer_provider = getattr(shadow, _ORIGINAL)
        left = _joined[:]
        _joined.clear()
    for joined in left:
        joined.leave()


def auto(session: Session) -> None:
    """A hook for `process.on_start`: join the service's spans and publish region metrics without code of its own.

    Region metrics need a meter provider of the SDK. Neither happens after `leave_spans`.
    """
    if _wanted is not False:
        _safely(join_spans)
        _safely(_meter)
    session.on_step.append(_step)


def _step(_: bool) -> bool:
    """A hook of the session's steps: look for new providers and processors. Never behind."""
    _safely(_look)
    if _wanted:
        _safely(_meter)
    return False


def _meter() -> None:
    """Publish region metrics if the service has a meter provider of the SDK."""
    kinds = _sdks("metrics", "MeterProvider")
    if kinds and isinstance(metrics.get_meter_provider(), kinds):
        from gpu_profile.regions.telemetry.instruments import instrument_regions

        instrument_regions()


def _look() -> None:
    """Wrap new processors and join a new provider. Costs a few comparisons if there are none."""
    if any(joined.changed for joined in _joined):
        with process._lock:
            for joined in _joined:
                joined.renew()
    if _wanted:
        provider = _provider()
        if provider is not None and provider is not _refused and not _is_joined(provider):
            join_spans()


def _provider() -> trace.TracerProvider | None:
    """The provider that the service has set. The public `get_tracer_provider` may set one by environment variable."""
    provider: trace.TracerProvider | None = getattr(trace, "_TRACER_PROVIDER", None)
    return provider


def _is_joined(provider: trace.TracerProvider) -> bool:
    return any(joined.provider is provider for joined in _joined)


def _join(provider: Any) -> bool:
    global _refused  # noqa: PLW0603 - as above
    if _is_joined(provider):
        return True
    if isinstance(provider, trace.ProxyTracerProvider):
        return False  # the proxy of a provider that is not set yet
    if not isinstance(provider, _sdks("trace", "TracerProvider")):
        why = "is not the OpenTelemetry SDK's"
    else:
        try:
            from gpu_profile.regions.telemetry.spans import GpuSpanProcessor

            # The user may have wrapped the processor of all processors.
            if not isinstance(provider._active_span_processor, GpuSpanProcessor):
                _joined.append(_Joined(provider))
            return True
        except AttributeError as error:
            why = f"is of an SDK with other internals ({error}): wrap its processors in GpuSpanProcessor"
    if provider is not _refused:
        _refused = provider
        kind = f"{type(provider).__module__}.{type(provider).__qualname__}"
        _log.warning(
            "gpu-profile: spans have no GPU attributes: the tracer provider %s %s; "
            "region metrics are complete", kind, why
        )  # fmt: skip
    return False


def _sdks(module: str, name: str) -> tuple[Any, ...]:
    """The SDK's class of that name, in a tuple; empty until the program has imported it."""
    sdk_class = getattr(sys.modules.get(f"opentelemetry.sdk.{module}"), name, None)
    return () if sdk_class is None else (sdk_class,)


def _await_provider() -> None:
    """Join a provider that is set later at once, instead of at the session's next step."""
    original = getattr(trace, "_set_tracer_provider", None)
    if original is None or hasattr(original, _ORIGINAL):
        return

    @functools.wraps(original)
    def set_and_join(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        if _wanted:
            _safely(_look)

    setattr(set_and_join, _ORIGINAL, original)
    trace._set_tracer_provider = set_and_join


@process.at_finish
def _flush() -> None:
    """Flush the service's providers: spans of processors that are not wrapped, and the last region metrics."""
    kinds = _sdks("trace", "TracerProvider") + _sdks("metrics", "MeterProvider")
    for provider in (_provider(), metrics.get_meter_provider()):
        if isinstance(provider, kinds):
            provider.force_flush(int(FINISH_S * 1000))


_failed = False


def _safely(call: Any) -> None:
    """Call, and log the first error: an internal error must not fail the service's start, its spans or the join."""
    global _failed  # noqa: PLW0603 - logged once
    try:
        call()
    except Exception:  # noqa: BLE001 - as the docstring says
        if not _failed:
            _failed = True
            _log.exception("gpu-profile: the tracer provider's spans could not be joined")
