"""Kernels, copies and collectives of a saved trace: what they add up to, and why the GPU was idle between them.

`Trace` reads PyTorch's (Kineto's) Chrome traces as a stream, `measure` adds up what it yields, and `evidence` turns the
sums into what the regimes judge.
"""

from gpu_profile.kernels.activity import Activity, Idle, StreamActivity, evidence, measure
from gpu_profile.kernels.trace import Kind, Launch, Operation, Trace

__all__ = [
    "Activity",
    "Idle",
    "Kind",
    "Launch",
    "Operation",
    "StreamActivity",
    "Trace",
    "evidence",
    "measure",
]
