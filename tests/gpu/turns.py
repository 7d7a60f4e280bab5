"""`python -m gpu.turns regions|sampling VARIANT SECONDS BACKEND`: one variant of some loops, for each line read."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu.joint import Training
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from gpu_profile import configure, region

Call = Callable[[], Any]


def regions(variant: str, backend: str) -> dict[str, Call]:
    """One launch, ten, and some 2 ms of products, each in a region."""
    if variant == "span":
        trace.set_tracer_provider(TracerProvider())
    configure(backend=backend, enabled=variant != "off")
    small, a = torch.zeros(1024, device="cuda"), torch.randn(2048, 2048, device="cuda")

    def one() -> None:
        small.add_(1.0)

    def ten() -> None:
        for _ in range(10):
            small.add_(1.0)

    def products() -> None:
        for _ in range(6):
            torch.mm(a, a)
        torch.cuda.synchronize()

    span = variant == "span"
    loops: dict[str, Call] = {"one launch": one, "ten launches": ten, "2 ms": products}
    return {name: region(name, span=span)(call) for name, call in loops.items()}


def sampling(variant: str, backend: str) -> dict[str, Call]:
    """A training step, and a step of a hundred small kernels, each a region without a span."""
    hertz = {"10 Hz": 10, "100 Hz": 100}.get(variant, 20)
    configure(backend=backend, interval_s=1 / hertz, enabled=variant != "off")
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


def main() -> None:
    what, variant, seconds, backend = sys.argv[1:]
    loops = {"regions": regions, "sampling": sampling}[what](variant, backend)
    for call in loops.values():
        for _ in range(20):
            call()
    torch.cuda.synchronize()
    print("ready", flush=True)
    for _ in sys.stdin:
        took = {}
        for name, call in loops.items():
            # Its sampler makes up for the time that it was stopped.
            settled = time.perf_counter() + 0.1
            while time.perf_counter() < settled:
                call()
            torch.cuda.synchronize()
            n, began = 0, time.perf_counter()
            while time.perf_counter() < began + float(seconds):
                for _ in range(10):
                    call()
                n += 10
            torch.cuda.synchronize()
            took[name] = (time.perf_counter() - began) / n * 1e6
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main()
