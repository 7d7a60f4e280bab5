"""Hardware counters of the regions of a running program, sampled every tenth of a millisecond beside it.

Read in this order:

- `sampler`: a process of its own in which CUPTI's PM sampling reads one GPU, and which prints the samples.
- `overlaps`: samples joined with the times at which regions were on the GPU.
- `running`: that process, as the program sees it. `sampling`: all of it around a `with` block.

PM sampling reads the counters of all processes on the GPU in one pass. It reruns and serialises nothing. Imports the
regions, the counters' sums and the floors below. cupti-python loads in the sampler's process alone, so that its crash
ends no program.
"""

from gpu_profile.kernels.counters.live.sampling import CounterReport, CounterSampling, sample_counters

__all__ = ["CounterReport", "CounterSampling", "sample_counters"]
