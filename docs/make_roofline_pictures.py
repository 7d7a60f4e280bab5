"""Draws docs/images/roofline.png and operations.png from runs on this machine: `python docs/make_roofline_pictures.py`.

Both are what the profiler of operations draws by itself, with fewer colours, so that the files are small. Nothing else
may run meanwhile, or there are no pictures: on a busy machine everything takes longer than it has to.
"""

from __future__ import annotations

import argparse
import io
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

from gpu_profile.roofline import GPUProfiler, profile_model
from gpu_profile.roofline.ceilings.contention import Contention
from gpu_profile.roofline.plots.panels import panels_figure
from gpu_profile.roofline.sweep import sweep
from gpu_profile.units import percent

PICTURES: Final = Path(__file__).parent / "images"
COLOURS: Final = 255
#: Share of the time that other programs may have had the processor.
MOST_WAITED: Final = 0.1


class Block(nn.Module):  # type: ignore[misc]
    """Two convolutions beside a shorter way."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.relu = nn.ReLU()
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Any:
        """The sum of both ways."""
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Sequential):  # type: ignore[misc]
    """He et al., Deep residual learning for image recognition, 2015, table 1, with 18 layers."""

    def __init__(self) -> None:
        widths = (64, 64, 128, 256, 512)
        stages = [
            nn.Sequential(Block(before, after, 1 if before == after else 2), Block(after, after, 1))
            for before, after in pairwise(widths)
        ]
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()
        self.pool = nn.MaxPool2d(3, 2, 1)
        for number, stage in enumerate(stages, start=1):
            self.add_module(f"stage{number}", stage)
        self.mean, self.flat, self.classes = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)


def main() -> None:
    """Run both and write the pictures."""
    parser = argparse.ArgumentParser(description="Draw docs/images/roofline.png and operations.png.")
    parser.add_argument("--images", type=int, default=4, help="how many the model looks at")
    parser.add_argument("--output", type=Path, default=PICTURES)
    options = parser.parse_args()
    waited = Contention()
    profiler = GPUProfiler(regions=False)
    rows = sweep(profiler)
    model = ResNet18().eval().to(profiler.machine.kind)
    with torch.inference_mode():
        images = torch.randn(options.images, 3, 224, 224, device=profiler.machine.kind)
        found = profile_model(model, images, profiler=profiler, warmup=2, repeats=7)
    if waited.share() > MOST_WAITED:
        sys.exit(f"no pictures: other programs had the processor for {percent(waited.share(), 0)} of the time")
    write(found.figure(), options.output / "roofline.png")
    panels = panels_figure(rows, machine=profiler.machine.name, ceilings=profiler.ceilings)
    write(panels, options.output / "operations.png")


def write(figure: Figure, path: Path) -> None:
    """As a PNG with a palette."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    with Image.open(drawn) as image:
        few = image.convert("RGB").quantize(COLOURS, kmeans=3, dither=Image.Dither.NONE)
        few.save(path, optimize=True)


if __name__ == "__main__":
    main()
