"""Stage *truth*: what regions are told to be, beside what the same kernels are alone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from gpu.joint import Training
from gpu.parts import Figures, Kit, Part, apart, program
from gpu.programs import PROGRAMS, record


def _recorded(name: str, kit: Kit) -> Figures:
    """One program of six kernels, recorded."""
    return {"regions": record(kit.worker(), name, kit.seconds(PROGRAMS[name], 1.0), kit.out, kit.backend)}


def told(kit: Kit) -> Figures:
    """What all recordings of this stage say of their regions, each analysed by a process of its own."""
    recordings = sorted({path.parent for path in kit.out.parent.glob("*/*.gpr")})
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        return dict(zip([path.name for path in recordings], pool.map(analysed, recordings), strict=True))


def analysed(recording: Path) -> Figures:
    """What `gpu-profile analyze` says of the regions of a recording."""
    return _told(json.loads(program("-m", "gpu_profile.cli", "analyze", str(recording), "--json")))


def _told(found: dict[str, Any]) -> dict[str, Any]:
    keys = (
        "executions",
        "busy",
        "busy_half_width",
        "busy_source",
        "power_w",
        "power_half_width_w",
        "energy_source",
        "metered_power_w",
        "reasons",
    )
    told = {}
    for region in found["regions"]:
        if region["region"] == "warm":
            continue
        verdict = {key: region["verdict"][key] for key in ("regime", "confidence", "basis")}
        told[region["region"].rpartition(".")[2]] = {key: region[key] for key in keys} | verdict
    return told


def others(kit: Kit) -> Figures:
    """Work that is no kernel's: copies from the host, a kernel that only waits, products beside copies, idleness."""
    torch = kit.torch()
    from gpu_profile import configure, region, stop

    host = torch.randn(64 << 20).pin_memory()
    device = torch.empty_like(host, device="cuda")
    source = torch.randn(64 << 20, device="cuda")
    target = torch.empty_like(source)
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()

    def mixed() -> None:
        with torch.cuda.stream(side):
            target.copy_(source)
        torch.mm(a, a)

    def starved() -> None:
        torch.mm(a, a)
        torch.cuda.synchronize()
        time.sleep(0.002)

    works: dict[str, Callable[[], Any]] = {
        "from_host": lambda: device.copy_(host, non_blocking=True),
        "spinning": lambda: torch.cuda._sleep(20_000_000),
        "mixed": mixed,
        "starved": starved,
        "idle": lambda: time.sleep(0.01),
    }
    for work in works.values():
        work()
    torch.cuda.synchronize()
    configure(backend=kit.backend, record=kit.out)
    for name, work in works.items():
        with region(f"others.{name}", span=False):
            end = time.monotonic() + kit.seconds(2.5)
            while time.monotonic() < end:
                for _ in range(5):
                    work()
                torch.cuda.synchronize()
        time.sleep(0.5)
    stop()
    return {"works": list(works)}


def phases(kit: Kit) -> Figures:
    """A transformer that keeps the GPU busy, trained: its phases in their order, and then each alone for seconds.

    `alone_*` is what a phase draws when nothing else runs; `metered_power_w` gives it from the energy counter.
    """
    torch = kit.torch()
    from gpu_profile import configure, region, stop

    layer = torch.nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    x = torch.randn(8, 1024, 2048, device="cuda", dtype=torch.bfloat16)
    loss: Any = None

    def forward() -> None:
        nonlocal loss
        loss = model(x).square().mean()

    def optimize() -> None:
        optimizer.step()

    works: dict[str, Callable[[], Any]] = {
        "forward": forward,
        "backward": lambda: loss.backward(retain_graph=True),
        "optimizer": optimize,
    }
    waits: list[Any] = []

    def ahead() -> None:
        event = torch.cuda.Event()
        event.record()
        waits.append(event)
        if len(waits) > 2:
            waits.pop(0).synchronize()

    for work in works.values():
        work()
    torch.cuda.synchronize()
    configure(backend=kit.backend, record=kit.out)
    time.sleep(1.5)
    steps, end = 0, time.monotonic() + kit.seconds(12.0)
    while time.monotonic() < end:
        for name, work in works.items():
            with region(f"phases.{name}", span=False):
                work()
        ahead()
        steps += 1
    torch.cuda.synchronize()
    for name, work in works.items():
        time.sleep(0.5)
        forward()
        torch.cuda.synchronize()
        with region(f"phases.alone_{name}", span=False):
            end = time.monotonic() + kit.seconds(2.5)
            while time.monotonic() < end:
                work()
                ahead()
            torch.cuda.synchronize()
    time.sleep(1.5)
    stop()
    return {"steps": steps}


def ceilings(kit: Kit) -> Figures:
    """The roofline's ceilings beside the data sheet, and the regime of clear operations."""
    torch = kit.torch()
    from gpu_profile import configure
    from gpu_profile.roofline import GPUProfiler
    from gpu_profile.roofline.ceilings.datasheet import sheet_for

    configure(backend="none")
    found = GPUProfiler("cuda:0")
    name, total = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
    sheet = sheet_for(name, memory_total=total)
    compute = {
        str(key): [one.value, None if sheet is None else sheet.compute.get(key)]
        for key, one in found.ceilings.compute.items()
    }
    assert found.ceilings.memory is not None
    memory = [found.ceilings.memory.value, None if sheet is None else sheet.memory]
    n = 8192
    half = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    full = torch.randn(n // 2, n // 2, device="cuda")
    wide = torch.randn(1 << 28, device="cuda")
    small = torch.randn(64, device="cuda")
    operations = {
        "mm bf16": (torch.mm, half, half),
        "mm fp32": (torch.mm, full, full),
        "cos": (torch.cos, wide),
        "softmax": (partial(torch.softmax, dim=-1), wide.view(-1, 4096)),
        "add of 64": (torch.add, small, small),
    }
    keys = ("runtime_ms", "regime", "confidence", "flops_utilization", "bandwidth_utilization", "overhead_ratio")
    judged = {}
    for label, (call, *arguments) in operations.items():
        result = found.profile_operation(call, *arguments, warmup=3, repeats=20)
        judged[label] = {key: result.get(key) for key in keys}
    return {
        "compute_measured_and_data_sheet": compute,
        "memory_measured_and_data_sheet": memory,
        "launch_s": found.ceilings.launch_s,
        "operations": judged,
    }


def kernels(kit: Kit) -> Figures:
    """Kernels of training by PyTorch's profiler and by CUPTI, and their busy time beside the driver's."""
    kit.torch()
    found: dict[str, Any] = {}
    for source in ("torch", "cupti"):
        try:
            found[source] = apart(trained, kit.backend, source, kit.seconds(0.8, 0.5))
        except RuntimeError as error:
            found[source] = {"failed": str(error)[-300:]}
    return found


def trained(backend: str, source: str, seconds: float) -> Figures:
    """Train for so long while a source records kernels."""
    from gpu_profile import configure, region
    from gpu_profile.catalogue import signals as rows
    from gpu_profile.driver.grammar import open_driver
    from gpu_profile.kernels.windows.window import record as recorded

    configure(backend="none")
    work = Training()
    for _ in range(20):
        work.step()
    work.wait()
    driver = open_driver(backend)
    device = driver.devices()[0]
    driver.drain(device)
    steps, began = 0, time.time_ns()
    with recorded(source) as recording, region("training", span=False):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            work.step()
            steps += 1
        work.wait()
    ended = time.time_ns()
    time.sleep(0.3)
    samples = [each for each in driver.drain(device) if each.signal is rows.UTILIZATION]
    values = [each.value for each in samples if began <= each.t_start_ns and each.t_end_ns <= ended]
    report = recording.report
    whole = report.region("training")
    return {
        "steps": steps,
        "kernels_a_step": whole.kernel_count / steps,
        "busy_by_kernels": whole.busy_ns / (ended - began),
        "busy_by_driver": sum(values) * rows.UTILIZATION.quantum / len(values) if values else None,
        "dropped": report.dropped,
    }


PARTS: Final = {
    **{name: Part(f"six kernels: {name}", 60, partial(_recorded, name)) for name in PROGRAMS},
    "kernels": Part("kernels by PyTorch's profiler and by CUPTI beside the driver's busy time", 60, kernels),
    "others": Part("copies from the host, a waiting kernel, two streams, starving, idleness", 40, others),
    "phases": Part("phases of training, in order and each alone", 70, phases),
    "told": Part("what the recordings say of their regions", 60, told),
    "ceilings": Part("the roofline's ceilings beside the data sheet, and clear operations", 90, ceilings),
}
