"""pprof's messages, made from the field numbers of its `profile.proto`, and profiles read back from both formats."""

import gzip
from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData

from gpu_profile.report.stacks import SpanLink, StackSample, ValueKind

_INT, _UINT, _BOOL, _TEXT, _MESSAGE = 3, 4, 8, 9, 11
#: By message: its fields with number, type, and the message's name for fields that hold messages. `*`: repeated.
_FIELDS: dict[str, dict[str, tuple[int, int | str]]] = {
    "Profile": {
        "sample_type*": (1, "ValueType"),
        "sample*": (2, "Sample"),
        "mapping*": (3, "Mapping"),
        "location*": (4, "Location"),
        "function*": (5, "Function"),
        "string_table*": (6, _TEXT),
        "time_nanos": (9, _INT),
        "duration_nanos": (10, _INT),
        "comment*": (13, _INT),
        "default_sample_type": (14, _INT),
    },
    "ValueType": {"type": (1, _INT), "unit": (2, _INT)},
    "Sample": {"location_id*": (1, _UINT), "value*": (2, _INT), "label*": (3, "Label")},
    "Label": {"key": (1, _INT), "str": (2, _INT), "num": (3, _INT), "num_unit": (4, _INT)},
    "Mapping": {"id": (1, _UINT), "filename": (5, _INT), "has_functions": (7, _BOOL)},
    "Location": {"id": (1, _UINT), "mapping_id": (2, _UINT), "address": (3, _UINT), "line*": (4, "Line")},
    "Line": {"function_id": (1, _UINT), "line": (2, _INT)},
    "Function": {"id": (1, _UINT), "name": (2, _INT), "system_name": (3, _INT), "filename": (4, _INT)},
}


def _message() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools.profiles", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            one = message.field.add(name=field.rstrip("*"), number=number, label=3 if field.endswith("*") else 1)
            one.type = _MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                one.type_name = f".perftools.profiles.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))


_PprofMessage = _message()


def read_pprof(data: bytes) -> tuple[Any, list[StackSample]]:
    """The message, and its samples. Fails on a reference without a target, a field of no message, or a number twice."""
    profile = _PprofMessage()
    profile.ParseFromString(gzip.decompress(data))
    assert not len(UnknownFieldSet(profile))
    texts = profile.string_table
    assert texts[0] == ""
    assert len(set(texts)) == len(texts)
    names = {each.id: texts[each.name] for each in profile.function}
    mappings = {each.id for each in profile.mapping}
    frames = {each.id: names[each.line[0].function_id] for each in profile.location if each.mapping_id in mappings}
    assert len(frames) == len(profile.location)
    samples = []
    for each in profile.sample:
        labels = {texts[label.key]: texts[label.str] for label in each.label}
        assert len(labels) == len(each.label)
        link = SpanLink(labels.pop("trace_id"), labels.pop("span_id")) if "trace_id" in labels else None
        stack = tuple(frames[number] for number in reversed(each.location_id))
        samples.append(StackSample(stack, tuple(each.value), tuple(labels.items()), link))
    return profile, samples


def read_otlp(data: bytes) -> dict[ValueKind, list[StackSample]]:
    """The samples by kind. Fails if a table has no empty first row, a row twice, or one that nothing refers to."""
    message = ProfilesData()
    message.ParseFromString(data)
    assert not len(UnknownFieldSet(message))
    tables = message.dictionary
    for table in (tables.link_table, tables.stack_table, tables.attribute_table, tables.function_table):
        rows = [each.SerializeToString() for each in table]
        assert rows[0] == b""
        assert len(set(rows)) == len(rows)
    texts = list(tables.string_table)
    assert texts[0] == ""
    assert len(set(texts)) == len(texts)
    used: dict[str, set[int]] = {"stack": set(), "link": set(), "attribute": set()}
    result = {}
    for profile in message.resource_profiles[0].scope_profiles[0].profiles:
        kind = ValueKind(texts[profile.sample_type.type_strindex], texts[profile.sample_type.unit_strindex])
        used["attribute"].update(profile.attribute_indices)
        samples = []
        for each in profile.samples:
            used["stack"].add(each.stack_index)
            used["link"].add(each.link_index)
            used["attribute"].update(each.attribute_indices)
            locations = tables.stack_table[each.stack_index].location_indices
            stack = [
                texts[tables.function_table[tables.location_table[place].lines[0].function_index].name_strindex]
                for place in reversed(locations)
            ]
            rows = [tables.attribute_table[place] for place in each.attribute_indices]
            labels = tuple((texts[row.key_strindex], row.value.string_value) for row in rows)
            target = tables.link_table[each.link_index]
            link = SpanLink(target.trace_id.hex(), target.span_id.hex()) if each.link_index else None
            samples.append(StackSample(tuple(stack), tuple(each.values), labels, link))
        result[kind] = samples
    for name, table in (
        ("stack", tables.stack_table),
        ("link", tables.link_table),
        ("attribute", tables.attribute_table),
    ):
        assert used[name] | {0} == set(range(len(table)))
    return result


def total(samples: Iterable[StackSample], place: int) -> int:
    return sum(each.values[place] for each in samples)
