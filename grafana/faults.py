"""The part of the dashboard that tells what goes wrong: errors, worn memory, narrow links, throttling."""

from __future__ import annotations

from typing import Final

from panels import BARS, Column, Query, Section, panel
from queries import GPU_NAME, by, increase, increase_from_first, named, of_gpus, throttled

from gpu_profile.catalogue import metric_of, signal
from gpu_profile.catalogue.links import NVLINK_ERRORS
from gpu_profile.catalogue.memory import REMAPPED_ROWS
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.metrics import DEVICE_INFO
from gpu_profile.catalogue.self_metrics import XID_ANY, XID_ERRORS
from gpu_profile.catalogue.signals import (
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    PCIE_REPLAYS,
    RECOVERY_ACTION,
    REMAP_FAILURE,
    REMAP_PENDING,
)

_XID: Final = label("nvidia.gpu.xid")
_REASON: Final = label("nvidia.gpu.throttle.reason")
_CORRECTED, _UNCORRECTED = (
    increase(of_gpus(metric_of(row), dict(row.attributes))) for row in (ECC_CORRECTED, ECC_UNCORRECTED)
)
_WIDTH, _WIDTH_MAX = (of_gpus(metric_of(signal(key))) for key in ("pcie_link_width", "pcie_link_width_max"))

FAULTS: Final = Section(
    "What goes wrong",
    (
        panel(
            "Faults by GPU",
            "What happened in this time range, and, in the last three columns, how it is now. Rows are "
            "remapped when memory wears out; one that waits needs a reset, one that failed a new GPU. Action is what "
            "the driver asks for: 0 is nothing, 1 a reset. An empty cell: the GPU does not report it.",
            "none",
            Query(by("hw_id, index, instance", of_gpus(DEVICE_INFO, {"kind": "gpu"}), "max"), GPU_NAME),
            Query(by("hw_id", increase(of_gpus(XID_ANY))), "XID errors {{hw_id}}"),
            Query(by("hw_id", _UNCORRECTED), "uncorrected {{hw_id}}"),
            Query(by("hw_id", _CORRECTED), "corrected {{hw_id}}"),
            Query(by("hw_id", increase(of_gpus(metric_of(REMAPPED_ROWS[0])))), "rows remapped {{hw_id}}"),
            Query(by("hw_id", increase(of_gpus(metric_of(PCIE_REPLAYS)))), "PCIe replays {{hw_id}}"),
            Query(by("hw_id", increase(of_gpus(metric_of(NVLINK_ERRORS[0])))), "NVLink errors {{hw_id}}"),
            Query(by("hw_id", of_gpus(metric_of(REMAP_PENDING)), "max"), "remap waits {{hw_id}}"),
            Query(by("hw_id", of_gpus(metric_of(REMAP_FAILURE)), "max"), "remap failed {{hw_id}}"),
            Query(by("hw_id", of_gpus(metric_of(RECOVERY_ACTION)), "max"), "action {{hw_id}}"),
            kind="table",
            width=16,
            height=8,
            columns=(
                Column("instance", "Node"),
                Column("index", "GPU"),
                Column("Value #B", "XID errors"),
                Column("Value #C", "Uncorrected"),
                Column("Value #D", "Corrected"),
                Column("Value #E", "Rows remapped"),
                Column("Value #F", "PCIe replays"),
                Column("Value #G", "NVLink errors"),
                Column("Value #H", "Remap waits"),
                Column("Value #I", "Remap failed"),
                Column("Value #J", "Action"),
            ),
        ),
        panel(
            "XID errors by code",
            "Errors that the driver reported in this time range, over all chosen GPUs; a code that never came has no "
            "bar. 13, 31, 43 and 45 are most often defects of a program; 48, 79, 94, 95, 119 and 120 concern the GPU.",
            "none",
            Query(f"sum({increase(of_gpus(XID_ANY))})", "all codes"),
            Query(by(_XID, increase_from_first(of_gpus(XID_ERRORS))), f"XID {{{{{_XID}}}}}"),
            kind="bargauge",
            width=8,
            height=8,
            thresholds=((None, "green"), (0.5, "red")),
        ),
        panel(
            "Throttle time",
            "Seconds in this time range, added up over the chosen GPUs, by reason. sw_power_cap is normal "
            "under full load; heat and power brakes are not. Reasons overlap.",
            "s",
            Query(by(_REASON, throttled(increase)), f"{{{{{_REASON}}}}}"),
            **BARS,
        ),
        panel(
            "Width of the PCIe links",
            "Lanes in use, as a share of those that GPU and slot both have. Less than 100 % on a busy GPU "
            "means a bad contact or a riser that is not as wide; transfers are slower by as much.",
            "percentunit",
            Query(named(f"({_WIDTH} / {_WIDTH_MAX})"), GPU_NAME),
            legend="right",
            maximum=1,
        ),
    ),
)

SECTIONS: Final = (FAULTS,)
