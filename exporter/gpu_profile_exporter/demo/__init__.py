"""The demonstration: an exporter, a small inference service in its own process, and a table of the regions' GPU use.

Read in this order:

- `command`: starts both processes and shows the table. `screen`: updates it in place on a terminal. `watch`: the
  processes and their messages. `companion`: each of them, until the demonstration ends.
- `service`: the service with its decorated regions. It prints its numbers as lines of JSON.
- `workload`: the GPU work of the service on simulated GPUs or on none. `torch_workload`: on real GPUs.
- `serving`: a second demonstration, the costs of an LLM server's requests. `engine`: that server, simulated in real
  time, with the iterations and spans of a real one.
- `comparison`: the measured values beside the truth of a simulated GPU.
- `result`: the page of the run, and sentences about the region that used the most energy.

Imports the library and the simulation. The exporter runs as a separate program; only the paths of its modules are
imported. A new operation of the service is a region in `service` and a method of each workload.
"""
