"""The views of a report: text, JSON values, a table, a page, a trace for Perfetto. Pure.

Read in this order:

- `names`: kernels' names in a table's width. `cells`: tables as text, for console and page.
- `counters`: the views of hardware counters. `lanes`: the places at which operations and regions are drawn.
- The views: `text`, `document` (JSON), `table_file` (CSV), `page` with its `drawing`, `perfetto`.
- `ranks`: a table of a run's ranks, as text and as JSON.

Imports the report of kernels and `gpu_profile.report`, where page, blocks, CSV and Perfetto's packets are written. A
new view is a module here and a form in `kernels.views`.
"""
