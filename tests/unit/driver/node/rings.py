"""Files of a node's timeline in a folder, for tests."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, Event
from gpu_profile.driver.node.table import NodeDevice, TimelineTable, pid_namespace, replace
from gpu_profile.driver.node.writer import RingOptions, RingWriter

PERIODS_NS: Mapping[Tier, int] = {
    Tier.FAST: 100_000_000,
    Tier.GPM: 250_000_000,
    Tier.SLOW: 1_000_000_000,
    Tier.RARE: 10_000_000_000,
}
GPU = Device("GPU-a", index=0, name="NVIDIA H100", minor=0)
OTHER = Device("GPU-b", index=1, name="NVIDIA H100", minor=1)
MIG = Device("MIG-a", parent="GPU-a", minor=None)


def making(directory: Path, retention_s: float = 600.0, counters_s: float = 0.0) -> RingOptions:
    """Files as an exporter makes them that reads ten times a second, slow counters at most every `counters_s`."""
    return RingOptions(directory, PERIODS_NS, int(retention_s * 1e9), int(counters_s * 1e9))


def writer(
    directory: Path, signals: Iterable[Signal], *,
    device: Device = GPU, now_ns: int = 1, retention_s: float = 600.0, counters_s: float = 0.0,
) -> RingWriter:  # fmt: skip
    """A file for a device."""
    return RingWriter(making(directory, retention_s, counters_s), device.uuid, signals, now_ns)


def table(*devices: NodeDevice, problem: str = "", ended: bool = False, events: Iterable[Event] = ()) -> TimelineTable:
    """A table of devices that NVML reads."""
    return TimelineTable(0.1, 600.0, "nvml", "580.1", problem, ended, pid_namespace(), devices, tuple(events))


def listed(device: Device, *files: str, up: bool = True, reason: str = "") -> NodeDevice:
    """A device in a table."""
    return NodeDevice(device, up, reason, files, {"tensor": "needs Hopper"})


def put(directory: Path, found: TimelineTable, now_ns: int) -> None:
    """Put a table in its place."""
    replace(directory, found, now_ns, mode=0o644, group=None)
