"""Stage *counters*: whether hardware counters can be read live, by CUPTI's PM sampling and by PyTorch's profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Final

from gpu.parts import Figures, Kit, Part, Skip, apart, program
from gpu.sensors import load

from gpu_profile.kernels.counters.permissions import SAMPLES_SINCE, sampling_release

_METRICS: Final = {
    "memory": "sm__cycles_active.avg,sm__cycles_elapsed.avg,dram__bytes_read.sum,dram__bytes_write.sum",
    "pipes": "sm__pipe_tensor_cycles_active.sum,sm__cycles_active.sum,sm__inst_executed.sum",
    # With one alone, libcupti 13.0 and 13.5 crashed on an H100.
    "one": "sm__cycles_active.avg",
}


def pm_sampling(kit: Kit) -> Figures:
    """CUPTI's PM sampling of a busy GPU every 100 µs; each set of metrics by a process of its own."""
    if kit.simulated:
        raise Skip("a simulated node has no hardware counters")
    if (sampling_release() or (0, 0)) < SAMPLES_SINCE:
        raise Skip("cupti-python 13.3 or newer is not installed")
    found: dict[str, Any] = {}
    with load(kit):
        for name, metrics in _METRICS.items():
            path = kit.out / f"{name}.json"
            try:
                found[name] = apart(sampled, metrics, 100_000, kit.seconds(2), str(path))
                path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes()))
                path.unlink()
            except RuntimeError as error:
                found[name] = {"failed": str(error)[-500:]}
    return found


def sampled(metrics: str, interval_ns: int, seconds: float, path: str) -> Figures:
    """Sample these metrics of all that the first GPU does; keeps the samples in a file."""
    import ctypes
    import time

    from cupti import pm_sampling as sampling

    cuda, own = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    for status in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(own), 0), cuda.cuCtxSetCurrent(own)):
        if status:
            raise RuntimeError(f"CUDA's driver answered {status}")
    maps = Path("/proc/self/maps").read_text().splitlines()
    names, samples = metrics.split(","), []
    collector = sampling.Collector(0)
    collector.enable()
    collector.configure(metrics=names, sampling_interval=interval_ns)
    collector.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        samples += [(s.start_timestamp, s.end_timestamp, *s.metric_values) for s in collector.decode(10_000)]
    behind_ns = time.time_ns() - samples[-1][1]
    collector.stop()
    collector.disable()
    # The first one has no beginning.
    samples = [each for each in samples if each[0]]
    Path(path).write_text(json.dumps([names, samples]))
    lengths = sorted(end - start for start, end, *_ in samples)
    return {
        "library": sorted({line.split()[-1] for line in maps if "libcupti" in line}),
        "samples": len(samples),
        "length_us": [lengths[0] / 1e3, lengths[len(lengths) // 2] / 1e3, lengths[-1] / 1e3],
        "behind_ms": behind_ns / 1e6,
        "values": {name: [min(v), max(v)] for name, v in zip(names, list(zip(*samples, strict=True))[2:], strict=True)},
    }


def regions(kit: Kit) -> Figures:
    """Counters of regions by `sample_counters`: copies whose bytes are known, and products; and whether NVML's activity
    counters (GPM) answer meanwhile."""
    torch = kit.torch()
    from gpu_profile import configure, region, stop
    from gpu_profile.catalogue.signals import GRAPHICS
    from gpu_profile.clock import SYSTEM_CLOCK
    from gpu_profile.kernels import sample_counters
    from gpu_profile.regions.session import process

    worker = kit.worker()
    configure(backend=kit.backend)
    metrics = ["dram__bytes_read.sum", "dram__bytes_write.sum", "sm__inst_executed.sum"]
    with sample_counters(metrics) as counters:
        began_ns = SYSTEM_CLOCK.now_ns()
        for n in range(round(kit.seconds(2, 0.5) / 0.04)):
            with region(("products", "copy")[n % 2], span=False):
                worker.launch((0, 2)[n % 2], 0.02)
            worker.mark()()
        torch.cuda.synchronize()
        ended_ns, session = SYSTEM_CLOCK.now_ns(), process.running()
    timelines = [] if session is None else session.sampler.timelines
    windows = [len(c.edges(began_ns, ended_ns)[0]) for t in timelines if (c := t.column(GRAPHICS)) is not None]
    stop()
    report = counters.report
    found = {
        name: {
            "executions": sums.kernels,
            "coverage": sums.coverage(metrics[0]),
            "bytes_a_second": sums.figures()["dram.bandwidth"].value,
            "values": sums.reduce(),
        }
        for name, sums in report.regions.items()
    }
    about = {"chip": report.chip, "unplaced": report.unplaced, "gpm_windows": windows}
    return {**about, "seconds": (ended_ns - began_ns) / 1e9, "regions": found}


def counted(metrics: str, path: str) -> Figures:
    """Have PyTorch's profiler read counters of each kernel, and record the same work with its times."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    def work() -> None:
        a, wide = torch.randn(2048, 2048, device="cuda"), torch.randn(16 << 20, device="cuda")
        with record_function("products"):
            torch.mm(a, a)
            torch.mm(a, a)
        with record_function("memory"):
            wide.clone()
            wide.cos()
        torch.cuda.synchronize()

    asked = torch._C._profiler._ExperimentalConfig(
        profiler_metrics=metrics.split(","), profiler_measure_per_kernel=True
    )
    # The profiler must come before any context.
    with profile(activities=[ProfilerActivity.CUDA], experimental_config=asked) as found:
        work()
    found.export_chrome_trace(path)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        work()
    found.export_chrome_trace(f"{path}.timed")
    events = json.loads(Path(path).read_text())["traceEvents"]
    records = [each for each in events if str(each.get("cat", "")).startswith("cuda_profiler")]
    if not records:
        # https://github.com/pytorch/kineto/pull/1412
        raise RuntimeError(f"PyTorch {torch.__version__} ignored profiler_metrics: its Kineto was built without them")
    return {"records": len(records), "first": records[:2]}


_SETS: Final = {
    "kineto": "kineto__tensor_core_insts,dram__bytes_read.sum,dram__bytes_write.sum",
    "smsp": "smsp__inst_executed.sum,smsp__cycles_active.avg,dram__bytes.sum",
}


def range_profiler(kit: Kit) -> Figures:
    """Exact counters of each kernel by PyTorch's profiler, and what `gpu-profile kernels` makes of them."""
    kit.torch()
    found: dict[str, Any] = {}
    for name, metrics in _SETS.items():
        plain = kit.out / f"{name}.json"
        try:
            found[name] = dict(apart(counted, metrics, str(plain)))
            if found[name]["records"]:
                command = ["kernels", f"{plain}.timed", "--counters", str(plain), "--region", "products"]
                found[name]["text"] = program("-m", "gpu_profile.cli", *command)[-3000:]
        except RuntimeError as error:
            found[name] = {**found.get(name, {}), "failed": str(error)[-500:]}
        for path in kit.out.glob(f"{name}.json*"):
            path.with_name(path.name.replace(".json", "") + ".json.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    return found


PARTS: Final = {
    "pm_sampling": Part("CUPTI's PM sampling of a busy GPU", 60, pm_sampling),
    "sample_counters": Part("counters of regions by sample_counters", 60, regions),
    "range_profiler": Part("counters of each kernel by PyTorch's profiler", 60, range_profiler),
}
