"""The files of alerts, and their text in the runbook. Groups of a file are evaluated side by side."""

from __future__ import annotations

import re
from typing import Final

import device_alerts
import exporter_alerts
import fault_alerts
import region_alerts
from rulefiles import Alert, Group

from gpu_profile.catalogue import METRICS
from gpu_profile.catalogue.metrics import REGION_METRICS

FAULTS: Final = Group("gpu-profile-faults", fault_alerts.ALERTS)

FILES: Final = {"gpu-profile.yaml": (exporter_alerts.GROUP, device_alerts.GROUP, FAULTS, region_alerts.GROUP)}
#: All alerts, in the order of the files.
ALERTS: Final = tuple(
    rule for groups in FILES.values() for group in groups for rule in group.rules if isinstance(rule, Alert)
)
#: The metrics of devices. Other metrics are the same under dcgm-exporter's names.
_OF_DEVICES: Final = {row.prometheus for row in METRICS if "hw.id" in row.labels and row not in REGION_METRICS}


def runbook() -> str:
    """Every alert: its meaning, the first check, the remedy."""
    return "\n\n".join(
        f"### {alert.name}\n\n"
        f"*{alert.severity}*, after {alert.wait}{'' if _fires_under_dcgm(alert) else ', not with `--names dcgm`'}\n\n"
        f"- **Meaning.** {alert.meaning}\n- **First check.** {alert.check}\n- **Remedy.** {alert.remedy}"
        for alert in ALERTS
    )


def _fires_under_dcgm(alert: Alert) -> bool:
    return _OF_DEVICES.isdisjoint(re.findall(r"\w+", alert.expr))
