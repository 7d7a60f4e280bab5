"""The bounded past of one device: every signal's readings as rows, and exact sums over any stretch of time. Pure.

Read in this order:

- `rows`: rows as arrays with prefix sums, and every question about an interval of them.
- `ledger`: how readings become rows (late and repeated ones, gaps, a clock that steps).
- `buffer`: where the newest rows lie: one writer, many readers, also in other processes.
- `archive`: older rows, a few bytes each.
- `column`: one signal: buffer, archive and ledger together.
- `anchors`: an interval that outlives the history keeps its exact sums, with a `histogram` for its quantiles.
- `timeline`: one device: a column for each of its signals.

Imports only the catalogue and the modules of the ground floor. `ledger` and this package import no numpy, because the
exporter uses them without it.
"""
