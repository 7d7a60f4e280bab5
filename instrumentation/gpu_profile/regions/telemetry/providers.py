"""The service's tracer provider: every span processor of it gets joined spans, whenever it was added.

And its meter provider, which needs no more than a look whether there is one.

OpenTelemetry's SDK has no public way to stand before the processors of a provider, so this uses names of its own:
`TracerProvider._active_span_processor`, its `_span_processors` and `_lock`, and the API's `trace._TRACER_PROVIDER` and
`trace._set_tracer_provider`. Where one is missing, spans go out as they are, one line in the log says so, and region
metrics are complete all the same. `GpuSpanProcessor` around one's own processor needs none of them.
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
#: The attribute of a function of ours that names the one in whose place it is.
_ORIGINAL: Final = "_gpu_profile_original"


class _Joined:
    """A provider whose processors are wrapped: those that it has, and those that it will get."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider
        self._multi: Any = provider._active_span_processor
        self._multi._lock, self._multi._span_processors  # noqa: B018 - to fail before anything is changed
        self._ours: list[GpuSpanProcessor] = []
        self._known: tuple[SpanProcessor, ...] | None = None
        self.renew()
        add = provider.add_span_processor

        @functools.wraps(add)
        def add_and_wrap(span_processor: SpanProcessor) -> None:
            add(span_processor)
            _safely(_look)

        self._shadow = provider.add_span_processor = add_and_wrap

    @property
    def changed(self) -> bool:
        return self._multi._span_processors is not self._known

    def renew(self) -> None:
        """Wrap what is not wrapped yet."""
        from gpu_profile.regions.telemetry.spans import GpuSpanProcessor

        # Outside the lock, which the SDK holds for a moment only.
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
        self._known = None if left_out else now  # added in between: the next look finds it

    def leave(self) -> None:
        """Put the processors back as they were, once they have all spans that wait."""
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
    """Stand-in for a processor that gets the last spans, and is not shut down with what hands them over."""
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
#: Whether the provider that the service sets is joined: None until somebody has said so.
_wanted: bool | None = None
#: The last provider that could not be joined, which is said once.
_refused: Any = None


def join_spans(provider: trace.TracerProvider | None = None) -> bool:
    """Have every span processor of a provider get region spans with what GPUs did; processors added later as well.

    Without `provider` it is the one that the service sets, now or later. Processors that are a `GpuSpanProcessor`
    already are left alone; the others get an ended region's span up to a second later. True if the provider's spans
    are joined now, False if there is none yet, or one that is not the OpenTelemetry SDK's: then a line in the log says
    so, its spans go out as they are, and region metrics are complete all the same. Calling it twice is fine.
    """
    global _wanted  # noqa: PLW0603 - one service, one provider
    with process._lock:  # the one that making a processor takes, so that no two threads wait for each other
        if provider is None:
            _wanted = True
            _await_provider()
            provider = _provider()
        return provider is not None and _join(provider)


def leave_spans() -> None:
    """Undo `join_spans`: providers get back their own processors, which get the spans that wait first."""
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
    """A hook for `process.on_start`: what a service gets with no code of its own, unless it has left.

    Its spans are joined, and its meter provider, if it has one of the SDK's, gets the region metrics.
    """
    if _wanted is not False:
        _safely(join_spans)
        _safely(_meter)
    session.on_step.append(_step)


def _step(_: bool) -> bool:
    """Look again; there is never more to do at once."""
    _safely(_look)
    if _wanted:
        _safely(_meter)
    return False


def _meter() -> None:
    """Publish region metrics as soon as there is somewhere to publish them."""
    kinds = _sdks("metrics", "MeterProvider")
    if kinds and isinstance(metrics.get_meter_provider(), kinds):
        from gpu_profile.regions.telemetry.instruments import instrument_regions

        instrument_regions()


def _look() -> None:
    """Wrap what has been added or set behind our back. Costs a few comparisons where nothing was."""
    if any(joined.changed for joined in _joined):
        with process._lock:
            for joined in _joined:
                joined.renew()
    if _wanted:
        provider = _provider()
        if provider is not None and provider is not _refused and not _is_joined(provider):
            join_spans()


def _provider() -> trace.TracerProvider | None:
    """The provider that the service has set. The public `get_tracer_provider` would set one if told by a variable."""
    found: trace.TracerProvider | None = getattr(trace, "_TRACER_PROVIDER", None)
    return found


def _is_joined(provider: trace.TracerProvider) -> bool:
    return any(joined.provider is provider for joined in _joined)


def _join(provider: Any) -> bool:
    global _refused  # noqa: PLW0603 - as above
    if _is_joined(provider):
        return True
    if isinstance(provider, trace.ProxyTracerProvider):
        return False  # it stands for the one that will be set
    if not isinstance(provider, _sdks("trace", "TracerProvider")):
        why = "is not the OpenTelemetry SDK's"
    else:
        try:
            from gpu_profile.regions.telemetry.spans import GpuSpanProcessor

            if not isinstance(provider._active_span_processor, GpuSpanProcessor):  # one before all, by the user
                _joined.append(_Joined(provider))
            return True
        except AttributeError as error:
            why = f"is of an SDK that is built differently ({error}): wrap its processors in GpuSpanProcessor"
    if provider is not _refused:
        _refused = provider
        kind = f"{type(provider).__module__}.{type(provider).__qualname__}"
        _log.warning(
            "gpu-profile: spans go out without what GPUs did, as the tracer provider %s %s; "
            "region metrics are complete all the same", kind, why
        )  # fmt: skip
    return False


def _sdks(module: str, name: str) -> tuple[Any, ...]:
    """The SDK's class of that name; none while nobody has imported it, or somebody is about to."""
    found = getattr(sys.modules.get(f"opentelemetry.sdk.{module}"), name, None)
    return () if found is None else (found,)


def _await_provider() -> None:
    """Have a provider that is set later joined at once, and not only when the session looks again."""
    known = getattr(trace, "_set_tracer_provider", None)
    if known is None or hasattr(known, _ORIGINAL):
        return

    @functools.wraps(known)
    def set_and_join(*args: Any, **kwargs: Any) -> None:
        known(*args, **kwargs)
        if _wanted:
            _safely(_look)

    setattr(set_and_join, _ORIGINAL, known)
    trace._set_tracer_provider = set_and_join


@process.at_finish
def _flush() -> None:
    """The spans that a provider without processors of ours keeps, and the last values of region metrics."""
    kinds = _sdks("trace", "TracerProvider") + _sdks("metrics", "MeterProvider")
    for provider in (_provider(), metrics.get_meter_provider()):
        if isinstance(provider, kinds):
            provider.force_flush(int(FINISH_S * 1000))


_failed = False


def _safely(call: Any) -> None:
    """A defect of ours must not fail the service's start, its spans or the join."""
    global _failed  # noqa: PLW0603 - said once
    try:
        call()
    except Exception:  # noqa: BLE001 - as the docstring says
        if not _failed:
            _failed = True
            _log.exception("gpu-profile: the tracer provider's spans could not be joined")
