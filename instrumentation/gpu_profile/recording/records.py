"""The facts in a recording, and how each is written as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, TypeVar

from gpu_profile.samples import Device, DeviceKind, Event

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Who wrote a file of the recording. `end_ns` is None if the file has no end mark: killed, or still recording."""

    version: str
    host: str
    pid: int
    start_ns: int
    driver: str = ""
    driver_version: str = ""
    end_ns: int | None = None


class DeviceInterval(NamedTuple):
    """When a span's work ran on one stream of one device, in ns since the epoch."""

    device: str
    stream: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One execution of the region `name`.

    Identifiers are lower-case hex as in W3C trace context. `start_ns` and `end_ns` are the host's; `items` is how many
    units of work the execution did, None if it did not say. Attributes come back as JSON gives them: tuples as lists.
    """

    name: str
    start_ns: int
    end_ns: int
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None
    device_intervals: tuple[DeviceInterval, ...] = ()
    items: float | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


def to_fields(fact: ProcessInfo | SpanRecord | Device | Event) -> dict[str, Any]:
    """The fact's fields as an object; unlike `dataclasses.asdict`, nothing inside them is copied."""
    return {each.name: getattr(fact, each.name) for each in fields(fact)}


def from_fields(kind: type[_T], found: Mapping[str, Any]) -> _T:
    """The reverse of `to_fields`, after JSON. TypeError, ValueError or LookupError if a field is missing or not right.

    Fields may be added to a fact later: one that is not found has its default, one that is not known is ignored.
    """
    return kind(**{each.name: _READ[str(each.type)](found[each.name]) for each in fields(kind) if each.name in found})  # type: ignore[arg-type]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _int(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a number")
    return value


def _maybe(read: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda value: None if value is None else read(value)


def _intervals(value: list[tuple[object, object, object, object]]) -> tuple[DeviceInterval, ...]:
    return tuple(DeviceInterval(_text(device), _int(stream), _int(t0), _int(t1)) for device, stream, t0, t1 in value)


#: How a field is read, by its annotation.
_READ: Final[Mapping[str, Callable[[Any], object]]] = {
    "str": _text,
    "str | None": _maybe(_text),
    "int": _int,
    "int | None": _maybe(_int),
    "float | None": _maybe(_number),
    "DeviceKind": DeviceKind,
    "tuple[DeviceInterval, ...]": _intervals,
    "Mapping[str, Any]": dict,
}
