"""The public names of the library, with their parameters, as lines of text.

`PYTHONPATH=instrumentation:tests python tests/support/public_api.py` writes tests/golden/public_api.txt anew.
"""

import importlib
import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Final

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "public_api.txt"
#: The packages of docs/api.md. It lists others whose names may still change.
PUBLIC: Final = ("gpu_profile", "gpu_profile.errors", "gpu_profile.kernels", "gpu_profile.roofline")


def public_api() -> str:
    """A line for each name and each member of a class. Annotations and the values of defaults are left out."""
    return "".join(f"{line}\n" for name in PUBLIC for line in _module(importlib.import_module(name)))


def _module(module: ModuleType) -> Iterator[str]:
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]
    for name in sorted(names):
        value = getattr(module, name)
        path = f"{module.__name__}.{name}"
        yield path + (_parameters(value) if _is_ours(value) else "")
        if inspect.isclass(value):
            yield from (f"{path}.{member}" for member in _members(value))


def _is_ours(value: object) -> bool:
    """Whether the parameters are written in this code, not made by the standard library of one version of Python."""
    if not inspect.isclass(value):
        return callable(value)
    makers = ("__init__", "__new__")
    own = [each for each in value.__mro__ if each.__module__.startswith("gpu_profile")]
    return not issubclass(value, Enum) and any(maker in vars(each) for each in own for maker in makers)


def _members(value: type) -> list[str]:
    if issubclass(value, Enum):
        return [member.name for member in value]
    ours = [vars(each) for each in value.__mro__ if each.__module__.startswith("gpu_profile")]
    members = {name: each.get(name) for each in ours for name in [*each.get("__annotations__", {}), *each]}
    return sorted(
        name + (_parameters(member) if callable(member) else "")
        for name, member in members.items()
        if not name.startswith("_")
    )


def _parameters(value: object) -> str:
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    shown = [
        each.replace(annotation=inspect.Parameter.empty, default=... if each.default is not each.empty else each.empty)
        for each in signature.parameters.values()
    ]
    bare = signature.replace(parameters=shown, return_annotation=signature.empty)
    return str(bare).replace("Ellipsis", "...")


if __name__ == "__main__":
    GOLDEN.write_text(public_api(), encoding="utf-8")
