"""The schemes of names that there are, and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpu_profile.catalogue import Metric
from gpu_profile_exporter.naming.dcgm import DcgmNames
from gpu_profile_exporter.naming.dcgm_fields import DEFAULT_COUNTERS, FieldSelection
from gpu_profile_exporter.naming.semconv import Semconv
from gpu_profile_exporter.naming.series import Naming, Series

#: The schemes of names, as `--names` knows them.
NAMES: Final = ("semconv", "dcgm", "both")


class Both:
    """Two schemes side by side: every reading under each name that either has for it."""

    def __init__(self, *namings: Naming) -> None:
        self._namings = namings

    def series(self, metric: Metric, attributes: Mapping[str, str]) -> Sequence[Series]:
        """The schemes' series, one scheme after the other."""
        return [series for naming in self._namings for series in naming.series(metric, attributes)]

    def about(self, devices: Mapping[str, Mapping[str, str]]) -> None:
        """Tell each scheme."""
        for naming in self._namings:
            naming.about(devices)


def choose(
    names: str, *, counters: FieldSelection | None = None, hostname: str = "", hostname_label: str = "both"
) -> Naming:
    """The scheme called `names`, one of `NAMES`. The rest is for dcgm's names.

    `counters` is the selection of fields (`dcgm_csv.read_counters`; by default dcgm-exporter's own), `hostname` this
    node's name (empty: no such label), `hostname_label` what the label is called: Hostname, hostname, both or none.
    """
    if names == "semconv":
        return Semconv()
    alone = names == "dcgm"
    dcgm = DcgmNames(counters=counters or DEFAULT_COUNTERS, hostname=hostname, hostname_label=hostname_label, own=alone)
    return dcgm if alone else Both(Semconv(), dcgm)
