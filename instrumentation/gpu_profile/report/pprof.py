"""A profile in the format of pprof: `go tool pprof`, Pyroscope, Speedscope and others open it.

Field numbers are those of `proto/profile.proto` of https://github.com/google/pprof. Its integers are packed.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from typing import Final

from gpu_profile.protobuf import message, number, string, varint
from gpu_profile.report.stacks import StackProfile, StackSample

_MAPPING: Final = 1


def pprof(profile: StackProfile) -> bytes:
    """The profile, compressed by gzip. Equal profiles give equal bytes. The first kind is shown by default."""
    return gzip.compress(_PprofTables().profile(profile), mtime=0)


def packed(field: int, values: Iterable[int]) -> bytes:
    """Repeated integers in one field."""
    return message(field, *map(varint, values))


class _PprofTables:
    """Texts and locations, each written once. A frame is a location with one function of the same number."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {"": 0}
        self._frames: dict[str, int] = {}

    def text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def frame(self, name: str) -> int:
        return self._frames.setdefault(name, len(self._frames) + 1)

    def profile(self, profile: StackProfile) -> bytes:
        kinds = [
            message(1, number(1, self.text(each.name)) + number(2, self.text(each.unit))) for each in profile.kinds
        ]
        samples = [self._sample(each) for each in profile.samples]
        # pprof looks for a program's file unless a mapping says that its functions have names.
        mapping = message(3, number(1, _MAPPING) + number(5, self.text(profile.name)) + number(7, 1))
        locations = [
            message(4, number(1, i) + number(2, _MAPPING) + message(4, number(1, i))) for i in self._frames.values()
        ]
        functions = [message(5, number(1, i) + number(2, self.text(name))) for name, i in self._frames.items()]
        rest = [
            number(9, profile.start_ns),
            number(10, profile.end_ns - profile.start_ns),
            packed(13, map(self.text, profile.comments)),
            number(14, self.text(profile.kinds[0].name)) if profile.kinds else b"",
        ]
        return b"".join(
            [*kinds, *samples, mapping, *locations, *functions, *rest, *(string(6, each) for each in self._texts)]
        )

    def _sample(self, sample: StackSample) -> bytes:
        labels = [*sample.labels]
        if sample.link is not None:
            labels += [("trace_id", sample.link.trace_id), ("span_id", sample.link.span_id)]
        return message(
            2,
            packed(1, map(self.frame, reversed(sample.stack))),
            packed(2, sample.values),
            *(message(3, number(1, self.text(key)) + number(2, self.text(text))) for key, text in labels),
        )
