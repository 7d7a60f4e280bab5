"""How what is published is called: names, labels and units under one scheme of names or another.

Read in this order:

- `series`: what a scheme is, and the series that it makes of a reading.
- `semconv`: OpenTelemetry's names by the Collector's rule. `dcgm`: dcgm-exporter's, out of the table `dcgm_fields` and
  the user's file (`dcgm_csv`), with sums that it publishes (`sums`) and texts of XID errors (`xid`).
- `schemes`: the choice among them.

Imports the library's catalogue and the readings. A new scheme is a class with the methods of `series.Naming` and a line
in `schemes.choose`.
"""
