"""NVIDIA GPUs, read through NVML. `pynvml` is imported when a driver is made, never before."""

from gpu_profile.driver.nvml.driver import NvmlDriver

__all__ = ["NvmlDriver"]
