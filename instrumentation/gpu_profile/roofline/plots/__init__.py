"""Figures of rooflines and sweeps. matplotlib draws them; drawing the first one loads it.

Read in this order:

- `theme`: colours, marks, text and file output of all figures.
- `points`: operations as marks, with names beside them that do not overlap.
- `roofs`: operations under the roofs of their machine.
- `panels`: time, throughput, bandwidth and regime over sizes: `create_performance_plots`.

Imports the ceilings, and `panels` the sweep. A new regime needs a colour in both themes and a mark, in `theme`. A new
figure is a module that uses the axes, colours and file output of `theme`.
"""
