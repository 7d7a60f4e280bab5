"""The files of alerts. Groups of a file are evaluated side by side."""

from __future__ import annotations

from typing import Final

import device_alerts
import exporter_alerts
import fault_alerts
import region_alerts
from rulefiles import Alert, Group

FAULTS: Final = Group("gpu-profile-faults", fault_alerts.ALERTS)

FILES: Final = {"gpu-profile.yaml": (exporter_alerts.GROUP, device_alerts.GROUP, FAULTS, region_alerts.GROUP)}
#: All alerts, in the order of the files.
ALERTS: Final = tuple(
    rule for groups in FILES.values() for group in groups for rule in group.rules if isinstance(rule, Alert)
)
