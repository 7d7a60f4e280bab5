"""A device whose speed a test knows: its benchmarks only say how long they would take, and its clock believes them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import pytest

from gpu_profile.roofline.ceilings import calibration
from gpu_profile.roofline.ceilings.benchmarks import BenchmarkCall, Call
from gpu_profile.roofline.machines.machine import Memory, Timing
from gpu_profile.roofline.precision import Precision

T = TypeVar("T")
GIB = 1 << 30
MIB = 1 << 20


class SlowDevice:
    """Both the machine and what it is given to do. Times are `work / rate`; its caches hold what fits.

    `bandwidth` by the most bytes that it is for; `rates` FLOPs per second; `glitch`: one run in so many reads as no
    more than a thousandth of its time. `breaks`: what a part raises, by `traffic`, a precision's name or `nothing`.
    """

    kind = "cuda"
    device = "cuda:0"
    uuid: str | None = None
    region_device: int | str | None = None

    def __init__(self, name: str = "a device of a test", *, cache_bytes: int | None = 40 * MIB) -> None:
        self.name = name
        self.cache_bytes = cache_bytes
        self.key: Mapping[str, str] = {"device": name, "uuid": "GPU-1"}
        self.bandwidth: dict[float, float] = {40 * MIB: 4e12, float("inf"): 1.4e12}
        self.rates = dict.fromkeys(Precision, 10e12)
        self.reasons: dict[Precision, str] = {}
        self.free = 40 * GIB
        self.glitch = 0
        self.breaks: dict[str, BaseException] = {}
        self.launch_s = 5e-6
        #: Small operations when the caches hold something else.
        self.cold_s = (20e-6, 70e-6, 30e-6)
        #: Each page that is touched for the first time.
        self.fault_s = 0.5e-6
        self._faults = 0
        #: Small matrices do not fill the device: what each product takes longer for it.
        self.ramp_s = 1e-4
        self.allocated: list[int] = []
        self.products: list[tuple[Precision, int]] = []
        self.runs = 0
        self._passed_s = 0.0

    def run(self, call: Callable[[], T]) -> tuple[T, Timing]:
        before, faults = self._passed_s, self._faults
        result = call()
        self.runs += 1
        took = self._passed_s - before
        if self.glitch and self.runs % self.glitch == 0:
            took /= 1000
        return result, Timing(took, took, self._faults - faults)

    def flush(self) -> None:
        """Nothing is cached."""

    def memory(self) -> Memory | None:
        return Memory(0, 0, 0, self.free, 40 * GIB)

    def caches(self) -> list[tuple[str, int]]:
        return [("L2", self.cache_bytes)] if self.cache_bytes else []

    def precisions(self) -> Mapping[Precision, str]:
        return {precision: self.reasons.get(precision, "") for precision in Precision}

    def undisturbed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def arithmetic(self, precision: Precision) -> AbstractContextManager[None]:
        return nullcontext()

    def _takes(self, seconds: float) -> Call:
        def call() -> None:
            self._passed_s += seconds

        return call

    def _check(self, part: str) -> None:
        if part in self.breaks:
            raise self.breaks[part]

    def traffic(self, size: int) -> list[BenchmarkCall]:
        self._check("traffic")
        self.allocated.append(size)
        rate = next(rate for limit, rate in self.bandwidth.items() if size <= limit)
        return [
            BenchmarkCall(size * 2 // 3, self._takes(size * 2 / 3 / rate)),
            BenchmarkCall(size, self._takes(size / rate * 1.1)),
        ]

    def product(self, precision: Precision, n: int) -> Call:
        self._check(str(precision))
        self.products.append((precision, n))
        return self._takes(2 * n**3 / self.rates[precision] + self.ramp_s)

    def nothing(self) -> Call:
        self._check("nothing")
        return self._takes(self.launch_s)

    def small(self) -> list[Call]:
        self._check("small")
        return [self._takes(seconds) for seconds in self.cold_s]

    def fresh(self, size: int) -> Call:
        self._check("fresh")
        pages = size // 4096
        writes = self._takes(pages * self.fault_s + size / next(iter(self.bandwidth.values())))

        def call() -> None:
            writes()
            self._faults += pages

        return call


def use(device: SlowDevice, monkeypatch: pytest.MonkeyPatch) -> SlowDevice:
    """Have the calibration of this device give it its own benchmarks."""
    monkeypatch.setattr(calibration, "benchmarks_for", lambda _: device)
    return device
