"""The interface of a scheme of names, and the series that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from gpu_profile.catalogue import Metric

#: The suffix of a histogram's buckets, after the family's name.
BUCKET: Final = "_bucket"


class TextFamily(NamedTuple):
    """A metric family of the text format. `kind` is counter, gauge, histogram, info or untyped."""

    name: str
    kind: str
    help: str
    unit: str


class Series(NamedTuple):
    """One series, with its labels in the order of the text. The published value is `value * scale`.

    Its name is the family's name plus `suffix`, which is empty except for the parts of a histogram.
    """

    family: TextFamily
    labels: tuple[tuple[str, str], ...]
    scale: float
    suffix: str = ""


class Naming(Protocol):
    """A scheme of names."""

    def series(self, metric: Metric, attributes: Mapping[str, str]) -> Sequence[Series]:
        """The series that publish `metric` with these OpenTelemetry attributes. Empty if the scheme has no name."""
        ...

    def about(self, devices: Mapping[str, Mapping[str, str]]) -> None:
        """Receive the attributes of `gpu_profile.device.info` of each device, by `hw.id`.

        Callers that cache series must discard them after this call.
        """
        ...
