"""Hardware counters of kernels, joined with regions by name, and who may read them."""
