"""`gpu-profile calibrate`: how the sensors of a GPU answer to a load that is known."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

import click

from gpu_profile.cli.devices import chooser
from gpu_profile.cli.options import backend_option, device_option
from gpu_profile.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpu_profile.calibration.calibrate import Calibration
    from gpu_profile.calibration.workers import LoadWorker
    from gpu_profile.catalogue.samples import Device
    from gpu_profile.driver import Driver


_SHAPES: Final = {"interval": "since the renewal before", "mean": "mean over", "exponential": "exponential of"}


@click.command()
@backend_option("--backend", "--driver", about="The driver to look at: nvml or simulated[:DIR]")
@device_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def calibrate(*, backend: str, devices: tuple[str, ...], as_json: bool) -> int:
    """Learn how a GPU's sensors answer, by a minute of known load on it.

    It needs PyTorch or CuPy, and a GPU that nobody else uses. What it finds is kept in the user's cache, for this GPU,
    driver and firmware, and used by every program of this user that joins regions with it. Ends with 1 if a loop that
    was sampled as programs are was not told within its intervals: pooled numbers are then refused on this GPU.
    """
    from gpu_profile.calibration.calibrate import calibrate as calibrated
    from gpu_profile.clock import SYSTEM_CLOCK
    from gpu_profile.driver.grammar import open_driver

    driver = open_driver(backend)
    try:
        listed = driver.devices()
        device = _one(chooser(devices, visible=True)(listed))
        found = calibrated(
            driver, device, _worker(driver, device, listed), SYSTEM_CLOCK, say=lambda line: click.echo(line, err=True)
        )
    finally:
        driver.close()
    problem = found.keep()
    if problem:
        raise UsageError(f"what was found cannot be kept: {problem}")
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        click.echo("\n".join(_lines(found)))
    return 1 if found.missed else 0


def _one(devices: Sequence[Device]) -> Device:
    from gpu_profile.catalogue.samples import DeviceKind

    if len(devices) != 1:
        named = ", ".join(device.uuid for device in devices) or "none"
        raise UsageError(f"calibrate takes one GPU at a time: name one of {named} with --device")
    if devices[0].kind is DeviceKind.MIG:
        raise UsageError(f"{devices[0].uuid} is a MIG instance, whose power nothing measures: calibrate a whole GPU")
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
    seen = [known.uuid for known in Visible(devices, os.environ).devices]
    if device.uuid not in seen:
        raise UsageError(f"CUDA does not show {device.uuid} to this process: see CUDA_VISIBLE_DEVICES")
    return lambda: FrameworkWorker(seen.index(device.uuid), SYSTEM_CLOCK)


def _lines(found: Calibration) -> list[str]:
    """The table, what the loop told, and what that means."""
    from gpu_profile.catalogue import Kind

    lines = [f"{found.device.name}, {found.device.uuid}, driver {found.driver_version}", ""]
    head = ("sensor", "renewed every", "lag", "window", "of the time", "adds, by level")
    table = [head]
    for signal, each in found.responses.items():
        period = f"{each.period.value:.3f} ms" if each.period.value else "-"
        window = _SHAPES[each.shape]
        window += f" {each.window} ms" if each.window.value else ""
        share = "" if each.part_time is None else f"{each.part_time:.0%}"
        gains = ", ".join(str(gain) for gain in each.gains)
        unit = "W" if signal.kind is Kind.COUNTER else signal.unit.replace("1", "")
        table.append((signal.key, period, f"{each.lag} ms", window, share, f"{gains} {unit}".rstrip()))
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    lines += [f"{signal.key}: {each.reason}" for signal, each in found.responses.items() if each.reason]
    for key, ratios in found.ratios().items():
        lines.append(f"{key} over energy: {', '.join(map(str, ratios))}")
    lines.append("")
    for told in found.checked:
        answer = told.reason or f"{told.told:.4g} ± {told.half_width:.2g}"
        mark = " MISSED" if told.missed else ""
        lines.append(f"loop, {told.region}: {told.signal} {answer}, in truth {told.truth:.4g}{mark}")
    if not found.responses:
        lines.append("no sensor of this GPU answers to the load")
    if found.missed:
        lines.append("Pooled numbers of this GPU are not trusted, and refused.")
    return lines
