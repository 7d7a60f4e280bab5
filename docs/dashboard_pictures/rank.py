"""A rank of a training job on a simulated GPU: `python rank.py NODE DEVICE PORT LOAD_S`."""

from __future__ import annotations

import sys
import time

from gpu_profile import configure, region, serve_metrics
from gpu_profile.driver.simulated import SimulatedQueue, Work

STEP = Work(flops=9e12, bytes=6e9, precision="bf16")


def main(directory: str, device: int, port: int, load_s: float) -> None:
    """Train until the process is ended. `load_s`: seconds that the input of a step takes."""
    queue = SimulatedQueue(directory, device=device)
    queue.allocate(60 << 30)
    configure(backend=f"simulated:{directory}", stream=queue, interval_s=0.2)
    serve_metrics(port, address="127.0.0.1")
    while True:
        with region("step", items=64):
            with region("load_batch"):
                time.sleep(load_s)
            for name, kernels in (("forward", 4), ("backward", 8)):
                with region(name):
                    for _ in range(kernels):
                        queue.launch(STEP, tag=name)
            queue.synchronize()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
