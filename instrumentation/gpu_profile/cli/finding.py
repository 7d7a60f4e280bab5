"""The findings of `gpu-profile doctor`: a line for each check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

#: The remedy for a missing driver.
NO_DRIVER: Final = "install the NVIDIA driver, or start the container with its GPUs (--gpus all)"


class FindingState(StrEnum):
    """The weight of a finding. `fails`: a GPU or its numbers cannot be used. `missing`: an optional part is absent."""

    OK = "ok"
    MISSING = "missing"
    FAILS = "fails"
    INFO = "-"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: the subject of the check, the result, and the remedy if there is a problem.

    `data` has the same for programs, in JSON's types.
    """

    subject: str
    state: FindingState
    text: str
    to_do: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


#: A check may take any time. It must not import a framework or create a CUDA context.
Check = Callable[[], Iterator[Finding]]
