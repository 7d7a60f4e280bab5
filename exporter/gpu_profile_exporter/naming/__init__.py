"""How what is published is called: names, labels and units under one scheme of names or another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gpu_profile.catalogue import Metric
from gpu_profile.errors import UsageError

if TYPE_CHECKING:
    from gpu_profile_exporter.naming.dcgm_fields import Counters

#: The schemes of names, as `--names` knows them.
NAMES: Final = ("semconv", "dcgm", "both")


class Family(NamedTuple):
    """A metric as it stands in the text format; `kind` is counter, gauge, info, histogram or untyped."""

    name: str
    kind: str
    help: str
    unit: str


class Series(NamedTuple):
    """One series: its labels in the order in which they are written. The published value is `value * scale`."""

    family: Family
    labels: tuple[tuple[str, str], ...]
    scale: float


class Naming(Protocol):
    """A scheme of names."""

    def series(self, metric: Metric, attributes: Mapping[str, str]) -> Sequence[Series]:
        """The series that publish `metric` with these OpenTelemetry attributes; none if the scheme has no name."""
        ...

    def about(self, devices: Mapping[str, Mapping[str, str]]) -> None:
        """Tell what is known of each device (by `hw.id`): the attributes of `gpu_profile.device.info`.

        When this changes, whoever keeps series asks for them anew.
        """
        ...


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


def choose(names: str, *, counters: Counters | None = None, hostname: str = "", hostname_label: str = "both") -> Naming:
    """The scheme called `names`: semconv, dcgm or both. The rest is for dcgm's names.

    `counters` is the selection of fields (`dcgm_csv.read_counters`; by default dcgm-exporter's own), `hostname` this
    node's name (empty: no such label), `hostname_label` what the label is called: Hostname, hostname, both or none.
    """
    from gpu_profile_exporter.naming.dcgm import HOSTNAME_LABELS, Dcgm
    from gpu_profile_exporter.naming.dcgm_fields import DEFAULT_COUNTERS
    from gpu_profile_exporter.naming.semconv import Semconv

    if names not in NAMES:
        raise UsageError(f"--names {names!r}: no such scheme; there are {', '.join(NAMES)}")
    if hostname_label not in HOSTNAME_LABELS:
        raise UsageError(f"the host's label cannot be called {hostname_label!r}; choose {', '.join(HOSTNAME_LABELS)}")
    if names == "semconv":
        return Semconv()
    alone = names == "dcgm"
    dcgm = Dcgm(counters=counters or DEFAULT_COUNTERS, hostname=hostname, hostname_label=hostname_label, own=alone)
    return dcgm if alone else Both(Semconv(), dcgm)
