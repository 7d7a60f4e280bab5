"""The bounded history of one device: every signal's readings as rows, and exact sums over any interval. Pure.

Read in this order:

- `rows`: rows as arrays with prefix sums, and every query over an interval.
- `busy_total`: a device's busy time, from the best of several signals.
- `ledger`: converts readings into rows: late and repeated readings, gaps, a clock that is set.
- `buffer`: the newest rows, with one writer and many readers, also in other processes.
- `archive`: older rows, compressed to a few bytes each.
- `column`: one signal: buffer, archive and ledger combined.
- `anchors`: keeps exact sums for an interval that is longer than the history.
- `histogram`: a time-weighted histogram, for the quantiles of such an interval.
- `timeline`: one device: a column for each of its signals.

Imports only the catalogue, `errors` and `units`. `busy_total`, `ledger` and this file import no numpy, because the
exporter uses them without it.
"""
