"""The forms of output: tables, pages, timelines, CSV, JSON, Perfetto, pprof. Pure: values in, text out.

Read in this order:

- `table`: plain aligned columns, a table that fits a terminal, and a region as a row. `as_csv`, `as_json`: the same for
  programs. `sparkline`: a series as one line of text.
- `page`: the frame of an HTML page that works offline, with its parts (tiles, tables, legend). It embeds `page.css`,
  `dark.css`, `page.js` and `tables.js` (sorting and searching); `timeline.js` draws its timeline.
- `blocks`: the data of `timeline.js`, in a bounded number of rows: executions on lanes, signals as stretches.
- `devices`: a device in every view: its label, its charts, the names of its holders. `live/`: the live page.
- `perfetto`: tracks, slices and counters of a Perfetto trace. `notebook_figure`: an empty matplotlib figure.
- `stacks`: a profile. `pprof` and `otlp_profiles` write it.

The analysis, the kernels, the regions, the command line and the exporter use it for their results. Imports the join,
the regimes and the history, but none of its users. To add a form, add a module that takes columns and rows, as `as_csv`
does. A view of one kind of result belongs to the package of the result.
"""

from gpu_profile.report.table import REGION_COLUMNS, region_row, text_table

__all__ = ["REGION_COLUMNS", "region_row", "text_table"]
