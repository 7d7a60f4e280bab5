"""The recording rules: what dashboards of many nodes and long ranges would otherwise compute over and over."""

from __future__ import annotations

from typing import Final

import costs
from queries import ANY_VERSION, Once, by, known, physical, rate, series
from rulefiles import Group, Recording

from gpu_profile.catalogue.metric import Metric
from gpu_profile.catalogue.metrics import (
    ACTIVITY,
    ACTIVITY_OBSERVED,
    BUSY,
    REGION_BUSY,
    REGION_BUSY_UNCERTAIN,
    REGION_DURATION,
    REGION_ENERGY,
    REGION_ENERGY_UNCERTAIN,
)

_CALLS = by(ANY_VERSION, rate(series(REGION_DURATION, part="_count"), "5m"))


def _once(metric: Metric, keys: str = "instance, hw_id") -> str:
    """Growth of each device's counter, however many jobs scrape it, and under whichever other labels it goes on."""
    return Once(series(metric), keys).once(rate(series(metric), "5m"))


def _units(metric: Metric) -> str:
    return _once(metric, "instance, hw_id, nvidia_gpu_unit")


def _base(metric: Metric) -> str:
    return metric.prometheus.removesuffix("_total")


def _for_each_call(certain: Metric, uncertain: Metric) -> str:
    share, rest = (by(ANY_VERSION, rate(series(metric), "5m")) for metric in (certain, uncertain))
    return known(f"{share}\n  /\n({_CALLS} > 0)", share, rest)


DEVICES: Final = Group(
    "gpu-profile-devices",
    (
        Recording(
            f"instance_hw_id:{_base(BUSY)}:rate5m",
            _once(BUSY),
            "Utilisation of each device: share of the last five minutes in which at least one kernel ran.",
        ),
        Recording(
            f"instance:{_base(BUSY)}:avg_rate5m",
            by("instance", physical(_once(BUSY)), "avg"),
            "Mean utilisation of a node's GPUs (MIG instances are parts of them) over the last five minutes.",
        ),
        Recording(
            f"instance_hw_id_unit:{_base(ACTIVITY)}:ratio_rate5m",
            f"{_units(ACTIVITY)}\n  /\n({_units(ACTIVITY_OBSERVED)} > 0)",
            "Activity of each unit of a device (SMs, tensor cores, memory): mean of the last five minutes, as far as "
            "it was measured.",
        ),
    ),
)

REGIONS: Final = Group(
    "gpu-profile-regions",
    (
        Recording(
            f"job_region:{_base(REGION_ENERGY)}:per_call_rate5m",
            _for_each_call(REGION_ENERGY, REGION_ENERGY_UNCERTAIN),
            "Joules for a call of each region, over the last five minutes. Absent where there was no call, or where "
            "more than a twentieth of them is uncertain.",
        ),
        Recording(
            f"job_region:{_base(REGION_BUSY)}:per_call_rate5m",
            _for_each_call(REGION_BUSY, REGION_BUSY_UNCERTAIN),
            "GPU-busy seconds for a call of each region, over the last five minutes. Absent where there was no call, "
            "or where more than a twentieth of them is uncertain.",
        ),
    ),
)

FILES: Final = {
    "gpu-profile.yaml": (DEVICES, REGIONS),
    "gpu-profile-costs.yaml": (costs.RULES,),
    "gpu-profile-prices.yaml": (costs.INPUTS,),
}
