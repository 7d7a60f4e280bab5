"""The tables of signals, metrics and span attributes, with names and units, and the values that samplers pass on.

Read in this order:

- `samples`: devices, samples and events, the values from driver to report. `event_text`, `xids`: the texts of events.
- `signal` and `group` define a row. `signals` is the table, of the families `activity`, `board`, `memory` and `links`.
  `families` has the parts that many rows share.
- `metric` and `metrics`: the published metrics and their names. Besides the signals' metrics there are those of
  `allocation` (pods, jobs and processes on a device), `push`, `receive`, `http`, `self_metrics` (the exporter) and
  `serving` (the costs of LLM serving, with the attributes of requests' spans).
- `attributes`: the attributes of regions' spans. `events`: log records.

Imports the units alone; no clock, driver or wire. To add a signal, add a row to its family and a reader to
`driver.nvml.readers`. Its metric, its names for Prometheus, OTLP and dcgm-exporter, its column in recordings and its
line in the docs' tables follow. To add a metric or an attribute, add a row to its table.
"""

from gpu_profile.catalogue.attributes import ATTRIBUTES, Attribute
from gpu_profile.catalogue.group import ALL_GROUPS, DEFAULT_GROUPS, GROUPS, LIBRARY_GROUPS, Group
from gpu_profile.catalogue.metric import Instrument, Metric, label
from gpu_profile.catalogue.metrics import METRICS, metric_of
from gpu_profile.catalogue.signal import Attributes, Dcgm, Kind, Signal, Tier
from gpu_profile.catalogue.signals import BUSY_SOURCES, ENERGY_SOURCES, POWER_SOURCES, SIGNALS, signal

__all__ = [
    "ALL_GROUPS",
    "ATTRIBUTES",
    "BUSY_SOURCES",
    "DEFAULT_GROUPS",
    "ENERGY_SOURCES",
    "GROUPS",
    "LIBRARY_GROUPS",
    "METRICS",
    "POWER_SOURCES",
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
