// A service on OpenTelemetry's SDK for Node that knows nothing of GPUs: it asks a model's server, and answers.
// `node service.cjs POD URL-OF-TRACES URL-OF-MODEL REQUESTS` prints how many spans it made.
const { SpanKind } = require("@opentelemetry/api");
const { OTLPTraceExporter } = require("@opentelemetry/exporter-trace-otlp-proto");
const { resourceFromAttributes } = require("@opentelemetry/resources");
const { BatchSpanProcessor, NodeTracerProvider } = require("@opentelemetry/sdk-trace-node");

const [pod, traces, model, requests] = process.argv.slice(2);
const exporter = new OTLPTraceExporter({ url: traces });
const provider = new NodeTracerProvider({
  resource: resourceFromAttributes({ "service.name": pod, "k8s.namespace.name": "shop", "k8s.pod.name": pod }),
  spanProcessors: [new BatchSpanProcessor(exporter, { scheduledDelayMillis: 300 })],
});
const tracer = provider.getTracer("service");

async function main() {
  for (let i = 0; i < Number(requests); i++) {
    const span = tracer.startSpan("POST /answer", { kind: SpanKind.SERVER });
    await (await fetch(model)).text();
    span.end();
  }
  await provider.shutdown();
  console.log(requests);
}
main();
