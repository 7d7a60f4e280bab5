"""The recording rules: what dashboards of many nodes and long ranges would otherwise compute over and over."""

from __future__ import annotations

from typing import Final

from queries import by, known, physical, rate, series
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

#: Regions of received spans have a service; those that a program counts itself do not.
_KEYS = "job, service_name, region"
_CALLS = by(_KEYS, rate(series(REGION_DURATION, part="_count"), "5m"))


def _units(metric: Metric) -> str:
    return by("instance, hw_id, nvidia_gpu_unit", rate(series(metric), "5m"), "max")


def _base(metric: Metric) -> str:
    return metric.prometheus.removesuffix("_total")


def _for_each_call(certain: Metric, uncertain: Metric) -> str:
    share, rest = (by(_KEYS, rate(series(metric), "5m")) for metric in (certain, uncertain))
    return known(f"{share}\n  /\n({_CALLS} > 0)", share, rest)


DEVICES: Final = Group(
    "gpu-profile-devices",
    (
        Recording(
            f"instance_hw_id:{_base(BUSY)}:rate5m",
            by("instance, hw_id", rate(series(BUSY), "5m"), "max"),
            "Utilisation of each device: share of the last five minutes in which at least one kernel ran.",
        ),
        Recording(
            f"instance:{_base(BUSY)}:avg_rate5m",
            by("instance", physical(rate(series(BUSY), "5m")), "avg"),
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

FILES: Final = {"gpu-profile.yaml": (DEVICES, REGIONS)}
