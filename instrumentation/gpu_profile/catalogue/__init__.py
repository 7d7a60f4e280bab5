"""The tables that everything else derives from: signals, metrics and attributes. One row, every name."""

from gpu_profile.catalogue.attributes import ATTRIBUTES, Attribute
from gpu_profile.catalogue.group import ALL_GROUPS, DEFAULT_GROUPS, GROUPS, LIBRARY_GROUPS, Group
from gpu_profile.catalogue.metric import Instrument, Metric, label
from gpu_profile.catalogue.metrics import METRICS, metric_of
from gpu_profile.catalogue.signal import Attributes, Dcgm, Kind, Signal, Tier
from gpu_profile.catalogue.signals import BUSY_SOURCES, ENERGY_SOURCES, SIGNALS, signal

__all__ = [
    "ALL_GROUPS",
    "ATTRIBUTES",
    "BUSY_SOURCES",
    "DEFAULT_GROUPS",
    "ENERGY_SOURCES",
    "GROUPS",
    "LIBRARY_GROUPS",
    "METRICS",
    "SIGNALS",
    "Attribute",
    "Attributes",
    "Dcgm",
    "Group",
    "Instrument",
    "Kind",
    "Metric",
    "Signal",
    "Tier",
    "label",
    "metric_of",
    "signal",
]
