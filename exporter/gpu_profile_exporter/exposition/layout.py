"""The lines of an exposition without their values, cached between scrapes.

The set of series changes rarely, and most values equal those of the last scrape. So the lines are built once, a scrape
formats only the values that changed, and then joins the pieces.
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
#: Pieces of text in one join.
_AT_ONCE: Final = 256
_PLACES: Final = {metric.otel: place for place, metric in enumerate(METRICS)}


class Line(NamedTuple):
    """A series. `text` ends before the value, `place` is the index of its metric in the catalogue, `rank` is its rank
    in the budget. `bucket`: it is a histogram's bucket, and its values may have exemplars."""

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
    """Caches the lines of every (metric, attributes) of the last layout. Only new pairs are named."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        # By identity: to hash some thousand mappings would cost more than all the rest. An entry references the objects
        # of its key, so that no other object can get their identity while the entry exists.
        self._cached: dict[tuple[int, int], tuple[Metric, Attributes, tuple[Line, ...]]] = {}
        self._families: dict[TextFamily, TextFamily] = {}
        self._devices: dict[str, Attributes] = {}

    def of(self, metrics: Sequence[Metric], attributes: Sequence[Attributes]) -> list[tuple[Line, ...]]:
        """The lines of each pair. Cached lines of all other pairs are dropped."""
        pairs = list(zip(metrics, attributes, strict=True))
        devices = {about.get("hw.id", ""): about for metric, about in pairs if metric is m.DEVICE_INFO}
        if devices != self._devices:
            self._naming.about(devices)
            self._devices, self._cached = devices, {}
        kept, lines = {}, []
        for metric, about in pairs:
            key = id(metric), id(about)
            entry = kept[key] = self._cached.get(key) or (metric, about, self._named(metric, about))
            lines.append(entry[2])
        self._cached = kept
        return lines

    def _named(self, metric: Metric, attributes: Attributes) -> tuple[Line, ...]:
        place, priority = _PLACES.get(metric.otel, len(_PLACES)), rank(metric)
        lines = (Line.of(series, place, priority) for series in self._naming.series(metric, attributes))
        # Each series has its own family object. Equal ones are shared, which takes less memory.
        return tuple(line._replace(family=self._families.setdefault(line.family, line.family)) for line in lines)


class Layout:
    """The lines of one set of series, in the order of the catalogue, grouped by family.

    `lines`: the lines of each reading. `fixed`: further series of the core, which come last. `left_out` counts the
    series that are not in the layout, by reason.
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
        #: (row, source) of the buckets: their values may have exemplars.
        self._buckets = [(row, rows[row][1]) for row, line in enumerate(self._lines) if line.bucket]
        self._starts: dict[Format, list[bytes]] = {}
        #: The values of the last scrape, and their text.
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
        """The exposition with a value for each reading and each fixed series. Not thread-safe.

        `given`: the readings' original values, which may have exemplars.
        """
        current = [values[source] for source in self._sources]
        changed = list(compress(range(len(current)), map(ne, current, self._values)))
        texts, scales = self._texts, self._scales
        for i, text in zip(changed, _written([current[i] * scales[i] for i in changed]), strict=True):
            texts[i] = text
        self._values = current
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
        """The text before each value: the series. The first one of a family follows its HELP and TYPE lines."""
        starts, family = [], None
        for line in self._lines:
            new = line.family.name != family
            starts.append(family_lines(line.family, style).encode() + line.text if new else line.text)
            family = line.family.name
        return starts


def _joined(pieces: Sequence[bytes]) -> bytes:
    """All pieces in one bytes object."""
    # A join allocates 80 bytes for each piece. For all pieces at once these would exceed the text itself, and to get
    # that memory from the system at each scrape takes longer than to join.
    body = BytesIO()
    for start in range(0, len(pieces), _AT_ONCE):
        body.write(b"".join(pieces[start : start + _AT_ONCE]))
    return body.getvalue()


def _written(numbers: Sequence[float]) -> list[bytes]:
    """Each number in Prometheus' syntax, with a line end."""
    # The sum of large finite numbers may be infinite too: then the slower way below gives the same text.
    if not isfinite(sum(numbers)):
        return [f"{number(value)}\n".encode() for value in numbers]
    return (b"%r\n" * len(numbers) % tuple(numbers)).splitlines(keepends=True)
