"""Saved traces: the operations on GPUs, the host's calls that launched them, and the host's activity around them.

Reads the Chrome traces that PyTorch's profiler (Kineto) saves, of NVIDIA and AMD GPUs, with the category names of today
and of before 2022. Operations and calls are joined by correlation id, never by order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from gpu_profile.errors import UsageError
from gpu_profile.kernels.records import Operator, Range, Record
from gpu_profile.kernels.stream import JsonStream
from gpu_profile.kernels.trace_events import LATEST, MAKERS, UnusableError


class Trace:
    """A trace file, `.json` or `.json.gz`. Iterating over it yields all its records, also repeatedly. The text `-` is
    standard input, which can be read once; `./-` and `Path("-")` are a file of that name.

    Iterating raises `UsageError` where the file is damaged or no trace; records that were yielded until then are valid.
    An event that cannot be used is left out and counted by reason in `skipped`. An operator with the name
    `ranges_named` is yielded as a range, too.

    `rank` is the process's number in a distributed program; None if the trace has none.
    `base_ns` is the offset from the trace's times to nanoseconds since the epoch; 0 if the trace has none. Both are
    valid after the end of the iteration, because they may be at the end of the file.
    """

    def __init__(self, path: str | Path, *, ranges_named: str | None = None) -> None:
        self.path = Path(path)
        self._given = path
        self.ranges_named = ranges_named
        self.base_ns = 0
        self.rank: int | None = None
        self.skipped: Counter[str] = Counter()
        self._stream: JsonStream | None = None

    @property
    def read_share(self) -> float | None:
        """The part of the file that has been read, 0-1. None for a pipe, or before the first record."""
        return None if self._stream is None else self._stream.read_share

    def __iter__(self) -> Iterator[Record]:
        self.base_ns, self.rank, self.skipped = 0, None, Counter()
        makers, named = MAKERS.get, self.ranges_named
        for event in chain.from_iterable(self._arrays()):
            if type(event) is not dict:
                self.skipped["not an object"] += 1
                continue
            try:
                make = makers((event.get("ph"), event.get("cat")))
            except TypeError:  # a list or an object, which no key can be
                continue
            if make is None:
                continue
            try:
                record = make(event)
            except UnusableError as problem:
                self.skipped[str(problem)] += 1
                continue
            if record is None:
                continue
            yield record
            if named is not None and type(record) is Operator and record.name == named:
                yield Range(*record[:4])

    def _arrays(self) -> Iterator[Iterator[Any]]:
        """The events of each array in the file: there is one, unless the file is damaged."""
        with JsonStream(self._given) as stream:
            self._stream = stream
            first = stream.peek()
            if first == "[":
                yield stream.elements()
            elif first == "{":
                yield from self._members(stream)
            else:
                raise stream.fail("the file is empty" if not first else "neither a JSON object nor an array")
            stream.finish()

    def _members(self, stream: JsonStream) -> Iterator[Iterator[Any]]:
        has_events = False
        stream.take("{", "'{'")
        more = stream.peek() != "}"
        while more:
            if stream.peek() != '"':
                raise stream.fail("it ends early: truncated?" if not stream.peek() else "a name in quotes was expected")
            key = stream.value()
            stream.take(":", "':'")
            if key == "traceEvents":
                has_events = True
                yield stream.elements()
            else:
                value = stream.value()
                if key == "baseTimeNanoseconds" and type(value) is int and 0 <= value < LATEST:
                    self.base_ns = value
                elif key == "distributedInfo" and type(value) is dict and type(rank := value.get("rank")) is int:
                    self.rank = rank
            more = stream.peek() == ","
            if more:
                stream.take(",", "','")
        stream.take("}", "',' or '}'")
        if not has_events:
            raise UsageError(f"{self.path}: no traceEvents: it is not a trace of PyTorch's profiler")
