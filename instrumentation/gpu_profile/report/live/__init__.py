"""The live page: the last minutes of each GPU, its regions, processes and events, renewed without a reload.

The exporter serves it at `/`, and a program's `serve_metrics` too. Read in this order:

- `strands`: append-only columns of bounded length.
- `feed`: cuts, cursors and answers, so that each viewer receives each row once, and all viewers share answers.
- `marks`: events and the beginnings of throttling, as marks on a timeline.
- `device_state`: the present state of one device, as part of an answer.
- `page`: writes the page. Servers load it with its first viewer. `served_page`: the page as bytes and headers.
- `live.js`, `live.css`: the front end, on top of the timeline of all other pages (`timeline.js`, `page.js`): `rows.js`
  keeps the rows, `asking.js` asks for them, `live_tables.js` and `cost_table.js` have the tables.

Pure: servers have the clocks, threads and locks. Imports the catalogue, the history's types and the frame of pages. No
numpy, because the exporter runs without it. A new value of a device needs a key in `device_state` and a place in
`live.js`; a new chart needs only a row of `report.devices.CHARTS`.
"""

from gpu_profile.report.live.device_state import device_state
from gpu_profile.report.live.feed import LiveFeed, LiveMark
from gpu_profile.report.live.marks import ThrottleWatch, mark_of
from gpu_profile.report.live.served_page import LivePage

__all__ = ["LiveFeed", "LiveMark", "LivePage", "ThrottleWatch", "device_state", "mark_of"]
