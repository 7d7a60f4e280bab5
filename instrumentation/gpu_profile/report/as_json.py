"""Values as JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite

Value = None | bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"]


def to_json(value: Value, *, one_line: bool = False) -> str:
    """Valid JSON: NaN and infinities become null. `one_line`: in one line, with sorted keys."""
    if one_line:
        return json.dumps(_finite(value), sort_keys=True, allow_nan=False)
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: Value) -> Value:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return value
