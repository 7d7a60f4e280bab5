"""What a scheme of names is, and what it makes of a metric: series, each of a family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from gpu_profile.catalogue import Metric

#: What stands behind the family's name in that of a histogram's bucket.
BUCKET: Final = "_bucket"


class TextFamily(NamedTuple):
    """A metric as it stands in the text format; `kind` is counter, gauge, histogram, info or untyped."""

    name: str
    kind: str
    help: str
    unit: str


class Series(NamedTuple):
    """One series: its labels in the order in which they are written. The published value is `value * scale`.

    Its name is the family's, for a part of a histogram with `suffix`.
    """

    family: TextFamily
    labels: tuple[tuple[str, str], ...]
    scale: float
    suffix: str = ""


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
