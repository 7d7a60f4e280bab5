"""Encodes the attributes of joined spans in OTLP's protobuf format."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate, compress, repeat
from typing import Final, NamedTuple, cast

import numpy as np

from gpu_profile.catalogue import attributes as names
from gpu_profile.history.rows import Floats, Ints
from gpu_profile.protobuf import head, message, number, string
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.telemetry.enrichment import SHORTEST_S, AttributeValues, Enricher, RegionValues
from gpu_profile.units import NS_PER_S

#: Most cached regions.
_MOST_CACHED: Final = 4_096
#: The number of a span's field `attributes`.
_ATTRIBUTES: Final = 9
_DOUBLE: Final = struct.Struct("<d")
_REGION: Final = names.REGION.name
_UNJOINED: Final = names.UNJOINED.name


class SpanColumns(NamedTuple):
    """The executions of a request's spans with their times in ns. None for a span that stays unchanged.

    Many spans may share one execution, which then has no times.
    """

    executions: Sequence[Execution | None]
    starts: Ints
    ends: Ints

    def last_long_ns(self) -> int:
        """The end of the last span that is long enough for samples of its own; 0 if there is none."""
        ends = self.ends[self.ends - self.starts >= SHORTEST_S * NS_PER_S]
        if len(ends) and None in self.executions:
            chosen = np.array([execution is not None for execution in self.executions])
            ends = self.ends[chosen & (self.ends - self.starts >= SHORTEST_S * NS_PER_S)]
        return int(ends.max(initial=0))


class AddedAttributes(NamedTuple):
    """Encoded attributes by span. `unjoined`: the number of spans that have only the reason for none."""

    by_span: list[bytes]
    unjoined: int


class _EncodedRows:
    """Encodes rows that differ in some doubles only. `before`: the bytes before each double.

    All rows are filled at once, which takes a quarter of the time of packing each.
    """

    def __init__(self, *before: bytes) -> None:
        row = b"".join(part + bytes(_DOUBLE.size) for part in before)
        self._row = np.frombuffer(row, np.uint8)
        ends = accumulate(len(part) + _DOUBLE.size for part in before)
        names = list(map(str, range(len(before))))
        offsets = [end - _DOUBLE.size for end in ends]
        formats = ["<f8"] * len(names)
        self._doubles = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": len(row)})

    def of(self, *columns: Floats) -> list[bytes]:
        """The rows with these columns of doubles."""
        rows = np.empty((len(columns[0]), len(self._row)), np.uint8)
        rows[:] = self._row
        doubles = rows.view(self._doubles)[:, 0]
        for name, column in zip(self._doubles.names or (), columns, strict=True):
            doubles[name] = column
        return cast("list[bytes]", rows.view(f"V{len(self._row)}")[:, 0].tolist())


class _RegionEncoding(NamedTuple):
    """The values of a region, and the function that encodes them for executions of these lengths in seconds.

    `own_ns`: executions from this length on may use their own samples. `unjoined`: whether it has no samples.
    """

    values: RegionValues
    own_ns: float
    unjoined: bool
    encode: Callable[[Floats], Iterable[bytes]]


class Encoder:
    """Encodes the attributes of executions. Attributes that all spans of a region share are encoded once a second.

    `region` returns the name of an execution's region for its spans.
    """

    def __init__(self, enricher: Enricher, region: Callable[[Execution], str]) -> None:
        self._enricher = enricher
        self._region = region
        self._cache: dict[tuple[str, Hashable], _RegionEncoding] = {}

    def added(self, spans: SpanColumns, *, own: bool = True) -> AddedAttributes:
        """The attributes of many executions, b"" where there is none.

        Without `own`, only the values of their regions are used: a span's own samples cost a hundred times as much.
        """
        executions, lengths = spans.executions, spans.ends - spans.starts
        by_span, unjoined = [b""] * len(executions), 0
        for execution, rows in _rows_of(executions).items():
            _, own_ns, without, encode = self._of_region(execution)
            every = len(rows) == len(by_span)
            chosen = lengths if every else lengths[rows]
            if every:
                by_span = list(encode(chosen / NS_PER_S))
            else:
                for i, encoding in zip(rows, encode(chosen / NS_PER_S), strict=True):
                    by_span[i] = encoding
            unjoined += without * len(rows)
            if not own or chosen.max() < own_ns:
                continue
            for i in compress(rows, (chosen >= own_ns).tolist()):
                separate = execution.at(int(spans.starts[i]), int(spans.ends[i]))
                values = {**self._enricher.attributes(separate), _REGION: self._region(execution)}
                by_span[i] = encoded(values)
                unjoined += (_UNJOINED in values) - without
        return AddedAttributes(by_span, unjoined)

    def _of_region(self, execution: Execution) -> _RegionEncoding:
        """The encoding of its region. Made once a second."""
        shared = self._enricher.region_of(execution)
        key = execution.name, execution.device
        cached = self._cache.get(key)
        if cached is None or cached.values is not shared:
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
            own_ns = shared.resolved_ns if shared.pooled else min(shared.resolved_ns, SHORTEST_S * NS_PER_S)
            encode = self._encoding(execution, shared)
            cached = self._cache[key] = _RegionEncoding(shared, own_ns, not shared.pooled, encode)
        return cached

    def _encoding(self, execution: Execution, shared: RegionValues) -> Callable[[Floats], Iterable[bytes]]:
        """A function of the lengths of executions in seconds."""
        fixed = self._shared(execution, shared)
        if not shared.devices:
            return lambda lengths_s: repeat(fixed, len(lengths_s))
        rows = _EncodedRows(fixed + _BEFORE_LENGTH)
        if shared.power_w is None:
            return rows.of
        power_w, half_width = shared.power_w, shared.power_half_width
        rows = _EncodedRows(fixed + _BEFORE_LENGTH, _BEFORE_ENERGY, _BEFORE_HALF_WIDTH)
        return lambda lengths_s: rows.of(lengths_s, lengths_s * power_w, lengths_s * half_width)

    def _shared(self, execution: Execution, shared: RegionValues) -> bytes:
        values: dict[str, AttributeValues] = {_REGION: self._region(execution)}
        if shared.devices:
            values = {**shared.fixed, **values, names.INTERVAL_SOURCE.name: "host"}
        if not shared.pooled:
            values[names.UNJOINED.name] = self._enricher.why_unjoined(execution)
        return encoded(values)


def _rows_of(executions: Sequence[Execution | None]) -> dict[Execution, Sequence[int]]:
    """The rows of each execution."""
    distinct = dict.fromkeys(executions)
    if len(distinct) == 1 and executions[0] is not None:  # nearly always
        return {executions[0]: range(len(executions))}
    rows: dict[Execution, list[int]] = {execution: [] for execution in distinct if execution is not None}
    for i, execution in enumerate(executions):
        if execution is not None:
            rows[execution].append(i)
    return dict(rows)


def encoded(values: Mapping[str, AttributeValues]) -> bytes:
    """The attributes, each as a field of a span."""
    return b"".join(
        _before_double(key) + _DOUBLE.pack(value) if type(value) is float else _attribute(key, value)
        for key, value in values.items()
    )


@cache
def _before_double(key: str) -> bytes:
    """A KeyValue with a double, without the 8 bytes of the double at its end."""
    name = string(1, key)
    # An AnyValue with a double has 9 bytes: the key of field 4 and the value.
    return head(_ATTRIBUTES, len(name) + 2 + 9) + name + head(2, 9) + bytes([4 << 3 | 1])


def _attribute(key: str, value: AttributeValues) -> bytes:
    return message(_ATTRIBUTES, string(1, key), message(2, _any(value)))


def _any(value: AttributeValues) -> bytes:
    if isinstance(value, bool):
        return number(2, int(value))
    if isinstance(value, int):
        return number(3, value)
    if isinstance(value, float):
        return bytes([4 << 3 | 1]) + _DOUBLE.pack(value)
    if isinstance(value, str):
        return string(1, value)
    return message(5, *(message(1, _any(one)) for one in value))


_BEFORE_LENGTH: Final = _before_double(names.INTERVAL_S.name)
_BEFORE_ENERGY: Final = _before_double(names.ENERGY.name)
_BEFORE_HALF_WIDTH: Final = _before_double(names.ENERGY_HALF_WIDTH.name)
