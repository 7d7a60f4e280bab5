"""Dotted names that pages mention, as the objects that they name."""

import dataclasses
import importlib
import importlib.util
from typing import Final

#: Stands for the field of a dataclass that has no default, and for a module whose own needs are missing.
EXISTS: Final = object()


def resolve(name: str) -> object:
    """The object, or `EXISTS`. LookupError for a name that does not exist."""
    parts = name.split(".")
    found: object = importlib.import_module(parts[0])
    for number, part in enumerate(parts[1:], start=2):
        module = ".".join(parts[:number])
        if hasattr(found, part):
            found = getattr(found, part)
        elif isinstance(found, type) and part in {field.name for field in _fields(found)}:
            return EXISTS
        elif isinstance(found, type) or _missing(module):
            raise LookupError(name)
        else:
            try:
                found = importlib.import_module(module)
            except ImportError:  # the module exists; what it needs, such as PyTorch, does not
                return EXISTS
    return found


def _fields(kind: type) -> tuple["dataclasses.Field[object]", ...]:
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


def _missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:
        return True
