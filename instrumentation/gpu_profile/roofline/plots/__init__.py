"""Figures of rooflines and sweeps, drawn by matplotlib, which is loaded when the first one is.

- `theme`: colours, marks and words that the figures share, and which files one can be written to.
- `roofs`: operations under the roofs of their machine. `points` draws and names them.
- `panels`: time, throughput, bandwidth and regime over sizes: `create_performance_plots`.

Imports the ceilings, and `panels` the sweep. A regime needs a colour in both themes and a mark in `theme`.
"""
