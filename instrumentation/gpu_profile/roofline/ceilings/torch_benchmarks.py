"""Calibration with PyTorch's tensors, on any device that it has."""

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
    """Products by `mm`, traffic by `copy_` and a scaled sum, which is STREAM's triad."""

    def __init__(self, machine: Machine) -> None:
        import torch

        self._torch: Any = torch
        self._machine = machine
        self._kind, self._device = machine.kind, machine.device

    def caches(self) -> list[tuple[str, int]]:
        """A GPU's L2, or those of all the cores."""
        if self._kind == "cpu":
            return [(f"L{each.level}", each.total) for each in processor().caches if each.level > 1]
        return [("L2", self._machine.cache_bytes)] if self._machine.cache_bytes else []

    @property
    def _nvidia(self) -> bool:
        return self._kind == "cuda" and not getattr(self._torch.version, "hip", None)

    def precisions(self) -> Mapping[Precision, str]:
        """All number formats, and why one cannot be measured."""
        found = dict.fromkeys(Precision, "")
        if not self._nvidia:
            found[Precision.TF32] = "only NVIDIA GPUs multiply in tf32"
            found[Precision.FP8] = "measured on NVIDIA GPUs only"
            return found
        capability = self._torch.cuda.get_device_capability(self._device)
        for precision, least in ((Precision.TF32, (8, 0)), (Precision.BF16, (8, 0)), (Precision.FP8, (8, 9))):
            if capability < least:
                needs = ".".join(map(str, least))
                has = ".".join(map(str, capability))
                found[precision] = f"needs compute capability {needs}, this GPU has {has}"
        return found

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Without gradients and without autocast; a GPU's allocator gives back what is free afterwards."""
        with ExitStack() as stack:
            if self._kind != "cpu":
                stack.callback(getattr(self._torch, self._kind).empty_cache)
            stack.enter_context(self._torch.no_grad())
            if self._torch.amp.is_autocast_available(self._kind):
                stack.enter_context(self._torch.autocast(self._kind, enabled=False))
            yield

    @contextmanager
    def arithmetic(self, precision: Precision) -> Iterator[None]:
        """Float32 as it is or in tf32; float16 with float32 sums. While it lasts, other threads see these settings."""
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
        """Copy and triad of float32 tensors, in memory as PyTorch allocates it: on processors, without huge pages."""
        n = max(1, size // 12)
        torch = self._torch
        a, b, c = (self._full(n) for _ in range(3))
        return [
            BenchmarkCall(8 * n, lambda: c.copy_(a)),
            BenchmarkCall(12 * n, lambda: torch.add(a, b, alpha=3.0, out=c)),
        ]

    def product(self, precision: Precision, n: int) -> Call:
        """A product; into a tensor that is there, where PyTorch can."""
        torch, dtype = self._torch, getattr(self._torch, _DTYPES[precision])
        # A generator of its own: the user's random numbers go on as if nothing had been.
        generator = torch.Generator(device="cpu")
        generator.manual_seed(0)
        block = torch.rand((BLOCK, BLOCK), generator=generator, dtype=torch.float32, device="cpu") * 2 - 1
        scaled = (block * 8 if precision is Precision.INT8 else block).to(dtype)

        def matrix() -> Any:
            # Tensors of 8 bits are not repeated by every device: as bytes they are.
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
        """A tensor that is made and written."""
        return lambda: self._full(max(1, size // 4))


@contextmanager
def _float32(torch: Any, device: str, wanted: str) -> Iterator[None]:
    """Products of float32 as `ieee` or `tf32`, then as the user had them.

    PyTorch 2.9 has a setting for each library, older ones a global one. Whoever uses both makes PyTorch raise, so the
    newer is taken wherever it exists.
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
    found = holder.fp32_precision
    if found == wanted or (found == "none" and wanted == "ieee"):
        yield
        return
    holder.fp32_precision = wanted
    try:
        yield
    finally:
        # What is read may be inherited from the setting for all libraries: then it is to be inherited again.
        holder.fp32_precision = "none"
        if holder.fp32_precision != found:
            holder.fp32_precision = found


@contextmanager
def _float32_sums(holder: Any) -> Iterator[None]:
    """Float16 products with float32 sums, then as the user had them."""
    before = getattr(holder, "allow_fp16_accumulation", False)
    if not before:
        yield
        return
    holder.allow_fp16_accumulation = False
    try:
        yield
    finally:
        holder.allow_fp16_accumulation = before
