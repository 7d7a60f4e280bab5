"""NVML as a small C library that is built when a test or a benchmark needs it."""
