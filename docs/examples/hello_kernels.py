"""Kernels and memory of a small PyTorch program, range by range: `python docs/examples/hello_kernels.py [cpu|cuda]`.

It runs on a GPU if there is one, else on the CPU, whose operators are then told instead of kernels. The numbers are
printed, and written to `output/result.csv` and `output/kernels.csv`.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import gpu_profile.kernels as gmp_python


def work(device: str, size: int = 1024) -> None:
    """Matrix products, activations, memory, a network's forward pass, convolution and pooling, and reductions."""
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)

    with gmp_python.profile_range("matrix_operations"):
        product = a @ b
        torch.addmm(product, a, b)

    with gmp_python.profile_range("elementwise_operations"):
        torch.relu(product)
        torch.sigmoid(product) * a + b

    with gmp_python.profile_memory("memory_ops"):
        held = [torch.empty(size * size, device=device) for _ in range(5)]
        held.clear()

    model = nn.Sequential(nn.Linear(size, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    with gmp_python.profile_range("forward_pass"), torch.no_grad():
        with gmp_python.profile_range("layers"):
            scores = model(a)
        scores.softmax(dim=1)

    images = torch.randn(8, 3, 64, 64, device=device)
    convolution, pooling = nn.Conv2d(3, 16, 3, padding=1).to(device), nn.MaxPool2d(2)
    with torch.no_grad():
        with gmp_python.profile_range("convolution"):
            features = convolution(images)
        with gmp_python.profile_range("pooling"):
            pooling(features)

    reduce(a)


@gmp_python.profile_function("reduction_operations")
def reduce(values: torch.Tensor) -> float:
    """Sum, mean and highest value; reading the result waits for the GPU."""
    return float(values.sum() + values.mean() + values.max())


def main(device: str = "") -> None:
    """Warm up without recording, then record three rounds and print what they took."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    gmp_python.init_global_profiler().disable()
    work(device)  # the first round loads libraries and chooses algorithms
    gmp_python.init_global_profiler().enable()
    for _ in range(3):
        work(device)
    gmp_python.print_results("SUM")


if __name__ == "__main__":
    main(*sys.argv[1:])
