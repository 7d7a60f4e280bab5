"""How regions leave the process: as attributes of spans, as metrics, as log records.

Read in this order:

- `enrichment`: one execution as attributes of a span.
- `spans`: a span processor that holds spans until samples cover them, adds the attributes, and passes them on.
- `server_spans`: spans of servers and consumers that get the same attributes without being regions.
- `providers`: the service's own providers get all of this without any code.
- `counters`: region metrics that count, as a table; `instruments` publishes them and the others through OpenTelemetry,
  `prometheus` for a scrape.
- `log_records`: what happens to GPUs, as log records.

Each asks a session of `regions.session`; none is asked by it, but through the hooks that a joiner offers. A
new attribute is a row of `gpu_profile.catalogue.attributes` and a line of `enrichment`; a new metric that counts is a
row of the catalogue and of `counters`.
"""
