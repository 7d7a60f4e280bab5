"""Foreign spans on a stage: started and ended on its clock, and watched until the test is over."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span
from opentelemetry.trace import SpanKind
from support.regions import Stage

from gpu_profile.regions.running import begun, innermost
from gpu_profile.regions.session import process
from gpu_profile.regions.telemetry import server_spans
from gpu_profile.regions.telemetry.server_spans import AdoptedSpans, ServerSpanRule


def watch(
    monkeypatch: pytest.MonkeyPatch, rule: ServerSpanRule | None = None, *, most_live: int = server_spans.MOST_LIVE
) -> AdoptedSpans:
    """Watch foreign spans from now on."""
    spans = AdoptedSpans(
        ServerSpanRule() if rule is None else rule,
        session=process.session,
        innermost=lambda: innermost(begun.get()),
        most_live=most_live,
    )
    monkeypatch.setattr(server_spans, "current", spans)
    process.session().watch_spans()
    return spans


def start(
    stage: Stage, name: str, kind: SpanKind = SpanKind.INTERNAL, *, scope: str = "shop", context: Context | None = None
) -> Span:
    """A span that starts now, on the stage's clock."""
    tracer = stage.provider.get_tracer(scope)
    span = tracer.start_span(name, kind=kind, start_time=stage.clock.now_ns(), context=context)
    assert isinstance(span, Span)
    return span


@contextmanager
def foreign_span(stage: Stage, name: str, kind: SpanKind = SpanKind.INTERNAL, *, scope: str = "shop") -> Iterator[Span]:
    """A span around the block, on the stage's clock."""
    span = start(stage, name, kind, scope=scope)
    with trace.use_span(span):
        yield span
    span.end(end_time=stage.clock.now_ns())
