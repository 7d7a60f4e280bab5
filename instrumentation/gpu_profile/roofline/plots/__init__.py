"""Figures of rooflines and sweeps, drawn by matplotlib, which is loaded when the first one is.

Read in this order:

- `theme`: colours, marks and words that the figures share, and which files one can be written to.
- `points`: operations as marks, and names beside them that do not overlap.
- `roofs`: operations under the roofs of their machine.
- `panels`: time, throughput, bandwidth and regime over sizes: `create_performance_plots`.

Imports the ceilings, and `panels` the sweep. A regime needs a colour in both themes and a mark in `theme`; a new figure
is a module that takes its axes, colours and the writing of files from there.
"""
