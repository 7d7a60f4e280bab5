"""What a stage of `make gpu` is made of: parts, each of which returns its figures."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from gpu.programs import Device as Worker

    from gpu_profile.catalogue.samples import Device
    from gpu_profile.driver import Driver


class Skip(Exception):  # noqa: N818 - not an error: the message says what this machine lacks
    """This machine cannot do a part."""


class Kit(NamedTuple):
    """What a part is given. `out` is its own directory, for files beside its figures; `scale` is of all lengths."""

    backend: str
    scale: float
    out: Path

    @property
    def simulated(self) -> str:
        """The directory of the simulated node; '' on real GPUs."""
        word, _, directory = self.backend.partition(":")
        return directory if word == "simulated" else ""

    def worker(self) -> Worker:
        """What launches kernels: PyTorch with CUDA, or the simulated node. The same one in every part."""
        if not self.simulated:
            self.torch()
        return _worker(self.simulated)

    def torch(self) -> Any:
        """PyTorch, if it has a GPU here."""
        if self.simulated:
            raise Skip("a simulated node runs no PyTorch")
        try:
            import torch
        except ImportError:
            raise Skip("PyTorch is not installed") from None
        if not torch.cuda.is_available():
            raise Skip("PyTorch has no GPU here")
        return torch

    def driver(self, *, everything: bool = False) -> tuple[Driver, Device]:
        """A driver of this node and its first GPU; with `everything`, all groups of signals are read."""
        from gpu_profile.catalogue import ALL_GROUPS
        from gpu_profile.catalogue.samples import DeviceKind
        from gpu_profile.driver.grammar import open_driver

        driver = open_driver(self.backend, groups=ALL_GROUPS) if everything else open_driver(self.backend)
        return driver, next(each for each in driver.devices() if each.kind is DeviceKind.GPU)

    def seconds(self, whole: float, least: float = 0.2) -> float:
        """The length of something that takes `whole` seconds when nothing is shortened."""
        return max(least, whole * self.scale)


@cache
def _worker(simulated: str) -> Worker:
    from gpu.programs import Simulated, Torch

    return Simulated(simulated) if simulated else Torch()


Figures = Mapping[str, Any]


class Part(NamedTuple):
    """One part: what it measures, and after how many seconds it is given up. Its longest wait is within that."""

    about: str
    limit_s: float
    measure: Callable[[Kit], Figures]


def program(*arguments: str, **environment: str) -> str:
    """What a Python program prints. RuntimeError with the end of what it complained of, if it fails."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode:
        end = (done.stderr or done.stdout).strip()[-800:]
        raise RuntimeError(f"{shlex.join(arguments)[:200]} ended with {done.returncode}: {end}")
    return done.stdout


_APART = """
import importlib, json, sys
module, name, arguments = json.loads(sys.argv[1])
print(json.dumps(getattr(importlib.import_module(module), name)(*arguments)))
"""


def apart(function: Callable[..., Figures], *arguments: str | float) -> Figures:
    """What a public function of a stage returns when a process of its own calls it. Errors as `program`."""
    asked = json.dumps([function.__module__, function.__name__, arguments])
    found: Figures = json.loads(program("-c", _APART, asked).splitlines()[-1])
    return found


def quantiles(values: list[float], digits: int = 1) -> dict[str, float]:
    """How many there are, their median, 99th percentile and largest."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        "n": len(ordered),
        "p50": round(ordered[last // 2], digits),
        "p99": round(ordered[round(0.99 * last)], digits),
        "max": round(ordered[-1], digits),
    }
