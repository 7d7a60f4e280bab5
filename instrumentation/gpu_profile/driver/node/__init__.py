"""The node's timeline: samples of one process that reads the GPUs, in files that any process may read.

Read in this order:

- `layout`: how bytes lie in a file, from its header to the check of a row. `docs/node-timeline.md` describes it.
- `writer`: one device's file, as the process writes it that reads the GPU.
- `reader`: the rows that are new in a file since it was read before.
- `table`: `table.json`, which lists the devices and their files.
- `driver`: the driver `node[:DIR]`, which serves these samples to a process without calling NVML.

Imports the catalogue and the driver protocol. No numpy: the exporter writes these files without it. A new column is a
signal of the catalogue; a change of what is there already needs a new `layout.VERSION`.
"""
