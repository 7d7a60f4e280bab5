"""The dashboard of a GPU: what limits it, what it costs, which regions of which programs it works for."""

from __future__ import annotations

from typing import Final

import board
import devices
import incident
from links import TO_REGION
from panels import BARS, Column, Panel, Query, Section
from queries import KEYS, REGION_NAME, by, increase, increase_from_first, of_gpus, physical, rate, series

from gpu_profile.catalogue.metric import Metric
from gpu_profile.catalogue.metrics import BUSY, REGION_BUSY, REGION_BUSY_UNCERTAIN, REGION_ENERGY
from gpu_profile.catalogue.self_metrics import XID_ANY, XID_ERRORS


def _here(metric: Metric) -> str:
    return series(metric, scope='cluster=~"$cluster", hw_id=~"$gpu"')


_TIME, _UNCERTAIN = (by(KEYS, rate(_here(metric))) for metric in (REGION_BUSY, REGION_BUSY_UNCERTAIN))
_OF_RANGE: Final = by(KEYS, increase(_here(REGION_BUSY)))

WORK: Final = Section(
    "What it does",
    (
        devices.utilisation(of_gpus),
        devices.activity(of_gpus),
        devices.memory(of_gpus),
        devices.clocks(of_gpus),
        devices.pcie(of_gpus),
        devices.nvlink(of_gpus),
    ),
)

REGIONS: Final = Section(
    "For whom",
    (
        Panel(
            title="GPU time by region",
            shows="GPU time that each region of a program keeps busy, and the busy time outside them.",
            conclude="The widest band is the code to look at. “outside” is work of programs without regions.",
            do="Click the region in the table beside for its cost and its regime.",
            empty="No program with regions works on this GPU: docs/quickstart.md",
            unit="percentunit",
            queries=(
                Query(_TIME, REGION_NAME),
                Query(f"{_UNCERTAIN} > 0", f"{REGION_NAME}, uncertain"),
                Query(
                    f"clamp_min(sum({physical(rate(of_gpus(BUSY)))}) - sum({_TIME}) - sum({_UNCERTAIN}), 0)",
                    "outside regions",
                ),
            ),
            stacked=True,
            maximum=1,
        ),
        Panel(
            title="Regions on this GPU",
            shows="GPU time and energy of each region in this range, as far as they are certain.",
            conclude="The first rows pay for an optimisation first.",
            do="Click a region.",
            empty="No program with regions works on this GPU: docs/quickstart.md",
            queries=(Query(_OF_RANGE, ""), Query(by(KEYS, increase(_here(REGION_ENERGY))), "")),
            kind="table",
            sort="GPU time",
            columns=(
                Column("region", "Region", link=TO_REGION),
                Column("namespace", "Namespace"),
                Column("job", "Job"),
                Column("service_name", "Service"),
                Column("version", "Version"),
                Column("Value #A", "GPU time", "s"),
                Column("Value #B", "Energy", "joule"),
            ),
        ),
        devices.holders(of_gpus),
    ),
)

COST: Final = Section(
    "What it costs",
    (devices.power(of_gpus), devices.busy_second(of_gpus), devices.temperature(of_gpus), devices.throttling(of_gpus)),
)

FAULTS: Final = Section(
    "Faults and wear",
    (
        devices.faults(of_gpus),
        Panel(
            title="XID errors by code",
            shows="Errors that the driver reported in this time range; a code without errors has no bar.",
            conclude="13, 31, 43 and 45 are most often defects of a program; 48, 79, 94, 95, 119 and 120 concern the "
            "GPU.",
            do="For a program's defect, run it under compute-sanitizer; for the GPU, drain and reset it.",
            empty="This GPU does not report XID errors",
            queries=(
                Query(f"sum({increase(of_gpus(XID_ANY))})", "all codes"),
                Query(by(incident.XID, increase_from_first(of_gpus(XID_ERRORS))), f"XID {{{{{incident.XID}}}}}"),
            ),
            **BARS | {"thresholds": ((None, "green"), (0.5, "red"))},
        ),
        devices.link_width(of_gpus),
    ),
)

BOARD: Final = board.Board(
    "gpu",
    "one GPU",
    "What limits a GPU, what it costs, and which regions of which programs it works for.",
    (*board.nodes(many=False), board.gpus(many=False)),
    (incident.section(of_gpus), WORK, REGIONS, COST, FAULTS),
    (board.xids(),),
)
