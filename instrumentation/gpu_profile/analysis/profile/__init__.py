"""A recording as a profile: GPU time, energy and kernel time by call path. Pure.

`report.pprof` and `report.otlp_profiles` write it. Read in this order:

- `call_paths`: the process of each execution, and its regions from the outermost one inwards.
- `kernel_times`: the kernel time of each execution that a profiler saw.
- `kernel_energy`: the energy of the longest kernels, unmixed as regions inside their region.
- `values`: `profile_of`, the samples of the profile. They add up to the device's time and energy.

Imports `account`, the devices and their pool, and the labels and lanes of `views`.
"""
