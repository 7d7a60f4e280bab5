"""A profile: values by stack. `pprof` and `otlp_profiles` write it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class ValueKind(NamedTuple):
    """A column of a profile's values: its name, and its unit in words, such as `nanoseconds`."""

    name: str
    unit: str


class SpanLink(NamedTuple):
    """The span of an execution, in lower-case hex of 32 and 16 digits."""

    trace_id: str
    span_id: str


class StackSample(NamedTuple):
    """Values of one stack, the outermost frame first. `values` has one for each of the profile's `kinds`.

    `labels` are pairs of a name and a text, each name once.
    """

    stack: tuple[str, ...]
    values: tuple[int, ...]
    labels: tuple[tuple[str, str], ...] = ()
    link: SpanLink | None = None


@dataclass(frozen=True, slots=True)
class StackProfile:
    """Samples of the time from `start_ns` to `end_ns`, in ns since the epoch.

    `name` is shown in place of a program's. `comments` are lines for the reader. `resource` are OpenTelemetry's
    attributes of the source.
    """

    kinds: tuple[ValueKind, ...]
    samples: Sequence[StackSample]
    start_ns: int
    end_ns: int
    name: str = ""
    comments: tuple[str, ...] = ()
    resource: tuple[tuple[str, str], ...] = ()
