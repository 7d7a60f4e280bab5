"""The same service as `service.cjs`, on OpenTelemetry's SDK for Python."""

import sys
import urllib.request

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind


def main(pod: str, traces: str, model: str, requests: str) -> None:
    told = {"service.name": pod, "k8s.namespace.name": "shop", "k8s.pod.name": pod}
    provider = TracerProvider(resource=Resource.create(told))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(traces), schedule_delay_millis=300))
    tracer = provider.get_tracer("service")
    for _ in range(int(requests)):
        with tracer.start_as_current_span("POST /answer", kind=SpanKind.SERVER):
            urllib.request.urlopen(model).close()
    provider.shutdown()
    print(requests)


if __name__ == "__main__":
    main(*sys.argv[1:])
