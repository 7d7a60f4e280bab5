"""One GPU and one MIG instance as the exporter knows them, and every reading that they can give."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from gpu_profile.catalogue import SIGNALS, Metric, metric_of, signal
from gpu_profile.catalogue import metrics as m
from gpu_profile.catalogue.self_metrics import XID_ERRORS, XID_LAST
from gpu_profile.catalogue.signals import INTEGRATED
from gpu_profile.catalogue.xids import XIDS
from gpu_profile_exporter.naming.dcgm import DcgmNames
from gpu_profile_exporter.naming.series import Naming, Series
from gpu_profile_exporter.naming.sums import totals
from gpu_profile_exporter.readings.readings import MetricReading

DATA = Path(__file__).parents[3] / "data" / "dcgm"
GPU = {
    "hw.id": "GPU-11",
    "hw.name": "NVIDIA H100 80GB HBM3",
    "hw.driver_version": "580.126.09",
    "hw.firmware_version": "96.00.89",
    "pci.bus_id": "00000000:1B:00.0",
    "index": "3",
    "kind": "gpu",
}
MIG = {
    "hw.id": "MIG-22",
    "hw.name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    "hw.parent": "GPU-11",
    "index": "3",
    "kind": "mig",
    "mig.profile": "3g.40gb",
    "mig.instance": "2",
}
IDENTITY = (
    ("gpu", "3"),
    ("UUID", "GPU-11"),
    ("pci_bus_id", "00000000:1B:00.0"),
    ("device", "nvidia3"),
    ("modelName", "NVIDIA H100 80GB HBM3"),
)
TEMPERATURE = metric_of(signal("temperature"))
CORE = {"hw.sensor_location": "core"}


def dcgm(*devices: Mapping[str, str], hostname: str = "node-7", hostname_label: str = "Hostname") -> DcgmNames:
    naming = DcgmNames(hostname=hostname, hostname_label=hostname_label)
    naming.about({device["hw.id"]: device for device in devices or (GPU,)})
    return naming


def nvlink(direction: str, value: float, hw_id: str = "GPU-11") -> MetricReading:
    return MetricReading(metric_of(signal("nvlink_rx")), {"hw.id": hw_id, "network.io.direction": direction}, value)


def every_reading(hw_id: str) -> Iterator[tuple[Metric, Mapping[str, str]]]:
    """Each (metric, attributes) that one device can give."""
    for row in SIGNALS:
        yield metric_of(row), {"hw.id": hw_id, **dict(row.attributes)}
    for metric in (m.MEMORY_LIMIT, m.MEMORY_UTILIZATION, m.BUSY, m.DEVICE_UP, m.SAMPLE_AGE):
        yield metric, {"hw.id": hw_id}
    for row in INTEGRATED:
        for metric in (m.ACTIVITY, m.ACTIVITY_OBSERVED):
            yield metric, {"hw.id": hw_id, m.UNIT: row.key}
    for state in ("ok", "failed"):
        yield m.STATUS, {"hw.id": hw_id, "hw.state": state, "hw.type": "gpu"}
    yield XID_LAST, {"hw.id": hw_id, "nvidia.gpu.xid": "79"}
    for xid in XIDS:
        yield XID_ERRORS, {"hw.id": hw_id, "nvidia.gpu.xid": str(xid.code)}
    parts = [
        MetricReading(metric_of(signal(key)), {"hw.id": hw_id, "network.io.direction": key}, 1.0)
        for key in ("nvlink_rx", "nvlink_tx")
    ]
    yield from ((reading.metric, reading.attributes) for reading in list(totals(parts))[2:])


def everything(naming: Naming, *hw_ids: str) -> list[Series]:
    pairs = (pair for hw_id in hw_ids for pair in every_reading(hw_id))
    return [series for metric, attributes in pairs for series in naming.series(metric, attributes)]
