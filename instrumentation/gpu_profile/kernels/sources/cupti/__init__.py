"""CUPTI as a source of records, through NVIDIA's package `cupti-python`: optional, and imported only when asked for.

`CuptiSource` records; `hindrance` says why it could not. What is decoded here was tried on the package's own record
structures; what CUPTI itself does was written down from its headers, and tested on a stand-in.
"""

from gpu_profile.kernels.sources.cupti.obstacles import hindrance
from gpu_profile.kernels.sources.cupti.source import CuptiSource

__all__ = ["CuptiSource", "hindrance"]
