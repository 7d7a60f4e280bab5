"""Hardware counters of the regions of a running program, sampled every tenth of a millisecond beside it.

Read in this order:

- `sampler`: a process of its own that has CUPTI's PM sampling read one GPU and prints what it read.
- `overlaps`: samples joined with the times at which regions were on the GPU.
- `running`: that process, as the program sees it; `sampling`: all of it around a `with` block.

PM sampling reads all that the GPU does, whoever does it, in one pass: nothing is run again and nothing is serialised.
Imports the regions, the counters' sums and the floors below. cupti-python loads in the sampler's process alone: there a
crash of it ends no program.
"""

from gpu_profile.kernels.counters.live.sampling import CounterReport, CounterSampling, sample_counters

__all__ = ["CounterReport", "CounterSampling", "sample_counters"]
