"""The costs of LLM engines' requests: receives iterations, requests and energy, and publishes what each tenant used.

The estimator is `gpu_profile.serving`. Read in this order:

- `listener`: receives the messages of engines over ZeroMQ or a local socket, with the times of their arrival.
- `energy`: the sum of the energy counters of an engine's GPUs, from the samples that readers send.
- `devices`: finds the GPUs of each engine. `programs`: finds other programs that work on them.
- `tickets`: how the span of a request waits for its cost. `pairs`: the parts of a request on two workers.
- `engine`: one engine, with its metrics. `costs`: all engines, and the thread that shares energy out.
- `live_costs`: the rows of the live page, which sum up the last minutes.

Imports the settings, the readings and the library. Loaded only if the settings name an engine. The sidecar passes the
spans of requests on, in `sidecar.request_costs`. Without it, only phases have costs. A new metric is a row in
`gpu_profile.catalogue.serving` and a reading in `engine`. A new reason also needs its words there.
"""

from gpu_profile_exporter.serving.costs import ServingCosts
from gpu_profile_exporter.serving.tickets import CostTicket

__all__ = ["CostTicket", "ServingCosts"]
