"""`gpu-profile record DIR`: keep what the node's GPUs do."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from gpu_profile.cli.ending import end_signals
from gpu_profile.clock import SYSTEM_CLOCK
from gpu_profile.driver.grammar import GRAMMAR, open_driver
from gpu_profile.errors import RecordingError, UsageError
from gpu_profile.process import BACKEND_VARIABLE
from gpu_profile.recorder import Recorder
from gpu_profile.sampler import Sampler, Sink
from gpu_profile.samples import Device, Sample
from gpu_profile.units import si

#: How often the command looks whether it should end.
_LOOK_S: Final = 0.1


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

    A process with regions that runs with GPU_PROFILE_RECORD=DIRECTORY records itself, its own GPUs included.
    """
    sampler = Sampler(
        lambda: open_driver(driver_spec),
        interval_s=interval,
        retention_s=10.0,
        wanted=devices or None,
    )
    sampler.open()
    try:
        _check_devices(sampler, devices, driver_spec)
        driver = sampler.driver
        name, version = (driver.name, driver.version) if driver is not None else ("", "")
        recorder = Recorder(directory, now_ns=SYSTEM_CLOCK.now_ns, driver=lambda: (name, version), strict=True)
        recorder.open()
        sampler.sinks.append(_sink(recorder))
        sampler.event_sinks.append(recorder.take_event)
        click.echo(f"recording {len(sampler.states)} devices through {name} into {directory}", err=True)
        started = time.monotonic()
        end = float("inf") if seconds is None else started + seconds
        with end_signals() as ended:
            # In a thread of its own, so that a driver that hangs does not keep the command from ending.
            sampler.start()
            while not (ended or recorder.problem) and (left := end - time.monotonic()) > 0:
                time.sleep(min(_LOOK_S, left))
            sampler.stop()
            recorder.close()
    finally:
        sampler.stop()
    if recorder.problem:
        raise RecordingError(recorder.problem)
    size = sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
    length = time.monotonic() - started
    click.echo(f"{recorder.samples:,} samples in {length:.1f} s; {directory} holds {si(size, 'B')}", err=True)


def _check_devices(sampler: Sampler, wanted: tuple[str, ...], driver_spec: str) -> None:
    missing = [uuid for uuid in wanted if uuid not in sampler.states]
    if not missing and sampler.states:
        return
    there = [device.uuid for device in sampler.driver.devices()] if sampler.driver is not None else []
    if not there:
        raise UsageError(f"driver {driver_spec!r} has no device to record")
    raise UsageError(f"driver {driver_spec!r} has no device {', '.join(missing)}; it has {', '.join(there)}")


def _sink(recorder: Recorder) -> Sink:
    def take(device: Device, samples: Sequence[Sample]) -> None:
        with suppress(RecordingError):  # the command ends with it: see `problem`
            recorder.take(device, samples)

    return take
