"""Six ordinary kernels, each alone and then as regions of milliseconds in several orders, recorded by gpu-profile.

They need PyTorch with CUDA, or a simulated node for a rehearsal, and a GPU that nobody else uses.
`python -m gpu.programs BACKEND` is a load: it keeps the GPU busy until it is killed.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from gpu_profile import configure, region, stop

KERNELS: Final = ("gemm_bf16", "gemm_fp32", "copy", "reduce", "tiny", "gather")
#: Seconds of each program.
PROGRAMS: Final = {"solo": 18.0, "shuffled": 25.0, "fixed": 12.0, "locked": 8.0, "starved": 8.0}
#: Lengths of regions in a fixed order, and in a loop of exactly 100 ms, a quarter of which is idle.
_FIXED_S: Final = (0.003, 0.007, 0.012, 0.005, 0.004, 0.009)
_LOCKED_S: Final = (0.012, 0.016, 0.008, 0.016, 0.008, 0.016)
_LOOP_S: Final = 0.1
#: So far the host runs ahead, in regions.
_AHEAD: Final = 2
#: Idle seconds before and after a program, and after each kernel alone.
_REST_S, _PAUSE_S = 1.5, 0.5


class Device(Protocol):
    """What launches the kernels. `stream` is what `configure` takes."""

    stream: Any

    def launch(self, kernel: int, seconds: float) -> None:
        """Queue as many launches of a kernel as take about so long."""
        ...

    def mark(self) -> Callable[[], object]:
        """Mark the end of the queue; the result waits until the device has passed it."""
        ...


class Torch:
    """PyTorch on CUDA's device 0."""

    stream = "auto"

    def __init__(self) -> None:
        import torch

        self._torch = torch
        torch.backends.cuda.matmul.allow_tf32 = False
        a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        c, d = (torch.randn(2048, 2048, device="cuda") for _ in range(2))
        source = torch.randn(64 << 20, device="cuda")
        target, total, small = (
            torch.empty_like(source),
            torch.empty((), device="cuda"),
            torch.zeros(1024, device="cuda"),
        )
        table, rows = torch.randn(1 << 20, 64, device="cuda"), torch.randint(0, 1 << 20, (1 << 19,), device="cuda")
        bf16, fp32, gathered = torch.empty_like(a), torch.empty_like(c), torch.empty(1 << 19, 64, device="cuda")
        self._calls: tuple[Callable[[], Any], ...] = (
            lambda: torch.mm(a, b, out=bf16),
            lambda: torch.mm(c, d, out=fp32),
            lambda: target.copy_(source),
            lambda: torch.sum(source, dim=0, out=total),
            lambda: small.add_(1.0),
            lambda: torch.index_select(table, 0, rows, out=gathered),
        )
        self._call_s = [self._timed(call) for call in self._calls]

    def _timed(self, call: Callable[[], Any]) -> float:
        for _ in range(5):
            call()
        self._torch.cuda.synchronize()
        before = time.perf_counter()
        for _ in range(50):
            call()
        self._torch.cuda.synchronize()
        return (time.perf_counter() - before) / 50

    def launch(self, kernel: int, seconds: float) -> None:
        for _ in range(max(1, round(seconds / self._call_s[kernel]))):
            self._calls[kernel]()

    def mark(self) -> Callable[[], object]:
        event = self._torch.cuda.Event()
        event.record()
        wait: Callable[[], object] = event.synchronize
        return wait


class Simulated:
    """The first device of a simulated node: shares of its peaks that stand for the six kernels."""

    SHARES: Final = ((0.7, 0.1), (0.4, 0.1), (0.0, 0.9), (0.05, 0.6), (0.0, 0.01), (0.01, 0.4))

    def __init__(self, directory: str) -> None:
        from gpu_profile.driver.simulated import SimulatedQueue

        self._queue = self.stream = SimulatedQueue(directory)

    def launch(self, kernel: int, seconds: float) -> None:
        from gpu_profile.driver.simulated import Work

        model, (flops, memory) = self._queue.model, self.SHARES[kernel]
        flops, memory = flops * model.peak_flops["fp16"], memory * model.dram_bytes_per_s
        self._queue.launch(Work(flops * seconds, memory * seconds, "fp16", seconds=seconds))

    def mark(self) -> Callable[[], object]:
        mark = self._queue.record()

        def wait() -> None:
            while self._queue.resolve(mark) is None:
                time.sleep(2e-4)

        return wait


def play(device: Device, program: str, seconds: float) -> int:
    """Run a program for so long; returns how many regions it had."""
    if program == "solo":
        return _each_alone(device, seconds / len(KERNELS) - _PAUSE_S)
    rng, waits, n = np.random.default_rng(7), [], 0
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        kernel = int(rng.integers(len(KERNELS))) if program in {"shuffled", "starved"} else n % len(KERNELS)
        length = 0.002 * 10 ** rng.random()
        if program == "fixed":
            length = _FIXED_S[kernel] * rng.uniform(0.95, 1.05)
        elif program == "locked":
            length = _LOCKED_S[kernel]
            if kernel == 0:
                time.sleep(max(0.0, began + n // len(KERNELS) * _LOOP_S - time.monotonic()))
        elif program == "starved":
            device.mark()()
            time.sleep(rng.uniform(0.005, 0.03))
        with region(f"{program}.{KERNELS[kernel]}", span=False):
            device.launch(kernel, length)
        waits.append(device.mark())
        if len(waits) > _AHEAD:
            waits.pop(0)()
        n += 1
    device.mark()()
    return n


def _each_alone(device: Device, seconds: float) -> int:
    for kernel, name in enumerate(KERNELS):
        with region(f"solo.{name}", span=False):
            end, waits = time.monotonic() + seconds, []
            while time.monotonic() < end:
                device.launch(kernel, 0.02)
                waits.append(device.mark())
                if len(waits) > _AHEAD:
                    waits.pop(0)()
            device.mark()()
        time.sleep(_PAUSE_S)
    return len(KERNELS)


def record(device: Device, program: str, seconds: float, out: Path, backend: str) -> int:
    """Run a program for so long, and leave a recording of it in `out`; returns how many regions it had."""
    configure(backend=backend, stream=device.stream, record=out)
    with region("warm", span=False):
        device.launch(0, 0.005)
    time.sleep(_REST_S)
    regions = play(device, program, seconds)
    time.sleep(_REST_S)
    stop()
    return regions


def load(device: Device) -> None:
    """Keep the device busy, with products and copies by turns, until killed; one line says when it begins."""
    waits: list[Callable[[], object]] = []
    print("busy", flush=True)
    while True:
        for kernel in (0, 2):
            device.launch(kernel, 0.02)
            waits.append(device.mark())
        while len(waits) > _AHEAD:
            waits.pop(0)()


if __name__ == "__main__":
    word, _, directory = sys.argv[1].partition(":")
    load(Simulated(directory) if word == "simulated" else Torch())
