"""A profile as OTLP's signal of profiles, `opentelemetry.proto.profiles.v1development`.

The message is `ProfilesData`. A request to a receiver's `/v1development/profiles` has the same fields. Field numbers
are those of opentelemetry-proto 1.9. They may change, as the signal is in development. Each kind of value is a profile
of its own, and all share one dictionary. The first row of each of its tables is empty and means "none".
"""

from __future__ import annotations

from gpu_profile.protobuf import fixed64, message, number, string
from gpu_profile.report.pprof import packed
from gpu_profile.report.stacks import SpanLink, StackProfile, StackSample

#: The attribute of OpenTelemetry's conventions for a profile's comments.
_COMMENT = "pprof.profile.comment"


def otlp_profiles(profile: StackProfile, *, version: str = "") -> bytes:
    """The profile as one `ProfilesData`. `version`: the version of gpu-profile."""
    tables = _Dictionary()
    samples = [tables.sample(each) for each in profile.samples]
    remarks = [] if not profile.comments else [tables.attribute(_COMMENT, _texts(profile.comments))]
    profiles = []
    for place, kind in enumerate(profile.kinds):
        values = [each.values[place] for each in profile.samples]
        profiles.append(
            message(
                2,
                message(1, number(1, tables.text(kind.name)) + number(2, tables.text(kind.unit))),
                *(message(2, row, packed(4, [value])) for row, value in zip(samples, values, strict=True) if value),
                fixed64(3, profile.start_ns),
                number(4, profile.end_ns - profile.start_ns),
                packed(11, remarks),
            )
        )
    resource = [message(1, string(1, key) + message(2, string(1, text))) for key, text in profile.resource]
    scope = message(1, string(1, "gpu_profile") + string(2, version))
    return message(1, message(1, *resource), message(2, scope, *profiles)) + message(2, tables.content())


def _texts(values: tuple[str, ...]) -> bytes:
    """An `AnyValue` with an array of texts."""
    return message(5, *(message(1, string(1, each)) for each in values))


class _Dictionary:
    """The tables that samples refer to by index. A frame's location and function have the same index."""

    def __init__(self) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._frames: dict[str, int] = {"": 0}
        self._stacks: dict[tuple[str, ...], int] = {(): 0}
        self._attributes: dict[tuple[int, bytes], int] = {(0, b""): 0}
        self._links: dict[SpanLink | None, int] = {None: 0}

    def text(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def attribute(self, key: str, value: bytes) -> int:
        """`value`: an encoded `AnyValue`."""
        return self._attributes.setdefault((self.text(key), value), len(self._attributes))

    def sample(self, sample: StackSample) -> bytes:
        """The fields of a sample that do not depend on the kind of value."""
        stack = self._stacks.setdefault(sample.stack, len(self._stacks))
        link = self._links.setdefault(sample.link, len(self._links))
        attributes = [self.attribute(key, string(1, text)) for key, text in sample.labels]
        parts = [number(1, stack), packed(2, attributes) if attributes else b"", number(3, link) if link else b""]
        return b"".join(parts)

    def content(self) -> bytes:
        for stack in self._stacks:
            for frame in stack:
                self._frames.setdefault(frame, len(self._frames))
        stacks = [
            packed(1, (self._frames[frame] for frame in reversed(each))) if each else b"" for each in self._stacks
        ]
        locations = [message(3, number(1, i)) if i else b"" for i in self._frames.values()]
        functions = [number(1, self.text(name)) if name else b"" for name in self._frames]
        links = [
            b"" if each is None else message(1, bytes.fromhex(each.trace_id)) + message(2, bytes.fromhex(each.span_id))
            for each in self._links
        ]
        attributes = [number(1, key) + message(2, value) if key else b"" for key, value in self._attributes]
        return b"".join(
            message(field, row)
            for field, table in ((1, [b""]), (2, locations), (3, functions), (4, links))
            for row in table
        ) + b"".join(
            [
                *(string(5, each) for each in self._strings),
                *(message(6, each) for each in attributes),
                *(message(7, each) for each in stacks),
            ]
        )
