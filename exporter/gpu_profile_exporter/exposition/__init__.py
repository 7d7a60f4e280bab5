"""Readings as a Prometheus exposition: the text of /metrics.

Read in this order:

- `exposition`: renders a scrape: takes readings, returns text, and counts the series that it left out.
- `layout`: the lines of an exposition, cached between scrapes. A scrape writes only the values that changed.
- `format`: the text formats (Prometheus 0.0.4 and OpenMetrics 1.0), and the choice by the `Accept` header.
- `budget`: the series to leave out when there are too many.

Imports the naming, the readings and `reader.usage`. A new format is a member of `format.Format` and its syntax of a
line.
"""
