"""`gpu-profile record DIR`: keep what the node's GPUs do."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType

import click

from gpu_profile.clock import SYSTEM_CLOCK
from gpu_profile.driver.grammar import GRAMMAR, open_driver
from gpu_profile.errors import UsageError
from gpu_profile.process import BACKEND_VARIABLE
from gpu_profile.recorder import Recorder
from gpu_profile.sampler import Sampler
from gpu_profile.units import NS_PER_S


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--driver",
    "--backend",
    "driver_spec",
    metavar=GRAMMAR,
    default=lambda: os.environ.get(BACKEND_VARIABLE, "auto"),
    help=f"What to read; else {BACKEND_VARIABLE}, else auto.",
)
@click.option("--interval", type=click.FloatRange(min=0.001), default=0.1, show_default=True, help="Seconds.")
@click.option("--seconds", type=click.FloatRange(min=0.1), help="End after this long; without it, on Ctrl-C.")
@click.option("--device", "devices", multiple=True, metavar="UUID", help="Only this device; may be repeated.")
def record(
    directory: Path, *, driver_spec: str, interval: float, seconds: float | None, devices: tuple[str, ...]
) -> None:
    """Record every GPU of this node into DIRECTORY.

    A process with regions records its spans there too if it runs with GPU_PROFILE_RECORD=DIRECTORY.
    """
    sampler = Sampler(
        lambda: open_driver(driver_spec),
        interval_s=interval,
        retention_s=10.0,
        wanted=devices or None,
    )
    sampler.open()
    missing = sorted(set(devices) - set(sampler.states))
    if missing or not sampler.states:
        sampler.stop()
        raise UsageError(_no_device(missing, driver_spec))
    driver = sampler.driver
    name, version = (driver.name, driver.version) if driver is not None else ("", "")
    recorder = Recorder(directory, now_ns=SYSTEM_CLOCK.now_ns, driver=lambda: (name, version), strict=True)
    sampler.sinks.append(recorder.take)
    stopped = _stop_on_signals()
    click.echo(f"recording {len(sampler.states)} devices through {name} into {directory}", err=True)
    started = SYSTEM_CLOCK.now_ns()
    end = None if seconds is None else started + int(seconds * NS_PER_S)
    try:
        while not stopped.is_set() and (end is None or SYSTEM_CLOCK.now_ns() < end):
            # In this thread, so that a full disk ends the command with its message.
            SYSTEM_CLOCK.wait(stopped, sampler.step())
    finally:
        sampler.stop()
        recorder.close()
    size = sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
    length = (SYSTEM_CLOCK.now_ns() - started) / NS_PER_S
    click.echo(f"{recorder.samples:,} samples in {length:.1f} s; {directory} holds {size / 1e6:.2f} MB", err=True)


def _no_device(missing: list[str], driver_spec: str) -> str:
    if not missing:
        return f"driver {driver_spec!r} has no device to record"
    return f"driver {driver_spec!r} has no device {', '.join(missing)}"


def _stop_on_signals() -> threading.Event:
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    return stopped
