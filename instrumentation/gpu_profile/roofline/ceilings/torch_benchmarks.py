"""Benchmarks with PyTorch, on any of its devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from gpu_profile.roofline.ceilings.benchmarks import BLOCK, BenchmarkCall, Call
from gpu_profile.roofline.machines.machine import Machine
from gpu_profile.roofline.machines.processor import processor
from gpu_profile.roofline.precision import Precision

_DTYPES: Final = {
    Precision.FP64: "float64",
    Precision.FP32: "float32",
    Precision.TF32: "float32",
    Precision.BF16: "bfloat16",
    Precision.FP16: "float16",
    Precision.FP8: "float8_e4m3fn",
    Precision.INT8: "int8",
}


class TorchBenchmarks:
    """Products by `mm`, traffic by `copy_` and by a scaled sum, STREAM's triad."""

    def __init__(self, machine: Machine) -> None:
        import torch

        self._torch: Any = torch
        self._machine = machine
        self._kind, self._device = machine.kind, machine.device

    def caches(self) -> list[tuple[str, int]]:
        """The L2 of a GPU. On a processor the caches of all cores, from L2 on."""
        if self._kind == "cpu":
            return [(f"L{each.level}", each.total) for each in processor().caches if each.level > 1]
        return [("L2", self._machine.cache_bytes)] if self._machine.cache_bytes else []

    @property
    def _nvidia(self) -> bool:
        return self._kind == "cuda" and not getattr(self._torch.version, "hip", None)

    def precisions(self) -> Mapping[Precision, str]:
        """All number formats, each with the reason why it cannot be measured, or ''."""
        reasons = dict.fromkeys(Precision, "")
        if not self._nvidia:
            reasons[Precision.TF32] = "only NVIDIA GPUs multiply in tf32"
            reasons[Precision.FP8] = "measured on NVIDIA GPUs only"
            return reasons
        capability = self._torch.cuda.get_device_capability(self._device)
        for precision, least in ((Precision.TF32, (8, 0)), (Precision.BF16, (8, 0)), (Precision.FP8, (8, 9))):
            if capability < least:
                needs = ".".join(map(str, least))
                has = ".".join(map(str, capability))
                reasons[precision] = f"needs compute capability {needs}, this GPU has {has}"
        return reasons

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Disable gradients and autocast. Afterwards a GPU's allocator returns its free blocks to the device."""
        with ExitStack() as stack:
            if self._kind != "cpu":
                stack.callback(getattr(self._torch, self._kind).empty_cache)
            stack.enter_context(self._torch.no_grad())
            if self._torch.amp.is_autocast_available(self._kind):
                stack.enter_context(self._torch.autocast(self._kind, enabled=False))
            yield

    @contextmanager
    def arithmetic(self, precision: Precision) -> Iterator[None]:
        """Float32 products in float32 or tf32; float16 products with float32 sums. Other threads see these settings."""
        with ExitStack() as stack:
            if precision in (Precision.FP32, Precision.TF32):
                stack.enter_context(
                    _float32(self._torch, self._kind, "tf32" if precision is Precision.TF32 else "ieee")
                )
            if precision is Precision.FP16 and self._kind == "cuda":
                stack.enter_context(_float32_sums(self._torch.backends.cuda.matmul))
            yield

    def _full(self, n: int) -> Any:
        torch = self._torch
        return torch.full((n,), 1.0, dtype=torch.float32, device=self._device)

    def traffic(self, size: int) -> list[BenchmarkCall]:
        """Copy and triad of float32 tensors, in memory of PyTorch's allocator: on processors, without huge pages."""
        n = max(1, size // 12)
        torch = self._torch
        a, b, c = (self._full(n) for _ in range(3))
        return [
            BenchmarkCall(8 * n, lambda: c.copy_(a)),
            BenchmarkCall(12 * n, lambda: torch.add(a, b, alpha=3.0, out=c)),
        ]

    def product(self, precision: Precision, n: int) -> Call:
        """A product, into an existing tensor if PyTorch can do that for the format."""
        torch, dtype = self._torch, getattr(self._torch, _DTYPES[precision])
        # A generator of its own, so that the user's sequence of random numbers does not change.
        generator = torch.Generator(device="cpu")
        generator.manual_seed(0)
        block = torch.rand((BLOCK, BLOCK), generator=generator, dtype=torch.float32, device="cpu") * 2 - 1
        scaled = (block * 8 if precision is Precision.INT8 else block).to(dtype)

        def matrix() -> Any:
            # Not every device can repeat the 8-bit types, but every one can repeat bytes.
            part = scaled.view(torch.uint8) if dtype.itemsize == 1 else scaled
            return part.to(self._device).repeat(n // BLOCK, n // BLOCK).view(dtype)

        a, b = matrix(), matrix()
        if precision is Precision.INT8:
            other = b.t() if self._kind == "cuda" else b
            return lambda: torch._int_mm(a, other)
        if precision is Precision.FP8:
            one = self._full(1).reshape(())
            return lambda: torch._scaled_mm(
                a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        c = torch.full((n, n), 0.0, dtype=dtype, device=self._device)
        return lambda: torch.mm(a, b, out=c)

    def nothing(self) -> Call:
        """A change of sign in place."""
        negate: Call = self._full(1).neg_
        return negate

    def small(self) -> list[Call]:
        """A sum, a softmax and a product."""
        torch, few = self._torch, self._full(256).view(16, 16)
        return [lambda: torch.add(few, few), lambda: torch.softmax(few, -1), lambda: torch.mm(few, few)]

    def fresh(self, size: int) -> Call:
        """A call that creates and writes a tensor."""
        return lambda: self._full(max(1, size // 4))


@contextmanager
def _float32(torch: Any, device: str, wanted: str) -> Iterator[None]:
    """Compute products of float32 as `ieee` or `tf32`, then restore the user's setting.

    PyTorch 2.9 has a setting for each library, older versions have a global one. PyTorch raises if a program uses both,
    so this uses the newer one if it exists.
    """
    library = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    holder: Any = getattr(library, "matmul", None)
    if not hasattr(holder, "fp32_precision"):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if wanted == "tf32" else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    before = holder.fp32_precision
    if before == wanted or (before == "none" and wanted == "ieee"):
        yield
        return
    holder.fp32_precision = wanted
    try:
        yield
    finally:
        # The value may have been inherited from the setting for all libraries: inherit it again if that gives the same.
        holder.fp32_precision = "none"
        if holder.fp32_precision != before:
            holder.fp32_precision = before


@contextmanager
def _float32_sums(holder: Any) -> Iterator[None]:
    """Compute float16 products with float32 sums, then restore the user's setting."""
    before = getattr(holder, "allow_fp16_accumulation", False)
    if not before:
        yield
        return
    holder.allow_fp16_accumulation = False
    try:
        yield
    finally:
        holder.allow_fp16_accumulation = before
