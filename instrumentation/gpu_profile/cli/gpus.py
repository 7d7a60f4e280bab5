"""The signals that a driver can read of each device: a part of `gpu-profile doctor`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from gpu_profile.cli.finding import NO_DRIVER, Finding, FindingState
from gpu_profile.errors import GpuProfileError

if TYPE_CHECKING:
    from gpu_profile.catalogue.samples import Device
    from gpu_profile.driver import Driver

#: Beginnings of reasons that are no fault of the device: the signal was not requested, or a better one replaces it.
_LEFT_OUT: Final = ("not read:", "not needed:")


def driver(spec: str, opened: Callable[[str], Driver]) -> Iterator[Finding]:
    """The signals that the driver in `spec` can read of each device."""
    warnings = _Warnings()
    logger = logging.getLogger("gpu_profile")
    logger.addHandler(warnings)
    try:
        yield from _driver(spec, opened)
    finally:
        logger.removeHandler(warnings)
    for line in warnings.lines:
        yield Finding(
            "driver says", FindingState.MISSING, line, "compare with nvidia-smi and the kernel's log (NVRM, Xid)"
        )


class _Warnings(logging.Handler):
    """Keeps warnings, such as of a GPU that is lost and therefore not listed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.lines.append(record.getMessage())


def _driver(spec: str, opened: Callable[[str], Driver]) -> Iterator[Finding]:
    try:
        backend = opened(spec)
    except GpuProfileError as error:
        to_do = "see the lines above; to try gpu-profile without a GPU: --driver simulated"
        yield Finding("GPUs", FindingState.FAILS, str(error), to_do, {"driver": spec})
        return
    try:
        yield from _devices(spec, backend)
    finally:
        backend.close()


def _devices(spec: str, backend: Driver) -> Iterator[Finding]:
    from gpu_profile.catalogue import Tier
    from gpu_profile.driver import is_simulated
    from gpu_profile.errors import DeviceLost

    devices = backend.devices()
    versions = {"driver": backend.name, "driver_version": backend.version, "nvml_version": _nvml_version(backend)}
    said = f"driver {backend.name}" + (f", version {backend.version}" if backend.version else "")
    said += f", NVML {versions['nvml_version']}" if versions["nvml_version"] else ""
    if not devices:
        to_do = "choose another driver with --driver" if spec == "none" else NO_DRIVER
        yield Finding("GPUs", FindingState.FAILS, f"{said}: no device", to_do, versions)
        return
    yield Finding("GPUs", FindingState.OK, f"{len(devices)} through {said}", data={**versions, "devices": len(devices)})
    yield from _visible(devices, simulated=is_simulated(backend))
    for device in devices:
        try:
            started = time.perf_counter()
            backend.read(device, Tier.FAST)
            took_ms = (time.perf_counter() - started) * 1e3
        except DeviceLost as error:
            yield Finding(
                _name(device), FindingState.FAILS, str(error), "see the kernel's log (NVRM, Xid)", _facts(device)
            )
            continue
        yield Finding(
            _name(device),
            FindingState.OK,
            f"{device.name or 'no name'}, {device.uuid}; read in {took_ms:.1f} ms",
            data=_facts(device) | {"read_ms": took_ms},
        )
        yield from _signals(device, backend)
        yield from _sensors(device, backend)


def _nvml_version(backend: Driver) -> str:
    if backend.name in ("smi", "none") or backend.name.startswith(("replay", "node")):
        return ""
    import pynvml

    try:
        version = pynvml.nvmlSystemGetNVMLVersion()
    except pynvml.NVMLError:
        return ""
    return version.decode() if isinstance(version, bytes) else str(version)


def _visible(devices: Sequence[Device], *, simulated: bool) -> Iterator[Finding]:
    from gpu_profile.driver.visible import ORDER, VARIABLE, Visible, setting

    seen = Visible(devices, os.environ, simulated=simulated)
    value = os.environ.get(VARIABLE)
    said = f"{VARIABLE} is not set" if value is None else setting(value)
    said += f", {ORDER}={os.environ[ORDER]}" if ORDER in os.environ else ""
    listed = ", ".join(f"{n}: {_name(device)}" for n, device in enumerate(seen.devices))
    reason = "" if value is not None and seen.reason == setting(value) else seen.reason
    why = "; ".join(part for part in (reason, seen.assumed) if part)
    yield Finding(
        "CUDA sees",
        FindingState.OK if seen.devices else FindingState.MISSING,
        f"{listed or 'no device'} ({said}{'; ' if why else ''}{why})",
        "" if seen.devices else f"correct {VARIABLE}: regions are joined with no device as it is",
        {"devices": [device.uuid for device in seen.devices], "reason": seen.reason, "assumed": seen.assumed},
    )


def _name(device: Device) -> str:
    from gpu_profile.cli.devices import label

    return str(label(device)) if isinstance(label(device), str) else f"GPU {label(device)}"


def _facts(device: Device) -> dict[str, Any]:
    return {"uuid": device.uuid, "name": device.name, "kind": str(device.kind), "parent": device.parent}


def _signals(device: Device, backend: Driver) -> Iterator[Finding]:
    """The groups of signals that are whole, partial or missing, with reasons."""
    groups: dict[str, dict[str, str | None]] = {}
    for row, can in backend.capabilities(device).items():
        groups.setdefault(row.group, {})[row.key] = None if can.available else can.reason or "no reason told"
    there: list[str] = []
    part: dict[str, list[str]] = {}
    none: dict[str, list[str]] = {}
    for group, mine in groups.items():
        asked = {key: reason for key, reason in mine.items() if not (reason or "").startswith(_LEFT_OUT)}
        absent = {key: reason for key, reason in asked.items() if reason is not None}
        if len(absent) < len(asked):
            there.append(group)
            for key, reason in absent.items():
                part.setdefault(reason, []).append(key)
        elif absent:
            none.setdefault("; ".join(dict.fromkeys(absent.values())), []).append(group)
    data = {"uuid": device.uuid, "groups": groups}
    yield Finding("  reads", FindingState.OK if there else FindingState.FAILS, ", ".join(there) or "nothing", data=data)
    for reason, names in none.items():
        denied = "permit" in reason or "blocked" in reason
        to_do = "allow this user or container the device: see Troubleshooting, In a container" if denied else ""
        yield Finding("  not", FindingState.MISSING, f"{', '.join(names)}: {reason}", to_do)
    if part:
        yield Finding(
            "  not all", FindingState.INFO, "; ".join(f"{', '.join(keys)}: {why}" for why, keys in part.items())
        )


def _sensors(device: Device, backend: Driver) -> Iterator[Finding]:
    """Whether the device's sensors are calibrated, and with which result."""
    from datetime import UTC, datetime

    from gpu_profile.catalogue.samples import DeviceKind
    from gpu_profile.regions.session.sensor_priors import kept_calibration
    from gpu_profile.units import NS_PER_S

    if device.kind is DeviceKind.MIG:
        return
    kept = kept_calibration(device, backend.version)
    if kept is None:
        yield Finding(
            "  sensors", FindingState.INFO, "not calibrated for this driver and firmware: gpu-profile calibrate"
        )
        return
    day = datetime.fromtimestamp(kept["made_ns"] / NS_PER_S, UTC).date().isoformat()
    names = ", ".join(key for key, each in kept["signals"].items() if not each["reason"])
    state, to_do = (
        (FindingState.FAILS, "pooled numbers are refused; calibrate again") if kept["missed"] else (FindingState.OK, "")
    )
    yield Finding("  sensors", state, f"calibrated on {day}: {names or 'none'}", to_do, {"calibration": dict(kept)})
