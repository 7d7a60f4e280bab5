"""`gpu-profile calibrate`: the response of a GPU's sensors to a load."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Final

import click

from gpu_profile.cli.devices import chooser
from gpu_profile.cli.options import backend_option, one_device_option
from gpu_profile.cli.progress import Progress
from gpu_profile.errors import UsageError, few

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpu_profile.calibration.calibrate import Calibration
    from gpu_profile.calibration.workers import LoadWorker
    from gpu_profile.catalogue.samples import Device
    from gpu_profile.driver import Driver


_SHAPES: Final = {"interval": "since the renewal before", "mean": "mean over", "exponential": "exponential of"}


@click.command()
@backend_option("--backend", "--driver", about="The driver to look at: nvml or simulated[:DIR]")
@one_device_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def calibrate(*, backend: str, devices: tuple[str, ...], as_json: bool) -> int:
    """Measure the response of a GPU's sensors to a minute of load.

    It needs PyTorch or CuPy, and a GPU without other users. The result is stored in the user's cache, for this GPU,
    driver and firmware. Every program of this user that joins regions with the GPU uses it. A loop, sampled as programs
    are, tests it. If a rate of the loop lies outside its interval, the exit code is 1, and pooled numbers are refused
    on this GPU.
    """
    from gpu_profile.calibration.calibrate import LENGTH_S
    from gpu_profile.calibration.calibrate import calibrate as calibrated
    from gpu_profile.clock import SYSTEM_CLOCK
    from gpu_profile.driver.grammar import open_driver

    driver = open_driver(backend, clock=SYSTEM_CLOCK)
    try:
        listed = driver.devices()
        device = _one(chooser(devices, visible=True)(driver, listed))
        worker = _worker(driver, device, listed)
        began = time.monotonic()
        with Progress("calibrating", lambda: (time.monotonic() - began) / LENGTH_S) as progress:
            calibration = calibrated(driver, device, worker, SYSTEM_CLOCK, say=progress.say)
    finally:
        driver.close()
    click.echo(json.dumps(calibration.to_json(), indent=2) if as_json else "\n".join(_lines(calibration)))
    if problem := calibration.keep():
        raise UsageError(f"the calibration cannot be stored: {problem}")
    return 1 if calibration.missed else 0


def _one(devices: Sequence[Device]) -> Device:
    from gpu_profile.catalogue.samples import DeviceKind

    if len(devices) != 1:
        if not devices:
            raise UsageError("there is no GPU to calibrate: choose another --driver")
        named = few(device.uuid for device in devices)
        raise UsageError(f"calibrate takes one GPU at a time: choose it with --device; there are {named}")
    if devices[0].kind is DeviceKind.MIG:
        raise UsageError(f"{devices[0].uuid} is a MIG instance, which has no power reading: calibrate a whole GPU")
    return devices[0]


def _worker(driver: Driver, device: Device, devices: Sequence[Device]) -> Callable[[], LoadWorker]:
    from gpu_profile.calibration.workers import FrameworkWorker, SimulatedWorker
    from gpu_profile.clock import SYSTEM_CLOCK
    from gpu_profile.driver.visible import Visible

    word, _, directory = driver.name.partition(":")
    if word == "simulated":
        return lambda: SimulatedWorker(directory, device.uuid, SYSTEM_CLOCK)
    if word != "nvml":
        raise UsageError(f"the driver {driver.name!r} does not read sensors often enough to calibrate them: use nvml")
    seen = [each.uuid for each in Visible(devices, os.environ).devices]
    if device.uuid not in seen:
        raise UsageError(f"CUDA does not show {device.uuid} to this process: see CUDA_VISIBLE_DEVICES")
    return lambda: FrameworkWorker(seen.index(device.uuid), SYSTEM_CLOCK)


def _lines(calibration: Calibration) -> list[str]:
    """The table, the rates of the loop, and the consequence."""
    from gpu_profile.catalogue import Kind

    lines = [f"{calibration.device.name}, {calibration.device.uuid}, driver {calibration.driver_version}", ""]
    head = ("sensor", "renewed every", "lag", "window", "of the time", "adds, by level")
    table = [head]
    for signal, each in calibration.responses.items():
        period = f"{each.period.value:.3f} ms" if each.period.value else "-"
        window = _SHAPES[each.shape]
        window += f" {each.window} ms" if each.window.value else ""
        share = "" if each.part_time is None else f"{each.part_time:.0%}"
        gains = ", ".join(str(gain) for gain in each.gains)
        unit = "W" if signal.kind is Kind.COUNTER else signal.unit.replace("1", "")
        table.append((signal.key, period, f"{each.lag} ms", window, share, f"{gains} {unit}".rstrip()))
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    lines += [f"{signal.key}: {each.reason}" for signal, each in calibration.responses.items() if each.reason]
    for key, ratios in calibration.ratios().items():
        lines.append(f"{key} over energy: {', '.join(map(str, ratios))}")
    lines.append("")
    for checked in calibration.checked:
        answer = checked.reason or f"{checked.estimate:.4g} ± {checked.half_width:.2g}"
        mark = " MISSED" if checked.missed else ""
        lines.append(f"loop, {checked.region}: {checked.signal} {answer}, in truth {checked.truth:.4g}{mark}")
    if not calibration.responses:
        lines.append("no sensor of this GPU responds to the load")
    if calibration.missed:
        lines.append("Pooled numbers of this GPU are not trusted, and refused.")
    return lines
