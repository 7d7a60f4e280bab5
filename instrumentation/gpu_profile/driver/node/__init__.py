"""The node's timeline: one process reads the GPUs and writes the samples to files that any process may read.

Read in this order:

- `layout`: the format of a file, from its header to a row's check. `docs/node-timeline.md` describes it.
- `writer`: writes the file of one device, in the process that reads the GPU.
- `reader`: reads the new rows of a file.
- `table`: `table.json`, which lists the devices and their files.
- `driver`: the driver `node[:DIR]`, which serves these samples to a process without calling NVML.

Imports the catalogue and the driver protocol. No numpy: the exporter writes these files without it. A new signal of the
catalogue becomes a new column. A change of existing columns or of the format needs a new `layout.VERSION`.
"""
