"""Readings as a Prometheus exposition: the text of /metrics.

Read in this order:

- `exposition`: a scrape: readings in, text out, and what was left out of it.
- `layout`: the lines of an exposition, kept from one scrape to the next: only values are written anew.
- `format`: the text formats (Prometheus 0.0.4 and OpenMetrics 1.0), and which one an `Accept` header asks for.
- `budget`: which series go first where there are too many.

Imports the naming, the readings and `reader.usage`. A new format is a member of `format.Format` and its way of writing
a line.
"""
