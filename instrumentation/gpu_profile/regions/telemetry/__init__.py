"""How regions leave the process: as attributes of spans, as metrics, as log records.

Read in this order:

- `enrichment`: one execution as attributes of a span.
- `spans`: a span processor that holds spans until samples cover them, adds the attributes, and passes them on.
- `server_spans`: spans of servers and consumers that get the same attributes without being regions.
- `providers`: the service's own providers get all of this without any code.
- `instruments`: region metrics through OpenTelemetry; `prometheus`: the same for a scrape.
- `log_records`: what happens to GPUs, as log records.

Each asks a session of `regions.session`; none is asked by it, but through the hooks that a session offers.
"""
