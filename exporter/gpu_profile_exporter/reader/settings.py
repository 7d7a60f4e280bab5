"""What a reader process is started with: a request to the launcher."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from gpu_profile_exporter.reader.marked import OPEN_S

#: Instead of a GPU's NVML index: all GPUs that have no reader of their own, the events of all, and how many there are.
HOME: Final = -1
LISTENER: Final = -2
COUNTER: Final = -3


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """What a reader is told: of the GPUs by NVML index, it reads `only` one, or all but those in `leave`."""

    driver: str
    interval_s: float
    groups: tuple[str, ...]
    processes: bool
    out_fd: int
    orders_fd: int
    where_fd: int
    only: int | None = None
    leave: tuple[int, ...] = ()
    #: What it does instead of reading: `LISTENER` or `COUNTER`.
    other: int | None = None
    #: What opening a GPU may take at the start.
    open_s: float = OPEN_S
    #: Where the node's timeline is; empty for none. For how long samples are kept, and who may read them.
    timeline: str = ""
    retention_s: float = 600.0
    timeline_mode: int = 0o644
    timeline_group: int | None = None

    @property
    def key(self) -> int:
        """What it is for: a GPU by its NVML index, or `HOME`, `LISTENER`, `COUNTER`."""
        return next((key for key in (self.other, self.only) if key is not None), HOME)

    def text(self) -> str:
        """As a request."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> ReaderSettings:
        """From a request."""
        found = json.loads(text)
        return cls(**found | {"groups": tuple(found["groups"]), "leave": tuple(found["leave"])})
