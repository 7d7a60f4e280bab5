"""The series budget of a scrape: ranks series, and selects the ones to leave out.

The rule depends on names only, so that every scrape leaves out the same series. The order is: processes, single links,
allocations, regions and costs of serving, signals of opt-in groups, signals of default groups. Within a rank, the last
in the catalogue go first, then the last by text.

Core series always stay, even if they alone exceed the budget. They belong to no single signal: device information,
health and errors, busy time, XID errors, and the exporter's own metrics. Durations of regions stay too: they are few,
and a histogram without some of its buckets would be wrong.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Final, NamedTuple

from gpu_profile.catalogue import Metric
from gpu_profile.catalogue.group import DEFAULT_GROUPS

#: Series of one scrape, unless the settings say otherwise.
SERIES_BUDGET: Final = 10_000

_REGION: Final = ("gpu_profile.region.", "gpu_profile.serving.")
_LINK: Final = (".link", ".port")
_ALLOCATION: Final = ("k8s.", "container.", "slurm.")


class SeriesPriority(IntEnum):
    """The rank of a series. The highest is left out first."""

    CORE = 0
    DEVICE = 1
    GROUP = 2
    REGION = 3
    ALLOCATION = 4
    LINK = 5
    PROCESS = 6


class Candidate(NamedTuple):
    """The sort key of a series: the smallest stay. `place` is the index of its metric in the catalogue."""

    rank: SeriesPriority
    place: int
    text: bytes


def rank(metric: Metric) -> SeriesPriority:
    """The rank of all series of a metric."""
    if any(label.startswith("process.") or label == "pid" for label in metric.labels):
        return SeriesPriority.PROCESS
    if any(label.endswith(_LINK) for label in metric.labels):
        return SeriesPriority.LINK
    if "allocation" in metric.otel or any(label.startswith(_ALLOCATION) for label in metric.labels):
        return SeriesPriority.ALLOCATION
    if metric.otel.startswith(_REGION) and not metric.part:
        return SeriesPriority.REGION
    if not metric.signals:
        return SeriesPriority.CORE
    return SeriesPriority.DEVICE if any(row.group in DEFAULT_GROUPS for row in metric.signals) else SeriesPriority.GROUP


def left_out(candidates: Collection[Candidate], budget: int) -> set[Candidate]:
    """The candidates beyond the budget, except core series."""
    return {
        candidate for candidate in sorted(candidates)[max(0, budget) :] if candidate.rank is not SeriesPriority.CORE
    }
