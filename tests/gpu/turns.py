"""`python -m gpu.turns regions|sampling VARIANT SETTLING SECONDS BACKEND`: one variant of some loops.

Prints the loops' names, and for each name that it reads what a call took.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu.joint import Training
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from gpu_profile import configure, region

Call = Callable[[], Any]


def regions(variant: str, backend: str) -> dict[str, Call]:
    """One launch, and some 2 ms of products, each in a region."""
    if variant == "span":
        trace.set_tracer_provider(TracerProvider())
    configure(backend=backend, enabled=variant != "off")
    small, a = torch.zeros(1024, device="cuda"), torch.randn(2048, 2048, device="cuda")

    def one() -> None:
        small.add_(1.0)

    def products() -> None:
        for _ in range(6):
            torch.mm(a, a)
        torch.cuda.synchronize()

    span = variant == "span"
    loops: dict[str, Call] = {"one launch": one, "2 ms": products}
    return {name: region(name, span=span)(call) for name, call in loops.items()}


def sampling(variant: str, backend: str) -> dict[str, Call]:
    """A training step, and a step of a hundred small kernels, each a region without a span."""
    configure(backend=backend, interval_s=0.05, enabled=variant != "off")
    training, small = Training(), torch.zeros(1024, device="cuda")
    if variant == "windows":
        from gpu_profile.kernels import sample_regions

        # Sixty times as often as is the default, so that some windows fall into so short a time.
        sample_regions(every_s=1.0, window_s=0.05)

    def hundred() -> None:
        for _ in range(100):
            small.add_(1.0)
        torch.cuda.synchronize()

    loops: dict[str, Call] = {"training step": training.step, "hundred small kernels": hundred}
    return {name: region(name, span=False)(call) for name, call in loops.items()}


def _threads_s() -> dict[str, float]:
    """Processor time by Python thread, of all others in `others`."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        name = names.get(int(task.name), "others")
        found[name] = found.get(name, 0.0) + int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def _turn(call: Call, settling_s: float, seconds: float) -> dict[str, Any]:
    """A turn: us of a call on average and by the median, and the share of a core that each thread took."""
    settled = time.perf_counter() + settling_s
    while time.perf_counter() < settled:
        call()
    torch.cuda.synchronize()
    took, before, began = [], _threads_s(), time.perf_counter()
    last = began
    while last < began + seconds:
        call()
        now = time.perf_counter()
        took.append(now - last)
        last = now
    torch.cuda.synchronize()
    whole = time.perf_counter() - began
    cores = {name: round((used - before.get(name, 0.0)) / whole, 4) for name, used in _threads_s().items()}
    return {"us": whole / len(took) * 1e6, "median_us": sorted(took)[len(took) // 2] * 1e6, "cores": cores}


def main() -> None:
    what, variant, settling_s, seconds, backend = sys.argv[1:]
    loops = {"regions": regions, "sampling": sampling}[what](variant, backend)
    for call in loops.values():
        for _ in range(20):
            call()
    torch.cuda.synchronize()
    print(json.dumps(list(loops)), flush=True)
    for line in sys.stdin:
        print(json.dumps(_turn(loops[line.strip()], float(settling_s), float(seconds))), flush=True)


if __name__ == "__main__":
    main()
