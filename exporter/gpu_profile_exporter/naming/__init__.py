"""Schemes of names: the name, labels and unit under which each reading is published.

Read in this order:

- `series`: the interface of a scheme (`Naming`), and the series that it returns for a reading.
- `semconv`: OpenTelemetry's names, translated by the Collector's rule.
- `dcgm`: dcgm-exporter's names. They come from the table `dcgm_fields` and the user's file (`dcgm_csv`);
  `dcgm_renamed` has the names of DCGM 4.6. `sums` adds the metrics that are sums of others, `xid` the texts of XID
  errors.
- `schemes`: chooses among them.

Imports the library's catalogue and the readings. A new scheme is a class with the methods of `series.Naming`, and a
line in `schemes.choose`.
"""
