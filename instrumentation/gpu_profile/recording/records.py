"""The facts in a recording, and how each is written as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from gpu_profile.catalogue.samples import Device, DeviceKind, Event

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Who wrote a file of the recording. `end_ns` is None if the file has no end mark: killed, or still recording.

    `rank`, `local_rank` and `world_size` are what its launcher told it: its place among all processes that were
    launched together and among those of its node, both from 0, and how many there are. None: not told.
    """

    version: str
    host: str
    pid: int
    start_ns: int
    driver: str = ""
    driver_version: str = ""
    end_ns: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None


class DeviceInterval(NamedTuple):
    """When a span's work ran on one stream of one device, in ns since the epoch."""

    device: str
    stream: int
    start_ns: int
    end_ns: int


#: Very many spans share it.
_NO_ATTRIBUTES: Final[Mapping[str, Any]] = MappingProxyType({})


class SpanRecord(NamedTuple):
    """One execution of the region `name`.

    `trace_id`, `span_id` and `parent_span_id` are lower-case hex as in W3C trace context. An execution without a span
    has an `id` of the recorder's instead, and one inside it names that as its `parent`. `start_ns` and `end_ns` are the
    host's; `items` is how many units of work the execution did, None if it did not say; `failed` whether an exception
    ended it, None if the recording does not say. `devices` are the UUIDs of the devices that it was joined with by the
    host's clock, `assumed` whether that was its process's guess because it named none. `rank` is its process's: it is
    written with the process, and a reader finds it there. Attributes come back as JSON gives them: tuples as lists.
    """

    name: str
    start_ns: int
    end_ns: int
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None
    device_intervals: tuple[DeviceInterval, ...] = ()
    items: float | None = None
    attributes: Mapping[str, Any] = _NO_ATTRIBUTES
    id: str = ""
    parent: str | None = None
    failed: bool | None = None
    devices: tuple[str, ...] = ()
    assumed: bool = False
    rank: int | None = None


def to_fields(fact: ProcessInfo | SpanRecord | Device | Event) -> dict[str, Any]:
    """The fact's fields as an object; unlike `dataclasses.asdict`, nothing inside them is copied.

    Of a span, which are many, without those that are as they are by default.
    """
    if isinstance(fact, SpanRecord):
        usual = SpanRecord._field_defaults
        found = {key: value for key, value in fact._asdict().items() if key not in usual or value != usual[key]}
        return {**found, "attributes": dict(fact.attributes)} if fact.attributes else found
    return {each.name: getattr(fact, each.name) for each in fields(fact)}


def from_fields(kind: Callable[..., _T], found: Mapping[str, Any]) -> _T:
    """The reverse of `to_fields`, after JSON. TypeError, ValueError or LookupError if a field is missing or not right.

    Fields may be added to a fact later: one that is not found has its default, one that is not known is ignored.
    """
    readers = _readers(kind)
    return kind(**{name: readers[name](value) for name, value in found.items() if name in readers})


@cache
def _readers(kind: Callable[..., Any]) -> Mapping[str, Callable[[Any], object]]:
    # A named tuple wraps the text of its annotations.
    texts = {name: getattr(hint, "__forward_arg__", hint) for name, hint in kind.__annotations__.items()}
    return {name: _READ[str(text)] for name, text in texts.items()}


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


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _maybe(read: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda value: None if value is None else read(value)


def _intervals(value: list[tuple[object, object, object, object]]) -> tuple[DeviceInterval, ...]:
    return tuple(DeviceInterval(_text(device), _int(stream), _int(t0), _int(t1)) for device, stream, t0, t1 in value)


def _texts(value: list[object]) -> tuple[str, ...]:
    return tuple(map(_text, value))


#: How a field is read, by its annotation.
_READ: Final[Mapping[str, Callable[[Any], object]]] = {
    "str": _text,
    "str | None": _maybe(_text),
    "int": _int,
    "int | None": _maybe(_int),
    "float | None": _maybe(_number),
    "bool": _bool,
    "bool | None": _maybe(_bool),
    "tuple[str, ...]": _texts,
    "DeviceKind": DeviceKind,
    "tuple[DeviceInterval, ...]": _intervals,
    "Mapping[str, Any]": dict,
}
