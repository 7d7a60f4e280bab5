"""The cost of the requests, tenants and tokens of an LLM server, from its iterations and the energy counter.

An engine batches requests: an iteration works for all of them at once. A division by tokens or by live requests is
wrong, because tokens differ in cost. Here, the counter's growth in many windows gives the prices of what iterations do,
by the equations of `join.unmixing` with quantities of work in place of time. Read in this order:

- `work`: iterations, and the work of each request in them.
- `streams`: iterations and requests from an engine's messages and spans.
- `pricing`: prices of work from windows, and the share of each request, tenant and phase.
- `joined`: all of it for one engine.
- `engine` reports one's own engine's iterations; `vllm` is vLLM's plug-in, with `vllm_contexts`.
- `sweep`: load of many lengths, from which prices are learned soon.
- `simulated`: an engine with exact costs, for tests, benchmarks and the demonstration, with its `simulated_load`.

All but `engine`, `vllm` and `sweep` are pure. Imports the history's types, `join.unmixing` and numpy.
"""

from gpu_profile.serving.engine import Engine
from gpu_profile.serving.work import BatchedRequest, RequestPhase

__all__ = ["BatchedRequest", "Engine", "RequestPhase"]
