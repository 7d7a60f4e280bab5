"""Saved traces: what ran on the GPUs and which calls of the host launched it.

Reads the Chrome traces that PyTorch's profiler (Kineto) saves, of NVIDIA and AMD GPUs, with the category names of
today and those from before 2022. Joined by correlation id, never by order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpu_profile.errors import UsageError
from gpu_profile.kernels.stream import JsonStream

_NS_PER_US: Final = 1000
#: Half of what int64 holds, so that ends and differences fit as well.
_LATEST_NS: Final = 1 << 62


class Kind(StrEnum):
    """What a GPU operation does. A copy stays within one GPU's memory; a transfer crosses a link."""

    KERNEL = "kernel"
    COMMUNICATION = "communication"
    TRANSFER = "transfer"
    COPY = "copy"
    SET = "set"


class Operation(NamedTuple):
    """Something that ran on a GPU in `[start_ns, end_ns)`; times as in the trace, see `Trace.base_ns`."""

    kind: Kind
    device: int
    stream: int | str
    start_ns: int
    end_ns: int
    name: str
    correlation: int | None


class Launch(NamedTuple):
    """A call of the CUDA or HIP runtime or driver on a host thread; operations with its correlation came of it."""

    correlation: int
    start_ns: int
    end_ns: int
    thread: int | str


_KERNEL, _COPY, _SET, _CALL = range(4)
_CATEGORIES: Final[Mapping[str, int]] = {
    "kernel": _KERNEL,
    "Kernel": _KERNEL,
    "gpu_memcpy": _COPY,
    "Memcpy": _COPY,
    "gpu_memset": _SET,
    "Memset": _SET,
    "cuda_runtime": _CALL,
    "cuda_driver": _CALL,
    "Runtime": _CALL,
}
#: NVIDIA's and AMD's libraries of collectives; their kernels carry the name.
_COLLECTIVES: Final = ("nccl", "rccl")
_WITHIN: Final = ("dtod", "devicetodevice")


class Trace:
    """A trace file, `.json` or `.json.gz`: iterate over it, once or again, for its operations and launches.

    Iterating raises `UsageError` where the file is damaged or no trace; what was yielded until then is good. An event
    that cannot be used is left out and counted by reason in `skipped`. `base_ns` is what to add to the trace's times
    for nanoseconds since the epoch; it is known after the end, since it may stand there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.base_ns = 0
        self.skipped: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Operation | Launch]:
        self.base_ns, self.skipped = 0, Counter()
        for event in self._events():
            if type(event) is not dict:
                self.skipped["not an object"] += 1
                continue
            category = event.get("cat")
            role = _CATEGORIES.get(category) if type(category) is str else None
            if role is not None and event.get("ph") == "X":
                try:
                    record = _record(role, event)
                except _UnusableError as problem:
                    self.skipped[str(problem)] += 1
                else:
                    if record is not None:
                        yield record

    def _events(self) -> Iterator[Any]:
        with JsonStream(self.path) as stream:
            first = stream.peek()
            if first == "[":
                yield from stream.elements()
            elif first == "{":
                yield from self._members(stream)
            else:
                raise stream.fail("the file is empty" if not first else "neither a JSON object nor an array")
            stream.finish()

    def _members(self, stream: JsonStream) -> Iterator[Any]:
        found = False
        stream.take("{", "'{'")
        more = stream.peek() != "}"
        while more:
            if stream.peek() != '"':
                raise stream.fail("it ends early: truncated?" if not stream.peek() else "a name in quotes was expected")
            key = stream.value()
            stream.take(":", "':'")
            if key == "traceEvents":
                found = True
                yield from stream.elements()
            else:
                value = stream.value()
                if key == "baseTimeNanoseconds" and type(value) is int and 0 <= value < _LATEST_NS:
                    self.base_ns = value
            more = stream.peek() == ","
            if more:
                stream.take(",", "','")
        stream.take("}", "',' or '}'")
        if not found:
            raise UsageError(f"{self.path}: no traceEvents: it is not a trace of PyTorch's profiler")


class _UnusableError(Exception):
    """Why an event cannot be used."""


def _record(role: int, event: Mapping[str, Any]) -> Operation | Launch | None:
    arguments = event.get("args")
    if type(arguments) is not dict:
        arguments = {}
    correlation = arguments.get("correlation")
    if type(correlation) is not int or not 0 < correlation < _LATEST_NS:
        correlation = None
    if role == _CALL and correlation is None:
        return None
    start = _nanoseconds(event.get("ts"), "no start time")
    end = start + _nanoseconds(event.get("dur"), "no duration")
    if end < start:
        raise _UnusableError("negative duration")
    thread = event.get("tid")
    if role == _CALL:
        return Launch(correlation or 0, start, end, thread if type(thread) is int else str(thread))
    device = arguments.get("device", event.get("pid"))
    if type(device) is not int or not 0 <= device < 1 << 31:
        raise _UnusableError("no device")
    stream = arguments.get("stream", thread)
    if type(stream) is not int:
        stream = str(stream)
    name = event.get("name")
    if type(name) is not str:
        name = ""
    return Operation(_kind(role, name), device, stream, start, end, name, correlation)


def _kind(role: int, name: str) -> Kind:
    if role == _SET:
        return Kind.SET
    low = name.lower()
    if role == _COPY:
        return Kind.COPY if any(word in low for word in _WITHIN) else Kind.TRANSFER
    return Kind.COMMUNICATION if any(word in low for word in _COLLECTIVES) else Kind.KERNEL


def _nanoseconds(value: Any, missing: str) -> int:
    """Microseconds, as an integer or as text, in exact nanoseconds."""
    if type(value) is int:
        ns = value * _NS_PER_US
    elif type(value) is str:
        # A float holds today's microseconds since the epoch to a quarter of a microsecond only.
        whole, _, part = value.partition(".")
        try:
            if whole.isdecimal() and part.isdecimal() and len(part) <= 3 and len(whole) < 19:
                ns = int(whole) * _NS_PER_US + int(f"{part}00"[:3])
            elif abs(float(value)) < _LATEST_NS:
                ns = round(Decimal(value) * _NS_PER_US)
            else:
                raise _UnusableError("time out of range")
        except (ValueError, ArithmeticError):
            raise _UnusableError(missing) from None
    else:
        raise _UnusableError(missing)
    if not -_LATEST_NS < ns < _LATEST_NS:
        raise _UnusableError("time out of range")
    return ns
