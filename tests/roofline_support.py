"""A machine whose clock a test turns, with round ceilings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from gpu_profile.roofline.ceilings import Ceiling, Ceilings, Level
from gpu_profile.roofline.machines.machine import Memory, Timing
from gpu_profile.roofline.precision import Precision

T = TypeVar("T")
GIB = 1 << 30

#: A ridge of 5 FLOP/B.
CEILINGS = Ceilings(
    machine="a test's machine",
    key={"kind": "cpu"},
    compute={Precision.FP32: Ceiling(100e9, "measured"), Precision.BF16: Ceiling(400e9, "measured")},
    levels=(Level("L3", 32 << 20, Ceiling(100e9, "measured")), Level("memory", None, Ceiling(20e9, "measured"))),
    launch_s=2e-6,
)


class FakeMachine:
    """Runs calls for real, and says that each took what `seconds` says: a number, or a function of how often it ran."""

    kind = "cpu"
    device = "cpu"
    name = "a test's machine"
    uuid: str | None = None
    region_device: int | str | None = None
    key: Mapping[str, str] = {"kind": "cpu"}
    cache_bytes: int | None = 32 << 20

    def __init__(self, seconds: float | Callable[[int], float] = 1e-3) -> None:
        self.seconds = seconds
        self.ran = 0
        self.flushed = 0

    def run(self, call: Callable[[], T]) -> tuple[T, Timing]:
        """Call once."""
        result = call()
        self.ran += 1
        taken = self.seconds(self.ran) if callable(self.seconds) else self.seconds
        return result, Timing(taken, taken)

    def synchronize(self) -> None:
        """Nothing runs on."""

    def flush(self) -> None:
        """Counted only."""
        self.flushed += 1

    def memory(self) -> Memory | None:
        """Of 16 GiB, 12 free."""
        return Memory(GIB, GIB, GIB, 12 * GIB, 16 * GIB)
