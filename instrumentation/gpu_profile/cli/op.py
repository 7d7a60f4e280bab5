"""`gpu-profile op NAME`: the bound of an operation on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_profile.cli.op_text import ceilings_text, profile_text, title_text
from gpu_profile.cli.options import BACKEND_VARIABLE, RECORD_VARIABLE, record_option
from gpu_profile.errors import UsageError

if TYPE_CHECKING:
    from gpu_profile.roofline.ceilings.ceilings import Ceilings
    from gpu_profile.roofline.machines.machine import Machine
    from gpu_profile.roofline.profiler import GPUProfiler
    from gpu_profile.roofline.workloads import Workload

#: The command runs its own operation, and can afford this many runs: enough for a narrow interval of the median.
_WARMUP, _REPEATS = 3, 20


@click.command()
@click.argument("name", required=False, metavar="[NAME]")
@click.option(
    "--size",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="Elements of the input.",
)
@click.option("--device", metavar="SPEC", help="cpu, cuda, cuda:1, …; else the first GPU, else the CPU.")
@click.option(
    "--dtype", default="float32", show_default=True, metavar="TYPE", help="float64, float32, bfloat16 or float16."
)
@click.option(
    "--repeats", type=click.IntRange(min=1), default=_REPEATS, show_default=True, metavar="N", help="Timed runs."
)
@click.option(
    "--warmup", type=click.IntRange(min=0), default=_WARMUP, show_default=True, metavar="N", help="Runs before them."
)
@click.option("--flush", is_flag=True, help="Overwrite the caches before each run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.option("--plot", metavar="FILE", help="Write the operation beneath the machine's roofs, such as op.png.")
@click.option("--recalibrate", is_flag=True, help="Measure the machine's ceilings again.")
@record_option("Keep the runs as a recording")
@click.option("--list", "list_all", is_flag=True, help="List the operations.")
@click.option("--ceilings", "show_ceilings", is_flag=True, help="Show this machine's highest rates, and their sources.")
@click.option(
    "--visualize", is_flag=True, help="Sweep operations over sizes and draw four panels, in some twenty seconds."
)
@click.option(
    "--output",
    metavar="FILE",
    default="gpu_performance_analysis.png",
    show_default=True,
    help="Where --visualize draws to.",
)
def op(
    name: str | None,
    *,
    size: int,
    device: str | None,
    dtype: str,
    repeats: int,
    warmup: int,
    flush: bool,
    as_json: bool,
    plot: str | None,
    recalibrate: bool,
    record: Path | None,
    list_all: bool,
    show_ceilings: bool,
    visualize: bool,
    output: str,
) -> None:
    """Time an operation and name its bound.

    The bound is launching, memory or arithmetic.

    NAME is one of --list. Its input has about --size elements, and the output names the shapes. The machine's ceilings
    are measured at first use, which takes some seconds, and are stored.
    """
    from gpu_profile.roofline.machines.devices import machine as machine_of
    from gpu_profile.roofline.plots.theme import check_file
    from gpu_profile.roofline.workloads import WORKLOADS, check_workload, prepare, torch_device

    if name is not None:
        check_workload(name, dtype)
    if list_all:
        click.echo("\n".join(WORKLOADS))
        return
    if name is None and not (visualize or show_ceilings or recalibrate):
        raise UsageError(f"which operation? {', '.join(WORKLOADS)}; or --ceilings, or --visualize")
    target = None if plot is None else check_file(plot)
    if visualize:
        check_file(output)
    kept = record is not None or RECORD_VARIABLE in os.environ
    machine = machine_of(device)
    # Errors come before seconds of calibration.
    where = torch_device(machine) if name is not None or visualize else machine.device
    profiler = _profiler(machine, recalibrate=recalibrate, regions=kept)
    if visualize:
        from gpu_profile.roofline.plots.panels import create_performance_plots

        create_performance_plots(output, profiler=profiler)
    if name is None:
        if not visualize:
            click.echo(
                json.dumps(profiler.ceilings.to_json(), indent=2) if as_json else ceilings_text(profiler.ceilings)
            )
        return
    workload = prepare(name, size, device=where, dtype=dtype)
    with _recorded(record, profiler):
        profile = _profile(profiler, workload, kept=kept, repeats=repeats, warmup=warmup, flush=flush)
    about = {
        "operation": name,
        "shape": workload.shape,
        "size": workload.size,
        "dtype": workload.dtype,
        "device": where,
        "machine": profiler.machine.name,
    }
    if as_json:
        click.echo(json.dumps(about | {**profile, **about}, indent=2, allow_nan=False))
    else:
        click.echo(profile_text(profile, about, profiler.ceilings))
    if show_ceilings and not as_json:
        click.echo(f"\n{ceilings_text(profiler.ceilings)}")
    if target is not None:
        _draw(target, profile, profiler.ceilings, title=title_text(about))


def _profiler(machine: Machine, *, recalibrate: bool, regions: bool) -> GPUProfiler:
    """A quiet profiler. A calibration writes its lines to standard error."""
    from gpu_profile.roofline.ceilings.cache import ceilings_for
    from gpu_profile.roofline.profiler import GPUProfiler

    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        click.echo(line, err=True)

    ceilings, remark = ceilings_for(machine, recalibrate=recalibrate, say=say)
    if lines:
        click.echo(f"ceilings: {remark}", err=True)
    return GPUProfiler(machine.device, quiet=True, ceilings=ceilings, regions=regions)


@contextmanager
def _recorded(directory: Path | None, profiler: GPUProfiler) -> Iterator[None]:
    if directory is None:
        yield
        return
    from gpu_profile.regions.session import process

    # No driver reads the processor.
    none = profiler.machine.region_device is None and BACKEND_VARIABLE not in os.environ
    process.configure(record=directory, backend="none" if none else None)
    try:
        yield
    finally:
        process.stop()


def _profile(profiler: GPUProfiler, workload: Workload, *, kept: bool, **runs: Any) -> dict[str, Any]:
    """The profile, with the doubling test if FLOPs and bytes alone give no regime.

    A recording must have each run once, so there the test is always made.
    """
    call = (workload.function, *workload.args)
    options = {**workload.kwargs, **runs, "passes": 2, "name": workload.name}
    profile = None if kept else profiler.profile_operation(*call, **options)
    if profile is not None and profile["regime"] != "UNKNOWN":
        return profile
    return profiler.profile_operation(*call, growth=True, **options)


def _draw(target: Path, profile: Mapping[str, Any], ceilings: Ceilings, *, title: str) -> None:
    from gpu_profile.roofline.plots.points import Point
    from gpu_profile.roofline.plots.roofs import roofline_figure
    from gpu_profile.roofline.plots.theme import save
    from gpu_profile.roofline.precision import Precision

    precision = profile["precision"]
    point = Point(
        profile["operation"],
        profile["compute_intensity"],
        profile["achieved_flops"],
        profile["regime"],
        precision=None if precision is None else Precision(precision),
    )
    save(roofline_figure(ceilings, [point], title=title), target)
    click.echo(f"wrote {target}", err=True)
