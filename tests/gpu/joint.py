"""Stage *joint*: eight workloads as regions, recorded together with a trace of PyTorch's profiler for a moment."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from gpu.parts import Figures, Kit, Part

#: Of each workload, and of its traced part.
_WHOLE_S, _TRACED_S = 4.0, 0.3
#: A trace that packs to more than this is left out.
_LARGEST: Final = 3 << 20


class Work(Protocol):
    """A program of regions."""

    def step(self) -> None:
        """Queue one step of it."""
        ...


class Training:
    """A small transformer, trained."""

    def __init__(self) -> None:
        import torch

        from gpu_profile import region

        self._torch, self._region = torch, region
        layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
        self._model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda().bfloat16()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._x = torch.randn(16, 256, 512, device="cuda", dtype=torch.bfloat16)

    def step(self) -> None:
        """Forward, backward, optimizer, and a wait for the loss."""
        with self._region("forward", span=False):
            loss = self._model(self._x).square().mean()
        with self._region("backward", span=False):
            loss.backward()
        with self._region("optimizer", span=False):
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        float(loss.detach())

    def wait(self) -> None:
        """Until the device has done it all."""
        self._torch.cuda.synchronize()


class Inference:
    """The same model's kind, read: one long prompt, then many steps of one token each."""

    def __init__(self) -> None:
        import torch

        from gpu_profile import region

        self._torch, self._region = torch, region
        layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
        self._model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda().bfloat16().eval()
        self._prompt = torch.randn(8, 1024, 1024, device="cuda", dtype=torch.bfloat16)

    def step(self) -> None:
        """A prompt, and sixteen tokens."""
        with self._torch.inference_mode():
            with self._region("prefill", span=False):
                self._model(self._prompt)
            with self._region("decode", span=False):
                token = self._prompt[:, :1]
                for _ in range(16):
                    token = self._model(token)
            self._torch.cuda.synchronize()


class Calls:
    """Calls of kernels: each a region of some milliseconds, two regions ahead of the device, or waiting for each."""

    def __init__(self, make: Callable[[Any], dict[str, tuple[Callable[[], Any], int]]], pause_s: float = 0.0) -> None:
        import torch

        from gpu_profile import region

        self._torch, self._region, self._calls, self._pause_s = torch, region, make(torch), pause_s
        self._waits: list[Any] = []

    def step(self) -> None:
        """Each call once, as often in its region as was asked for."""
        for name, (call, times) in self._calls.items():
            with self._region(name, span=False):
                for _ in range(times):
                    call()
            event = self._torch.cuda.Event()
            event.record()
            self._waits.append(event)
            if len(self._waits) > 2 or self._pause_s:
                self._waits.pop(0).synchronize()
            if self._pause_s:
                time.sleep(self._pause_s)


def _products(torch: Any) -> dict[str, tuple[Callable[[], Any], int]]:
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    c = torch.randn(2048, 2048, device="cuda")
    return {"bf16": (lambda: torch.mm(a, a), 40), "fp32": (lambda: torch.mm(c, c), 30)}


def _memory(torch: Any) -> dict[str, tuple[Callable[[], Any], int]]:
    source = torch.randn(64 << 20, device="cuda")
    target, table = torch.empty_like(source), torch.randn(1 << 20, 64, device="cuda")
    rows = torch.randint(0, 1 << 20, (1 << 19,), device="cuda")
    return {"copy": (lambda: target.copy_(source), 60), "gather": (lambda: torch.index_select(table, 0, rows), 25)}


def _tiny(torch: Any) -> dict[str, tuple[Callable[[], Any], int]]:
    small = torch.zeros(1024, device="cuda")
    return {"tiny": (lambda: small.add_(1.0), 1000)}


def _transfer(torch: Any) -> dict[str, tuple[Callable[[], Any], int]]:
    host = torch.randn(16 << 20).pin_memory()
    device = torch.empty_like(host, device="cuda")
    return {
        "to_device": (lambda: device.copy_(host, non_blocking=True), 6),
        "to_host": (lambda: host.copy_(device, non_blocking=True), 6),
    }


def _mixed(torch: Any) -> dict[str, tuple[Callable[[], Any], int]]:
    return {**_products(torch), **_memory(torch)}


_WORKLOADS: Final[dict[str, Callable[[], Any]]] = {
    "training": Training,
    "inference": Inference,
    "products": partial(Calls, _products),
    "memory": partial(Calls, _memory),
    "mixed": partial(Calls, _mixed),
    "tiny": partial(Calls, _tiny),
    "transfer": partial(Calls, _transfer),
    "starved": partial(Calls, _mixed, 0.012),
}


def _recorded(name: str, kit: Kit) -> Figures:
    torch = kit.torch()
    from gpu_profile import configure, stop

    work = _WORKLOADS[name]()
    configure(backend=kit.backend, record=kit.out)
    whole, traced = kit.seconds(_WHOLE_S, 2.0), kit.seconds(_TRACED_S, 0.3)
    if name == "tiny":
        traced /= 5
    for _ in range(3):
        work.step()
    torch.cuda.synchronize()
    steps = _steps(work, (whole - traced) / 2)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        first_ns = time.time_ns()
        traced_steps = _steps(work, traced)
        torch.cuda.synchronize()
        last_ns = time.time_ns()
    steps += _steps(work, (whole - traced) / 2)
    torch.cuda.synchronize()
    time.sleep(0.3)
    stop()
    size = _trace(profile, kit.out / "trace.json.gz")
    return {"steps": steps, "traced_steps": traced_steps, "traced_ns": [first_ns, last_ns], "trace_bytes": size}


def _steps(work: Work, seconds: float) -> int:
    n, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        work.step()
        n += 1
    return n


def _trace(profile: Any, path: Path) -> int:
    plain = path.with_suffix("")
    profile.export_chrome_trace(str(plain))
    packed = gzip.compress(plain.read_bytes(), 6)
    plain.unlink()
    if len(packed) <= _LARGEST:
        path.write_bytes(packed)
    return len(packed)


PARTS: Final = {name: Part(f"{name}, recorded with a trace", 45, partial(_recorded, name)) for name in _WORKLOADS}
