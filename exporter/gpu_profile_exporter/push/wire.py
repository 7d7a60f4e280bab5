"""What OTLP's messages have in common: values and attributes, written as protocol buffers.

Points that were encoded once are bytes that the next push copies.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_profile.protobuf import double, fields, fixed64, head, message, number, string, varint

__all__ = ["attribute", "double", "fields", "fixed64", "head", "message", "number", "string", "value", "varint"]


def value(field: int, content: str | int | float | Iterable[str]) -> bytes:
    """OTLP's AnyValue: text, a whole number, a float or a list of texts."""
    match content:
        case str():
            inner = string(1, content)
        case int():
            inner = number(3, content)
        case float():
            inner = double(4, content)
        case _:
            inner = message(5, *(value(1, one) for one in content))
    return message(field, inner)


def attribute(field: int, key: str, content: str | int | float | Iterable[str]) -> bytes:
    """OTLP's KeyValue."""
    return message(field, string(1, key), value(2, content))
