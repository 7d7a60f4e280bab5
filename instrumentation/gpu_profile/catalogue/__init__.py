"""What can be measured and what it is called, as tables that everything else derives from; and the values that flow.

Read in this order:

- `samples`: devices, samples and events, the values that pass from driver to report. `event_text`, `xids`: their words.
- `signal` and `group` say what a row has; `signals` is the table, of the families `activity`, `board`, `memory` and
  `links`. `families` is what many of their rows share.
- `metric` and `metrics`: what is published under which names. Beside the signals' metrics stand those of `allocation`
  (who holds a device), `push`, `receive`, `http` and `self_metrics` (the exporter itself).
- `attributes`: what regions carry on their spans. `events`: log records.

Imports the units alone, and knows no clock, driver or wire. A new signal is a row in its family; it then has a metric,
its names for Prometheus, OTLP and dcgm-exporter, a column in recordings and a line in the docs' tables, and needs a
reader in `driver.nvml.readers`. A new metric or attribute is a row in its table.
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
