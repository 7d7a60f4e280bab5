"""The outputs of regions: span attributes, metrics and log records.

Read in this order:

- `enrichment`: the span attributes of one execution.
- `spans`: a span processor that delays spans until samples cover them, adds the attributes, and passes them on.
- `server_spans`: server and consumer spans that get the same attributes without being regions.
- `providers`: adds all of this to the service's own providers, without any code in the service.
- `counters`: the table of the counters. `instruments` publishes all region metrics through OpenTelemetry, `prometheus`
  for a scrape. `live_server` adds the live page to that port; `live_regions` has its executions and its table.
- `log_records`: XID errors, lost GPUs and changes of regime as log records.

These modules read a session of `regions.session`. It calls them only through hooks. A new attribute is a row of
`gpu_profile.catalogue.attributes` and a line of `enrichment`. A new counter is a row of the catalogue and of
`counters`.
"""
