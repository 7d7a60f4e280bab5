"""Chooses the scheme of names for the setting `--names`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpu_profile.catalogue import Metric
from gpu_profile_exporter.naming.dcgm import DcgmNames
from gpu_profile_exporter.naming.dcgm_fields import DEFAULT_COUNTERS, FieldSelection
from gpu_profile_exporter.naming.semconv import Semconv
from gpu_profile_exporter.naming.series import Naming, Series

#: The values of `--names`.
NAMES: Final = ("semconv", "dcgm", "both")


class Both:
    """Several schemes together: each reading is published under the names of all of them."""

    def __init__(self, *namings: Naming) -> None:
        self._namings = namings

    def series(self, metric: Metric, attributes: Mapping[str, str]) -> Sequence[Series]:
        """The series of the first scheme, then those of the next."""
        return [series for naming in self._namings for series in naming.series(metric, attributes)]

    def about(self, devices: Mapping[str, Mapping[str, str]]) -> None:
        """Pass the devices to each scheme."""
        for naming in self._namings:
            naming.about(devices)


def choose(
    names: str, *, counters: FieldSelection | None = None, hostname: str = "", hostname_label: str = "both"
) -> Naming:
    """The scheme `names`, one of `NAMES`. The other parameters apply to dcgm's names only.

    `counters`: the selection of fields (`dcgm_csv.read_counters`); by default dcgm-exporter's own. `hostname`: this
    node's name; empty for no such label. `hostname_label`: the label's name: Hostname, hostname, both or none.
    """
    if names == "semconv":
        return Semconv()
    alone = names == "dcgm"
    dcgm = DcgmNames(counters=counters or DEFAULT_COUNTERS, hostname=hostname, hostname_label=hostname_label, own=alone)
    return dcgm if alone else Both(Semconv(), dcgm)
