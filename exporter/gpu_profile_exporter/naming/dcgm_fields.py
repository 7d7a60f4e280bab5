"""The table of dcgm-exporter's fields: its default selection, and the metric that supplies each field here.

Names, types, units and the default selection are those of dcgm-exporter 4.5 (`etc/default-counters.csv`). The counters
of activity and of PCIe bytes are fields 1084 to 1096 of DCGM 4.6 (`dcgm_fields.h`). Fields that DCGM 4.6 renamed have a
source under both names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gpu_profile.catalogue import METRICS, SIGNALS, Signal
from gpu_profile.catalogue import self_metrics as m
from gpu_profile.catalogue.families import RECEIVED, SENT
from gpu_profile.catalogue.group import Group
from gpu_profile.catalogue.metrics import ACTIVITY, ACTIVITY_OBSERVED, UNIT
from gpu_profile.units import MIB, NS_PER_S
from gpu_profile_exporter.naming.dcgm_renamed import BASE_UNITS, RENAMED


class Field(NamedTuple):
    """A metric with dcgm-exporter's name. `kind` is a Prometheus type: counter or gauge."""

    name: str
    kind: str
    help: str


class FieldSource(NamedTuple):
    """The source of a field: a metric of the catalogue, fixed attributes, and the factor to the field's unit."""

    otel: str
    attributes: tuple[tuple[str, str], ...]
    scale: float


#: The fields that dcgm-exporter publishes by default, in its order.
DEFAULT_FIELDS: Final = (
    Field("DCGM_FI_DEV_SM_CLOCK", "gauge", "Clock of the streaming multiprocessors, in MHz"),
    Field("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Clock of the device memory, in MHz"),
    Field("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Temperature of the device memory, in degrees Celsius"),
    Field("DCGM_FI_DEV_GPU_TEMP", "gauge", "Temperature of the GPU core, in degrees Celsius"),
    Field("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw averaged over the last second, in W"),
    Field("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since the driver was loaded, in mJ"),
    Field("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe packets that had to be sent again"),
    Field("DCGM_FI_DEV_GPU_UTIL", "gauge", "Share of the sample period in which a kernel ran, in %"),
    Field("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Share of the sample period in which memory was accessed, in %"),
    Field("DCGM_FI_DEV_ENC_UTIL", "gauge", "Share of the sample period in which the encoder was busy, in %"),
    Field("DCGM_FI_DEV_DEC_UTIL", "gauge", "Share of the sample period in which the decoder was busy, in %"),
    Field("DCGM_FI_DEV_XID_ERRORS", "gauge", "Code of the last XID error, 0 before the first"),
    Field("DCGM_FI_DEV_FB_FREE", "gauge", "Free device memory, in MiB"),
    Field("DCGM_FI_DEV_FB_USED", "gauge", "Used device memory, in MiB"),
    Field("DCGM_FI_DEV_FB_RESERVED", "gauge", "Device memory that the driver and firmware keep, in MiB"),
    Field(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "counter",
        "Payload that crossed all NVLinks in both directions, in MB: rate() of it is MB/s",
    ),
    Field("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge", "1 if the virtual GPU has a licence, else 0"),
    Field("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped after uncorrectable errors"),
    Field("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped after correctable errors"),
    Field("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "1 if the remapping of a row has failed, else 0"),
    Field("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Share of time in which compute or graphics work ran, 0-1"),
    Field("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Share of cycles in which a tensor pipe was active, 0-1"),
    Field("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Share of the peak memory bandwidth in use, 0-1"),
    Field("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "Bytes per second that the GPU sent over PCIe"),
    Field("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "Bytes per second that the GPU received over PCIe"),
)

#: Published in addition, because gauges miss everything between two scrapes. Comments in dcgm-exporter's default file.
CUMULATIVE_FIELDS: Final = (
    Field("DCGM_FI_PROF_SM_CYCLES_ELAPSED_TOTAL", "counter", "Time for which SM activity was measured, in ns"),
    Field("DCGM_FI_PROF_SM_CYCLES_ACTIVE_TOTAL", "counter", "SM activity times the time of measurement, in ns"),
    Field("DCGM_FI_PROF_MMA_CYCLES_ACTIVE_TOTAL", "counter", "Tensor activity times the time of measurement, in ns"),
)

DRIVER_VERSION: Final = "DCGM_FI_DRIVER_VERSION"

_LABELS: Final = {
    DRIVER_VERSION: "hw.driver_version",
    "DCGM_FI_DEV_UUID": "hw.id",
    "DCGM_FI_DEV_PCI_BUSID": "pci.bus_id",
    "DCGM_FI_DEV_VBIOS_VERSION": "hw.firmware_version",
    "DCGM_FI_DEV_NAME": "hw.name",
}
#: Fields that become a label of every series, and the device attribute that supplies its value.
LABEL_FIELDS: Final = _LABELS | {RENAMED[name]: source for name, source in _LABELS.items() if name in RENAMED}


class FieldSelection(NamedTuple):
    """A selection of fields: metrics, labels, and a warning for each line of the file that was skipped."""

    fields: tuple[Field, ...]
    labels: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


DEFAULT_COUNTERS: Final = FieldSelection((*DEFAULT_FIELDS, *CUMULATIVE_FIELDS), (DRIVER_VERSION,))


def default_counters(release: str) -> FieldSelection:
    """The default selection under the names of a release of DCGM: 4.5, 4.6, or both."""

    def names(name: str) -> Iterable[str]:
        newer = RENAMED.get(name, name)
        return dict.fromkeys({"4.5": (name,), "4.6": (newer,)}.get(release, (name, newer)))

    fields = (field._replace(name=name) for field in DEFAULT_COUNTERS.fields for name in names(field.name))
    return FieldSelection(tuple(fields), tuple(name for label in DEFAULT_COUNTERS.labels for name in names(label)))


#: The last XID's code is both its value and an attribute. The counter has one series per code.
XID_LAST: Final = m.XID_LAST.otel
XID_ERRORS: Final = m.XID_ERRORS.otel
#: Not in the catalogue: `sums.totals` adds the two directions up.
NVLINK_TOTAL: Final = "nvidia.gpu.nvlink.total"
NVLINK_PARTS: Final = "nvidia.gpu.nvlink.io"

#: Fields with a source other than a signal.
_DERIVED: Final = {
    "DCGM_FI_DEV_FB_TOTAL": FieldSource("hw.gpu.memory.limit", (), 1 / MIB),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": FieldSource("nvidia.gpu.throttle.reasons", (), 1.0),
    "DCGM_FI_DEV_XID_ERRORS": FieldSource(XID_LAST, (), 1.0),
    "DCGM_EXP_XID_ERRORS_COUNT": FieldSource(XID_ERRORS, (), 1.0),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": FieldSource(NVLINK_TOTAL, (), 1e-6),
    "DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL": FieldSource("hw.gpu.io", SENT, 1.0),
    "DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL": FieldSource("hw.gpu.io", RECEIVED, 1.0),
    "DCGM_FI_PROF_SM_CYCLES_ELAPSED_TOTAL": FieldSource(ACTIVITY_OBSERVED.otel, ((UNIT, "sm"),), NS_PER_S),
}
#: DCGM's word for each unit in the names of its cycle counters.
_CYCLES: Final = {
    "sm": "SM",
    "tensor": "MMA",
    "tensor_dmma": "DMMA",
    "tensor_hmma": "HMMA",
    "tensor_imma": "IMMA",
    "tensor_dfma": "DFMA",
    "integer": "INT",
    "fp64": "FP64",
    "fp32": "FP32",
    "fp16": "FP16",
}


def _sources() -> Iterator[tuple[str, FieldSource]]:
    yield from _DERIVED.items()
    for unit, name in _CYCLES.items():
        yield f"DCGM_FI_PROF_{name}_CYCLES_ACTIVE_TOTAL", FieldSource(ACTIVITY.otel, ((UNIT, unit),), NS_PER_S)
    for row in SIGNALS:
        if row.dcgm is not None:
            yield row.dcgm.name, FieldSource(row.otel, row.attributes, row.dcgm.scale)


def _renamed(older: Mapping[str, FieldSource]) -> Iterator[tuple[str, FieldSource]]:
    for name, source in older.items():
        if name in RENAMED:
            yield RENAMED[name], source
    for name, other in BASE_UNITS.items():
        yield name, older[other]._replace(scale=1.0)


_PUBLISHED: Final = frozenset(row.otel for row in (*METRICS, *m.SELF_METRICS))
_OLDER: Final = dict(_sources())
#: The source of each field.
SOURCES: Final[Mapping[str, FieldSource]] = _OLDER | dict(_renamed(_OLDER))


def measured(field: str) -> bool:
    """True if the field has a source and the catalogue contains its metric."""
    source = SOURCES.get(field)
    return source is not None and _parts(source.otel) in _PUBLISHED


def groups(counters: FieldSelection) -> frozenset[Group]:
    """The groups of signals that these fields require."""
    wanted = [source for field in counters.fields if (source := SOURCES.get(field.name)) is not None]
    return frozenset(row.group for row in SIGNALS for source in wanted if _needs(source, row))


def _needs(source: FieldSource, row: Signal) -> bool:
    """True if a field with this source requires the signal."""
    if source.otel in (ACTIVITY.otel, ACTIVITY_OBSERVED.otel):
        return (UNIT, row.key) in source.attributes
    return row.otel == _parts(source.otel) and set(source.attributes) <= set(row.attributes)


def _parts(otel: str) -> str:
    return NVLINK_PARTS if otel == NVLINK_TOTAL else otel
