"""What `gpu-profile doctor` finds: a line for each thing that it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

#: What helps where there is no driver.
NO_DRIVER: Final = "install the NVIDIA driver, or start the container with its GPUs (--gpus all)"


class FindingState(StrEnum):
    """How a finding is meant: `fails` is what keeps GPUs from being read, `missing` is what some may want."""

    OK = "ok"
    MISSING = "missing"
    FAILS = "fails"
    INFO = "-"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what was found there, and what to do if it is not as it should be.

    `data` is the same for programs, in JSON's types.
    """

    subject: str
    state: FindingState
    found: str
    to_do: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


#: A check may take as long as it likes, imports no framework and makes no CUDA context.
Check = Callable[[], Iterator[Finding]]
