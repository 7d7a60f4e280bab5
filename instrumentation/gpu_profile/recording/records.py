"""The facts in a recording, and their JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from gpu_profile.catalogue.samples import Device, DeviceKind, Event
from gpu_profile.clock import Moment
from gpu_profile.recording.kernel_stamps import KernelStamps

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """The writer of a file of the recording. `end_ns` is None without an end mark: killed, or still recording.

    `rank`, `local_rank` and `world_size` come from its launcher: its place in the whole launch and on its node, both
    from 0, and the number of processes. None: the launcher set no value. `moments` are readings of the host's clock:
    the first at the start, then two for each setting of the clock, before and after it. `boot` identifies the machine
    since its start: processes with the same one have one clock. Older recordings have neither.
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
    boot: str = ""
    moments: tuple[Moment, ...] = ()


class DeviceInterval(NamedTuple):
    """The time of a span's work on one stream of one device, in ns since the epoch."""

    device: str
    stream: int
    start_ns: int
    end_ns: int


#: Shared by very many spans.
_NO_ATTRIBUTES: Final[Mapping[str, Any]] = MappingProxyType({})


class SpanRecord(NamedTuple):
    """One execution of the region `name`.

    `trace_id`, `span_id` and `parent_span_id` are lower-case hex as in W3C trace context. An execution without a span
    has an `id` of the recorder's instead, and executions inside it name that `id` as their `parent`. `start_ns` and
    `end_ns` are the host's. `items` is the number of units of work, None if not reported. `failed`: an exception ended
    it; None if not recorded. `devices` are the UUIDs of the devices in its join by the host's clock. `assumed`: it
    named none, and its process guessed them. `rank` is its process's: the file has it with the process, and the reader
    fills it in, with `process`, the process's place in `Recording.processes` (None: the only one, or unknown).
    `kernels` are the times of its kernels, if a window of a profiler saw it. `set_ns` is by how much the clock was set
    back during it, below 0, if its process noticed: `end_ns` may be before `start_ns` then. Attributes come back as
    from JSON: tuples as lists.
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
    process: int | None = None
    kernels: KernelStamps | None = None
    set_ns: int = 0


def to_fields(fact: ProcessInfo | SpanRecord | Device | Event) -> dict[str, Any]:
    """The fact's fields as an object. Unlike `dataclasses.asdict`, it does not copy their values.

    A span's fields with default values are left out: there are many spans.
    """
    if isinstance(fact, SpanRecord):
        usual = SpanRecord._field_defaults
        values = {key: value for key, value in fact._asdict().items() if key not in usual or value != usual[key]}
        return {**values, "attributes": dict(fact.attributes)} if fact.attributes else values
    return {each.name: getattr(fact, each.name) for each in fields(fact)}


def from_fields(kind: Callable[..., _T], values: Mapping[str, Any]) -> _T:
    """The reverse of `to_fields`, after JSON. TypeError, ValueError or LookupError if a field is missing or wrong.

    Fields may be added to a fact later: a missing one gets its default, an unknown one is ignored.
    """
    readers = _readers(kind)
    return kind(**{name: readers[name](value) for name, value in values.items() if name in readers})


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


def _moments(value: list[tuple[object, object, object]]) -> tuple[Moment, ...]:
    return tuple(Moment(_int(now), _int(elapsed), _int(suspended)) for now, elapsed, suspended in value)


def _texts(value: list[object]) -> tuple[str, ...]:
    return tuple(map(_text, value))


#: Readers of a field's value, by the field's annotation.
_READ: Final[Mapping[str, Callable[[Any], object]]] = {
    "str": _text,
    "str | None": _maybe(_text),
    "int": _int,
    "int | None": _maybe(_int),
    "float | None": _maybe(_number),
    "bool": _bool,
    "bool | None": _maybe(_bool),
    "tuple[str, ...]": _texts,
    "tuple[Moment, ...]": _moments,
    "DeviceKind": DeviceKind,
    "tuple[DeviceInterval, ...]": _intervals,
    "Mapping[str, Any]": dict,
    "KernelStamps | None": _maybe(KernelStamps.read),
}
