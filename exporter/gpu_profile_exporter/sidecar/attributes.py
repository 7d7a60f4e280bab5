"""Encodes the attributes of joined spans in OTLP's protobuf format."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from gpu_profile.catalogue import attributes as names
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


class AddedAttributes(NamedTuple):
    """Encoded attributes by scope and by span. `unjoined`: the number of spans that have only the reason for none."""

    by_scope: list[list[bytes]]
    unjoined: int


class Encoder:
    """Encodes the attributes of executions. Attributes that all spans of a region share are encoded once a second.

    `region` returns the name of an execution's region for its spans.
    """

    def __init__(self, enricher: Enricher, region: Callable[[Execution], str]) -> None:
        self._enricher = enricher
        self._region = region
        self._cache: dict[tuple[str, Hashable], tuple[RegionValues, bytes, bool]] = {}

    def added(self, executions: Sequence[Sequence[Execution | None]], *, own: bool = True) -> AddedAttributes:
        """The attributes of many executions, b"" where there is none.

        Without `own`, only the values of their regions are used: a span's own samples cost a hundred times as much.
        """
        by_scope: list[list[bytes]] = []
        unjoined, regions = 0, dict[tuple[str, Hashable], tuple[RegionValues, bytes, bool]]()
        for scope in executions:
            encodings: list[bytes] = []
            for execution in scope:
                if execution is None:
                    encodings.append(b"")
                    continue
                key = execution.name, execution.device
                # Once per request, because looking it up costs as much as all the rest.
                shared, fixed, without = regions.get(key) or regions.setdefault(key, self._of_region(execution))
                length_ns = execution.end_ns - execution.start_ns
                if own and (
                    length_ns >= shared.resolved_ns or (not shared.pooled and length_ns >= SHORTEST_S * NS_PER_S)
                ):
                    # The span is long enough for samples of its own.
                    values = {**self._enricher.attributes(execution), _REGION: self._region(execution)}
                    encodings.append(encoded(values))
                    unjoined += _UNJOINED in values
                    continue
                unjoined += without
                if not shared.devices:
                    encodings.append(fixed)
                    continue
                length_s = length_ns / NS_PER_S
                parts = [fixed, _BEFORE_LENGTH, _DOUBLE.pack(length_s)]
                if shared.power_w is not None:
                    parts += _BEFORE_ENERGY, _DOUBLE.pack(shared.power_w * length_s)
                    parts += _BEFORE_HALF_WIDTH, _DOUBLE.pack(shared.power_half_width * length_s)
                encodings.append(b"".join(parts))
            by_scope.append(encodings)
        return AddedAttributes(by_scope, unjoined)

    def _of_region(self, execution: Execution) -> tuple[RegionValues, bytes, bool]:
        """The values of its region, their encoding, and whether they are without samples. Encoded once a second."""
        shared = self._enricher.region_of(execution)
        key = execution.name, execution.device
        cached = self._cache.get(key)
        if cached is None or cached[0] is not shared:
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
            cached = self._cache[key] = shared, self._shared(execution, shared), not shared.pooled
        return cached

    def _shared(self, execution: Execution, shared: RegionValues) -> bytes:
        values: dict[str, AttributeValues] = {_REGION: self._region(execution)}
        if shared.devices:
            values = {**shared.fixed, **values, names.INTERVAL_SOURCE.name: "host"}
        if not shared.pooled:
            values[names.UNJOINED.name] = self._enricher.why_unjoined(execution)
        return encoded(values)


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
