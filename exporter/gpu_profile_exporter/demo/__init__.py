"""The demonstration: an exporter, a small inference service in its own process, and a table of what the GPU did.

Read in this order:

- `command`: starts both processes, and shows the table, on a terminal as it changes.
- `service`: the service with its decorated regions, which sends its numbers as lines of JSON.
- `workload`: its work on simulated GPUs or on none; `torch_workload`: on real ones.
- `comparison`: what was measured beside what a simulated GPU knows to be true.

Imports the library and the simulation, and of the exporter nothing: it runs that as a program. A new operation of the
service is a region in `service` and a method of each workload.
"""
