"""Operations for the tests of what becomes of them."""

from __future__ import annotations

from gpu_profile.regimes.operation import Operation

#: A matrix product near its ceiling: 120 FLOPs for a byte.
PRODUCT = Operation(flops=2_400_000_000, bytes=20_000_000, precision="bf16", busy=0.95, compute=0.85, memory=0.2, n=1)
#: An addition that the memory's bandwidth bounds.
SUM = Operation(flops=1_000_000, bytes=12_000_000, precision="fp32", busy=0.9, compute=0.01, memory=0.8, n=1)
#: One of which nothing is known but that it ran.
BLANK = Operation(reason="needs passes=2")
