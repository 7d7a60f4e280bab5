"""What people are shown of a report: text, JSON values, a table, a page, a trace for Perfetto. Pure.

Read in this order: `names` (kernels' names in a table's width), `cells` (tables as text, for console and page), then
the views: `text`, `document` (JSON), `table_file` (CSV), `page` with `drawing`, `perfetto`. `lanes` says where an
operation or region is drawn, for the last two; `counters` is what the views show of hardware counters.

Imports the report and `gpu_profile.report`, where page, blocks, CSV and Perfetto's packets are written. A new view is a
module here and a form in `kernels.views`.
"""
