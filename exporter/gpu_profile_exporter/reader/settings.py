"""The start settings of a reader process, sent to the launcher as a request."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from gpu_profile_exporter.reader.observed_driver import OPEN_S

#: Keys of processes, besides a GPU's NVML index. `HOME` reads all GPUs that have no reader of their own, `LISTENER`
#: receives the events of all GPUs, `COUNTER` counts them.
HOME: Final = -1
LISTENER: Final = -2
COUNTER: Final = -3


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """Settings of a reader. By NVML index, it reads the GPU `only`, or all GPUs except those in `leave`."""

    driver: str
    interval_s: float
    groups: tuple[str, ...]
    processes: bool
    out_fd: int
    orders_fd: int
    where_fd: int
    only: int | None = None
    leave: tuple[int, ...] = ()
    #: `LISTENER` or `COUNTER` for a process that does not read. None for a reader.
    other: int | None = None
    #: Time limit of opening a GPU at the start.
    open_s: float = OPEN_S
    #: The directory of the node's timeline, empty for none; the retention of samples; the files' mode and group.
    timeline: str = ""
    retention_s: float = 600.0
    timeline_mode: int = 0o644
    timeline_group: int | None = None

    @property
    def key(self) -> int:
        """The purpose of the process: a GPU's NVML index, `HOME`, `LISTENER` or `COUNTER`."""
        return next((key for key in (self.other, self.only) if key is not None), HOME)

    def text(self) -> str:
        """The settings as the text of a request."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> ReaderSettings:
        """The settings of a request."""
        fields = json.loads(text)
        return cls(**fields | {"groups": tuple(fields["groups"]), "leave": tuple(fields["leave"])})
