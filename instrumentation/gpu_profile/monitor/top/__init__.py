"""The data and the drawing of `gpu-profile top`: devices, their users, regions, and the last minute.

Read in this order:

- `snapshot`: the data of one drawing, as plain values.
- `readings`: a device's timeline as a line of the view. `region_rates`: rates of regions between two scrapes.
- `source`: makes snapshots from a sampler, the node's table and `/proc`.
- `endpoint`: one scrape of an endpoint, and the check of its URL. `scraper`: the thread that reads it again and again.
- `cells`: text in a terminal's cells, and tables that fit. `tables`: the columns of each table, sorting, filtering.
- `frame`: the whole screen as lines of one width, also for `--once`.
- `app`: the same on a full screen, with keys. The only module that needs Textual.

All modules except `source`, `endpoint`, `scraper` and `app` are pure: they take times as arguments. Imports the
sampling, the join and the reports. To add a column, add a field to a line of `snapshot`, its reading to `readings`, and
a row to `tables`.
"""
