"""Who records while a program runs: PyTorch's profiler, or CUPTI by itself."""
