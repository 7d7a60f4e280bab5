"""dcgm-exporter's names, labels and units, so that its dashboards and alerts work unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpu_profile.catalogue import Metric, label
from gpu_profile_exporter.naming.dcgm_fields import (
    DEFAULT_COUNTERS,
    LABEL_FIELDS,
    SOURCES,
    XID_ERRORS,
    XID_LAST,
    Field,
    FieldSelection,
    FieldSource,
)
from gpu_profile_exporter.naming.semconv import Semconv
from gpu_profile_exporter.naming.series import Series, TextFamily
from gpu_profile_exporter.naming.xid import meaning

#: dcgm-exporter called the label `Hostname` until May 2026 and `hostname` since; `both` serves old and new queries.
HOSTNAME_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "Hostname": ("Hostname",),
    "hostname": ("hostname",),
    "both": ("Hostname", "hostname"),
    "none": (),
}

#: Opt-in labels that dcgm-exporter has too, under its own names.
ALLOCATION_LABELS: Final = {
    "k8s.container.name": "container",
    "k8s.namespace.name": "namespace",
    "k8s.pod.name": "pod",
    "k8s.pod.uid": "pod_uid",
    "slurm.job.id": "hpc_job",
}
#: Attributes that identify the device of a reading. A metric's other attributes select one of its series.
_DEVICE: Final = frozenset({"hw.id", "hw.type"})
_PROFILE: Final = re.compile(r"MIG ([0-9a-z.+-]+)$")

Labels = tuple[tuple[str, str], ...]
#: A metric's name and the attributes that distinguish its series.
_Key = tuple[str, frozenset[tuple[str, str]]]


class DcgmNames:
    """The series of the fields that `counters` selects.

    A device has no series until `about` has received its identity. A MIG instance has its parent's labels, and its own
    profile and GPU instance. Without a GPU instance it has no series, because its labels would equal those of its
    siblings. An empty `hostname` omits that label. With `own`, the exporter's metrics about itself, which have no
    device and no dcgm name, keep their own names.
    """

    def __init__(
        self,
        *,
        counters: FieldSelection = DEFAULT_COUNTERS,
        hostname: str = "",
        hostname_label: str = "both",
        own: bool = True,
    ) -> None:
        self._fields = _by_key(counters.fields)
        self._label_fields = [(name, LABEL_FIELDS[name]) for name in sorted(counters.labels)]
        self._host = tuple((name, hostname) for name in HOSTNAME_LABELS[hostname_label]) if hostname else ()
        self._own = Semconv() if own else None
        self._labels: Mapping[str, tuple[Labels, Labels]] = {}

    def about(self, devices: Mapping[str, Mapping[str, str]]) -> None:
        """Replace the identities of all devices, by `hw.id`."""
        self._labels = {
            hw_id: labels for hw_id, device in devices.items() if (labels := self._identity(hw_id, device, devices))
        }

    def series(self, metric: Metric, attributes: Mapping[str, str]) -> Sequence[Series]:
        """One series for each selected field with this reading as its source. Empty if there is none."""
        if "hw.id" not in metric.labels:
            ours = metric.otel.startswith("gpu_profile.")
            return self._own.series(metric, attributes) if self._own is not None and ours else ()
        identity = self._labels.get(attributes.get("hw.id", ""))
        fields = self._fields.get(_key(metric, attributes))
        if identity is None or not fields:
            return ()
        before, after = identity
        labels = dict((*before, *self._host, *after))
        for name, value in sorted((*_xid_labels(metric, attributes), *_extra_labels(metric, attributes))):
            labels.setdefault(name, value)
        pairs = tuple(labels.items())
        return [
            Series(TextFamily(field.name, field.kind, field.help, ""), pairs, source.scale) for field, source in fields
        ]

    def _identity(
        self, hw_id: str, device: Mapping[str, str], devices: Mapping[str, Mapping[str, str]]
    ) -> tuple[Labels, Labels] | None:
        """A device's labels before and after the host's name. None for a MIG instance without parent or instance."""
        parent, slice_labels = device.get("hw.parent", ""), []
        if parent:
            instance, gpu = device.get("mig.instance", ""), devices.get(parent)
            if gpu is None or not instance:
                return None
            slice_labels = [("GPU_I_PROFILE", _profile(device)), ("GPU_I_ID", instance)]
            hw_id, device = parent, gpu
        index = device.get("index", "")
        before = (
            ("gpu", index),
            ("UUID", hw_id),
            ("pci_bus_id", device.get("pci.bus_id", "")),
            ("device", f"nvidia{index}" if index else ""),
            ("modelName", device.get("hw.name", "")),
            *slice_labels,
        )
        after = ((name, device.get(attribute, "")) for name, attribute in self._label_fields)
        return _non_empty(before), _non_empty(after)


def _by_key(fields: Iterable[Field]) -> Mapping[_Key, list[tuple[Field, FieldSource]]]:
    wanted: dict[_Key, list[tuple[Field, FieldSource]]] = {}
    for field in fields:
        if (source := SOURCES.get(field.name)) is not None:
            selectors = frozenset(pair for pair in source.attributes if pair[0] not in _DEVICE)
            wanted.setdefault((source.otel, selectors), []).append((field, source))
    return wanted


def _key(metric: Metric, attributes: Mapping[str, str]) -> _Key:
    if metric.otel in (XID_LAST, XID_ERRORS):
        return metric.otel, frozenset()
    selectors = (name for name in metric.labels if name not in _DEVICE and name in attributes)
    return metric.otel, frozenset((name, attributes[name]) for name in selectors)


def _xid_labels(metric: Metric, attributes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """`xid` for the counter of XID errors, `err_code` and `err_msg` for the last one."""
    if metric.otel in (XID_LAST, XID_ERRORS):
        code = next((attributes[name] for name in metric.labels if name not in _DEVICE and name in attributes), "0")
        if metric.otel == XID_ERRORS:
            yield "xid", code
        else:
            yield from (("err_code", code), ("err_msg", meaning(code)))


def _extra_labels(metric: Metric, attributes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Labels of a reading beyond its metric's own, such as its allocation."""
    for name, value in attributes.items():
        if value and name not in metric.labels and name not in _DEVICE:
            yield ALLOCATION_LABELS.get(name, label(name)), value


def _profile(device: Mapping[str, str]) -> str:
    """A MIG instance's profile, such as `3g.40gb`. NVML's name of the instance ends with it."""
    if profile := device.get("mig.profile", ""):
        return profile
    match = _PROFILE.search(device.get("hw.name", ""))
    return match[1] if match else ""


def _non_empty(labels: Iterable[tuple[str, str]]) -> Labels:
    return tuple((name, value) for name, value in labels if value)
