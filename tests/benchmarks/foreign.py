"""What watching foreign spans costs a service, beside the spans themselves."""

from collections.abc import Iterator
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider

from benchmarks.rows import Row, best
from gpu_profile.regions.session.session import Session
from gpu_profile.regions.telemetry.server_spans import AdoptedSpans, ServerSpanRule

#: Spans in one burst.
_SPANS: Final = 2_000
_BURSTS: Final = 15
#: What a span may cost that the rule does not take in, in microseconds.
_REACH_US: Final = 1.0


def _no_session() -> Session:
    raise AssertionError("no span of these is taken in")


def rows() -> Iterator[Row]:
    """A span that is not taken in, and a region that looks for what is around it."""
    provider = TracerProvider(shutdown_on_exit=False)
    tracer = provider.get_tracer("service")
    span_us = best(lambda: [tracer.start_span("call").end() for _ in range(_SPANS)], _BURSTS) / _SPANS * 1e6
    running = [span for _ in range(_SPANS) if isinstance(span := tracer.start_span("call"), Span)]
    ended: list[ReadableSpan] = [span._readable_span() for span in running]
    foreign = AdoptedSpans(ServerSpanRule(), session=_no_session, innermost=lambda: None)

    def watch() -> None:
        for span, after in zip(running, ended, strict=True):
            foreign.started(span)
            foreign.ended(after)

    passed_us = (
        best(watch, _BURSTS) - best(lambda: [None for _ in zip(running, ended, strict=True)], _BURSTS)
    ) / _SPANS
    passed_us *= 1e6
    yield Row(
        "foreign span that is not taken in",
        f"{passed_us:.2f} us",
        f"{span_us:.1f} us a span of the SDK",
        f"{passed_us / span_us:.3f}",
        f"<= {_REACH_US:g} us",
        passed_us <= _REACH_US,
        passed_us / span_us,
    )
    foreign.started(running[0])
    elsewhere = trace.NonRecordingSpan(running[1].get_span_context())
    with trace.use_span(elsewhere):
        around_us = best(lambda: [foreign.around(None) for _ in running], _BURSTS) / _SPANS * 1e6
    yield Row("region that looks for a foreign span around it", f"{around_us:.2f} us", cost=around_us / span_us)


if __name__ == "__main__":
    for row in rows():
        print(row)
