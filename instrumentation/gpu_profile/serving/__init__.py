"""The cost of the requests, tenants and tokens of an LLM server, from its iterations and the energy counter.

An engine batches requests: an iteration works for all of them at once. A division by tokens or by live requests is
wrong, because tokens differ in cost. Here, the counter's growth in many windows gives the prices of what iterations do,
by the equations of `join.unmixing` with quantities of work in place of time. Read in this order:

- `work`: iterations, and the work of each request in them.
- `terms`: the terms of an iteration's cost, and each request's share of them (Aumann-Shapley).
- `windows`: readings matched with iterations under a lag; the search for the lag.
- `prices`: the prices of the terms, with intervals; the prediction of durations.
- `model`: the model of one engine over time, and the test whether windows reject it; `seen_work`: unlike new work.
- `sharing`: the parts of each window: idle, iterations, and the reasons for energy that is unallocated.
- `account`: the totals by request, tenant and phase, and the costs of single requests, from `cost_sums`. `charging`:
  the energy of iterations by request. `savings`: by a prefix cache.
- `simulated`: an engine with exact costs, for tests, benchmarks and the demonstration, with its `simulated_load`.
- `forward_pass`: messages of engines, decoded strictly as `message_types`; `pass_times`: when their iterations ran.
- `request_spans`: requests from the engines' spans; `span_arrivals`: how late they come; `tenants`: bounded names.
- `workers`: prefill and decode workers. `membership`: the requests of each iteration, with `prefill`, `packing` for
  prefill workers, `decoding` and its `stamp_delay`; `pass_parts`: iterations with the parts of requests.
- `pipelines`: engines without costs. `joined`: all of it for one engine, with its `finished` requests. `sweep`: load.
- `engine` reports one's own engine's iterations; `vllm` is vLLM's plug-in, with `vllm_contexts`. All others are pure.

Imports the history's types, `join.unmixing` and numpy. A new quantity of work is a member of `work.WorkQuantity` and a
term in `terms`.
"""

from gpu_profile.serving.engine import Engine
from gpu_profile.serving.work import BatchedRequest, RequestPhase

__all__ = ["BatchedRequest", "Engine", "RequestPhase"]
