"""The demonstration: an exporter, a small inference service in its own process, and a table of what the GPU did.

`command` runs it and prints the table; `service` is the service, whose work is `workload` on simulated GPUs or
`torch_workload` on real ones; `comparison` sets what was measured beside what a simulated GPU knows to be true.
"""
