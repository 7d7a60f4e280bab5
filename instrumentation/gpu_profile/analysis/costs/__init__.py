"""The costs of an LLM server during a benchmark's run, and the comparison of such runs. Pure.

A run's costs are the growth of the exporter's counters of an engine from before the run to after it. So they need no
common clock with the benchmark, and all times without requests are left out. The benchmark's own result gives the
settings, and the tokens where the engine sends no spans. Read in this order:

- `counters`: an engine's counters in a scrape of the exporter.
- `benchmark`: the results that `vllm bench serve`, SGLang's `bench_serving` and AIPerf write.
- `run`: `RunCosts`, the costs of one run, as a line of a file. `whole`: the same from the energy of whole GPUs.
- `text`: the costs of a run as a table.
- `repeated`: the comparison of two files with several runs each, by the spread between these runs.

Imports the analysis's comparison, the catalogue, `report` and the units. It reads no file and no address: `cli/cost.py`
and `cli/analysis.py` do. To read another benchmark's result, add a function to `benchmark`.
"""

from gpu_profile.analysis.costs.benchmark import BenchmarkResult, read_result
from gpu_profile.analysis.costs.counters import EngineCounters, engine_counters
from gpu_profile.analysis.costs.repeated import compare_runs
from gpu_profile.analysis.costs.run import RunCosts, costs_of, read_runs
from gpu_profile.analysis.costs.text import render_costs
from gpu_profile.analysis.costs.whole import whole_costs

__all__ = [
    "BenchmarkResult",
    "EngineCounters",
    "RunCosts",
    "compare_runs",
    "costs_of",
    "engine_counters",
    "read_result",
    "read_runs",
    "render_costs",
    "whole_costs",
]
