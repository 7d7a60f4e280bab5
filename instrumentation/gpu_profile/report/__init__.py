"""How anything is shown, whatever it is: tables, pages, timelines, CSV, JSON, Perfetto. Pure: values in, text out.

Read in this order:

- `table`: plain aligned columns, one that fits a terminal, and a region as a row. `as_csv`, `as_json`: the same for
  programs.
- `page`: the frame of an HTML page that works offline, with its parts (tiles, tables, legend). `page.css`, `dark.css`
  and `page.js` are written into it; `timeline.js` draws its timeline.
- `blocks`: what `timeline.js` draws, in few enough numbers: executions on lanes, signals as stretches.
- `perfetto`: tracks, slices and counters of a Perfetto trace.

The analysis, the kernels, the command line and the exporter's demonstration show their results with it. Imports the
join, the regimes and the history, never what it shows. One more form is a module here that takes columns and rows, as
`as_csv` does; one more view of a thing belongs to the thing's own package.
"""

from gpu_profile.report.table import REGION_COLUMNS, region_row, text_table

__all__ = ["REGION_COLUMNS", "region_row", "text_table"]
