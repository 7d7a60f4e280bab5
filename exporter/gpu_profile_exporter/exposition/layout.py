"""The lines of an exposition without their values.

Which series there are changes rarely, and most values are what they were at the last scrape: so the lines are put
together once, a scrape only writes the values that are new, and its text is the pieces joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import compress
from math import isfinite, nan
from operator import ne
from typing import Final, NamedTuple

from gpu_profile.catalogue import METRICS, Metric
from gpu_profile.catalogue import metrics as m
from gpu_profile_exporter.exposition.budget import Candidate, SeriesPriority, left_out, rank
from gpu_profile_exporter.exposition.format import Format, family_lines, number, series_text
from gpu_profile_exporter.naming.series import BUCKET, Naming, Series, TextFamily

Attributes = Mapping[str, str]
#: Pieces of text that are joined at once.
_AT_ONCE: Final = 256
_PLACES: Final = {metric.otel: place for place, metric in enumerate(METRICS)}


class Line(NamedTuple):
    """A series: its text up to the value, the place of its metric in the catalogue, its rank in the budget, and whether
    it is a histogram's bucket, whose values may have exemplars."""

    family: TextFamily
    text: bytes
    scale: float
    place: int
    rank: SeriesPriority
    bucket: bool = False

    @classmethod
    def of(cls, series: Series, place: int = 0, rank: SeriesPriority = SeriesPriority.CORE) -> Line:
        """The line of a series."""
        bucket = series.suffix == BUCKET
        return cls(series.family, series_text(series).encode(), float(series.scale), place, rank, bucket)


class Lines:
    """The lines of every (metric, attributes) of the last layout: a new one only asks for those that are new."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        # By identity: hashing some thousand mappings would cost more than all the rest. An entry holds what its key
        # was made of, so that no other object can have that identity while it is there.
        self._known: dict[tuple[int, int], tuple[Metric, Attributes, tuple[Line, ...]]] = {}
        self._families: dict[TextFamily, TextFamily] = {}
        self._devices: dict[str, Attributes] = {}

    def of(self, metrics: Sequence[Metric], attributes: Sequence[Attributes]) -> list[tuple[Line, ...]]:
        """The lines of each pair; those of pairs that are not among these are forgotten."""
        pairs = list(zip(metrics, attributes, strict=True))
        devices = {about.get("hw.id", ""): about for metric, about in pairs if metric is m.DEVICE_INFO}
        if devices != self._devices:
            self._naming.about(devices)
            self._devices, self._known = devices, {}
        kept, found = {}, []
        for metric, about in pairs:
            key = id(metric), id(about)
            entry = kept[key] = self._known.get(key) or (metric, about, self._named(metric, about))
            found.append(entry[2])
        self._known = kept
        return found

    def _named(self, metric: Metric, attributes: Attributes) -> tuple[Line, ...]:
        place, what = _PLACES.get(metric.otel, len(_PLACES)), rank(metric)
        lines = (Line.of(series, place, what) for series in self._naming.series(metric, attributes))
        # Each series comes with a family of its own; one for all of them takes less memory.
        return tuple(line._replace(family=self._families.setdefault(line.family, line.family)) for line in lines)


class Layout:
    """The lines of one set of series, in the order of the catalogue's metrics, each family's together.

    `lines` has those of each reading, `fixed` are series of their own, which come last and belong to the core.
    `left_out` counts the series that are not in the layout, by reason.
    """

    def __init__(self, lines: Sequence[Sequence[Line]], fixed: Sequence[Line] = (), *, budget: int) -> None:
        self.left_out: Counter[str] = Counter()
        wanted = [(line, source) for source, of_reading in enumerate(lines) for line in of_reading]
        wanted.sort(key=lambda pair: pair[0].place)
        wanted += [(line, len(lines) + i) for i, line in enumerate(fixed)]
        if len(wanted) > budget:
            wanted = self._within(wanted, budget)
        families: dict[str, dict[bytes, tuple[Line, int]]] = {}
        for row in wanted:
            line = row[0]
            family = families.setdefault(line.family.name, {})
            if line.text in family:
                self.left_out["duplicate"] += 1
            else:
                family[line.text] = row
        rows = [row for family in families.values() for row in family.values()]
        self._lines = [line for line, _ in rows]
        self._sources = [source for _, source in rows]
        self._scales = [line.scale for line in self._lines]
        #: The rows, and their sources, whose values may have exemplars.
        self._buckets = [(row, rows[row][1]) for row, line in enumerate(self._lines) if line.bucket]
        self._starts: dict[Format, list[bytes]] = {}
        #: The values that were published last, and how they were written.
        self._values = [nan] * len(rows)
        self._texts = [b""] * len(rows)

    def __len__(self) -> int:
        return len(self._lines)

    def _within(self, wanted: list[tuple[Line, int]], budget: int) -> list[tuple[Line, int]]:
        candidates = [Candidate(line.rank, line.place, line.text) for line, _ in wanted]
        gone = left_out(set(candidates), budget)
        kept = [pair for pair, candidate in zip(wanted, candidates, strict=True) if candidate not in gone]
        self.left_out["over_budget"] += len(wanted) - len(kept)
        return kept

    def fill(self, values: Sequence[float], style: Format, given: Sequence[float] = ()) -> bytes:
        """The exposition with a value for each reading and each fixed series. One thread at a time.

        `given` are the readings' values with their exemplars.
        """
        found = [values[source] for source in self._sources]
        changed = list(compress(range(len(found)), map(ne, found, self._values)))
        texts, scales = self._texts, self._scales
        for i, text in zip(changed, _written([found[i] * scales[i] for i in changed]), strict=True):
            texts[i] = text
        self._values = found
        starts = self._starts.get(style)
        if starts is None:
            starts = self._starts[style] = self._line_starts(style)
        pieces = [b"# EOF\n" if style is Format.OPENMETRICS else b""] * (2 * len(texts) + 1)
        pieces[:-1:2] = starts
        pieces[1::2] = texts
        if style is Format.OPENMETRICS:
            for row, source in self._buckets:
                if exemplar := getattr(given[source], "exemplar", ""):
                    pieces[2 * row + 1] = texts[row][:-1] + f" # {exemplar}\n".encode()
        return _joined(pieces)

    def _line_starts(self, style: Format) -> list[bytes]:
        """What stands before each value: the series, and before a family's first one what introduces the family."""
        starts, family = [], None
        for line in self._lines:
            new = line.family.name != family
            starts.append(family_lines(line.family, style).encode() + line.text if new else line.text)
            family = line.family.name
        return starts


def _joined(pieces: Sequence[bytes]) -> bytes:
    """All pieces as one."""
    # A join keeps 80 bytes for each piece while it lasts: for all at once that would be more than the text itself,
    # and memory that comes fresh from the system at each scrape takes longer than the joining.
    body = BytesIO()
    for start in range(0, len(pieces), _AT_ONCE):
        body.write(b"".join(pieces[start : start + _AT_ONCE]))
    return body.getvalue()


def _written(numbers: Sequence[float]) -> list[bytes]:
    """Each number as Prometheus reads it, and the end of its line."""
    # A sum of large numbers may be infinite too: that only takes the longer way.
    if not isfinite(sum(numbers)):
        return [f"{number(value)}\n".encode() for value in numbers]
    return (b"%r\n" * len(numbers) % tuple(numbers)).splitlines(keepends=True)
