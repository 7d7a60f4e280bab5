"""What the GPU did during a block of code or a call, for a person to read or a program to use."""

from gpu_profile.monitor.context import GpuMonitor
from gpu_profile.monitor.decorator import gpu_profile
from gpu_profile.monitor.gpu_summary import GpuSample, GpuSummary, ProfiledResult

__all__ = ["GpuMonitor", "GpuSample", "GpuSummary", "ProfiledResult", "gpu_profile"]
