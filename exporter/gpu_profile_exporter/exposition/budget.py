"""How many series a scrape may have, and which go first when there are more.

The rule knows nothing but names, so that the same series are left out at every scrape. Processes go first, then single
links, allocations, regions, signals of groups that were asked for, and last those of the groups that are there by
default. Within one of these ranks the series that come first in the catalogue, and then by their text, stay. Series of
the core always stay, even if they alone are more than the budget: what comes of no single signal, such as what devices
there are, how they are and whether they answer, busy time, XID errors, and what the exporter says of itself. So do
durations of regions, which are few: a histogram that lacks some of its buckets would say something else.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Final, NamedTuple

from gpu_profile.catalogue import Metric
from gpu_profile.catalogue.group import DEFAULT_GROUPS

#: Series of one scrape, unless the settings say otherwise.
SERIES_BUDGET: Final = 10_000

_REGION: Final = "gpu_profile.region."
_LINK: Final = (".link", ".port")
_ALLOCATION: Final = ("k8s.", "container.", "slurm.")


class SeriesPriority(IntEnum):
    """What a series is about; the highest is left out first."""

    CORE = 0
    DEVICE = 1
    GROUP = 2
    REGION = 3
    ALLOCATION = 4
    LINK = 5
    PROCESS = 6


class Candidate(NamedTuple):
    """A series as the rule sees it: candidates sort by who stays. `place` is its metric's in the catalogue."""

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
    """Those that are too many."""
    return {
        candidate for candidate in sorted(candidates)[max(0, budget) :] if candidate.rank is not SeriesPriority.CORE
    }
