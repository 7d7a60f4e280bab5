"""Finds other programs that work on an engine's GPUs, from the driver's lists of processes.

A program is a process group: vLLM and SGLang start all of their processes in their own. It works if the driver reports
a utilisation above 1 %. Memory and contexts are no work: workers of tensor parallelism and tokenizers have some on the
first GPU. Programs that work in the same time share the GPU. One alone is the engine if the engine has run iterations
in this time. Without iterations, it is another program unless it was the engine before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gpu_profile.catalogue.samples import ProcessUse
from gpu_profile.clock import Clock
from gpu_profile.sampling.periods import PROCESSES_S
from gpu_profile.sampling.tracked import TrackedDevice
from gpu_profile.units import NS_PER_S, nanoseconds
from gpu_profile_exporter.attribution.processes import Uptime, look_up, require_host_pids
from gpu_profile_exporter.attribution.shares import ROUNDING
from gpu_profile_exporter.attribution.sources import OmissionCounts, Unavailable

_log = logging.getLogger("gpu_profile_exporter")

#: The driver's samples of utilisation cover up to this time before their stamp (`nvmlDeviceGetProcessUtilization`).
SAMPLE_S: Final = 1.0
#: The same for lists of a node's timeline: these are older by up to a period.
TIMELINE_SAMPLE_S: Final = SAMPLE_S + PROCESSES_S + 1.0
#: After this long without a list, energy does not wait for one.
_SILENT_NS: Final = nanoseconds(3 * PROCESSES_S)
#: The server of CUDA's Multi-Process Service: the driver may report the work of its clients, also the engine's, as its.
_MPS_SERVER: Final = "nvidia-cuda-mps"


class SharedTime(NamedTuple):
    """A time in which other programs worked on a GPU, in ns since the epoch."""

    start_ns: int
    end_ns: int


@dataclass(slots=True)
class _Gpu:
    """One GPU's last list: its time, and the number of other programs that worked, with their processes in `others`.
    `reported`: a list has had utilisations. `engine` is the engine's process group, with its processes in `own`."""

    listed_ns: int | None = None
    reported: bool = False
    engine: int | None = None
    own: frozenset[int] = frozenset()
    others: frozenset[int] = frozenset()
    programs: int = 0


class OtherPrograms:
    """Watches the processes on the GPUs of one engine. It claims nothing unless `proc` shows the host's processes.

    `behind_s`: a list covers all work up to this long before its time.
    """

    def __init__(
        self, engine: str, uuids: Iterable[str], clock: Clock, *, behind_s: float = SAMPLE_S, proc: Path = Path("/proc")
    ) -> None:
        self._engine, self._clock, self._behind_ns, self._proc = engine, clock, nanoseconds(behind_s), proc
        self._gpus = {uuid: _Gpu() for uuid in uuids}
        self._warned: frozenset[int] = frozenset()
        try:
            require_host_pids(proc)
        except Unavailable:
            self._gpus = {}

    @property
    def count(self) -> int | None:
        """The other programs that worked on the GPUs by the last lists. None without lists that have utilisations."""
        seen = [gpu for gpu in self._gpus.values() if gpu.reported]
        return sum(gpu.programs for gpu in seen) if seen else None

    def listed_until_ns(self) -> int | None:
        """The time, in ns since the epoch, up to which lists cover all work. None: energy need not wait for lists."""
        now_ns = self._clock.now_ns()
        times = [gpu.listed_ns for gpu in self._gpus.values() if gpu.reported and gpu.listed_ns is not None]
        recent = [listed_ns for listed_ns in times if 0 <= now_ns - listed_ns <= _SILENT_NS]
        return min(recent) - self._behind_ns if recent else None

    def look(self, states: Mapping[str, TrackedDevice], last_iteration_ns: int) -> list[SharedTime]:
        """The times since the last call in which other programs worked. `last_iteration_ns`: the end of the engine's
        last iteration, in ns since the epoch."""
        result = []
        for uuid, gpu in self._gpus.items():
            state = states.get(uuid)
            if state is None or state.processes_ns is None or state.processes_ns == gpu.listed_ns:
                continue
            before_ns, gpu.listed_ns = gpu.listed_ns, state.processes_ns
            gpu.reported |= any(use.utilization is not None for use in state.processes)
            if before_ns is not None and self._renew(gpu, state.processes, last_iteration_ns > before_ns):
                result.append(SharedTime(before_ns - self._behind_ns, gpu.listed_ns))
                self._warn(uuid, gpu.others)
        return result

    def _renew(self, gpu: _Gpu, uses: Sequence[ProcessUse], ran: bool) -> bool:
        """Take a new list. `ran`: the engine has run iterations since the one before. Returns whether others worked."""
        listed = {use.pid for use in uses}
        # The driver lists no process that has ended: one that worked at the last list may have worked until its end.
        ended = bool(gpu.others - listed)
        programs = self._programs({use.pid: use.utilization for use in uses if use.utilization}, gpu.listed_ns or 0)
        if ran and len(programs) == 1:
            (gpu.engine,) = programs
        elif gpu.engine not in programs and not gpu.own & listed:
            gpu.engine = None  # it has ended
        own = programs.pop(gpu.engine, {}) if gpu.engine is not None else {}
        gpu.own = gpu.own & listed | own.keys()
        working = [shares for shares in programs.values() if sum(shares.values()) > ROUNDING]
        # If the engine is not identified, one of them is the engine.
        gpu.programs = len(working) if gpu.engine is not None else max(0, len(working) - 1)
        gpu.others = frozenset(pid for shares in working for pid in shares) if gpu.programs else frozenset()
        return ended or gpu.programs > 0

    def _programs(self, shares: Mapping[int, float], listed_ns: int) -> dict[int, dict[int, float]]:
        """The processes with their utilisations, by process group. Those that have ended are left out."""
        if not shares:
            return {}
        try:
            uptime = Uptime.read(self._proc)
        except Unavailable:
            return {}
        ago_s = (self._clock.now_ns() - listed_ns) / NS_PER_S
        running = look_up(
            shares, proc=self._proc, uptime=uptime, listed_s_ago=ago_s, names=True, tally=OmissionCounts()
        )
        result: dict[int, dict[int, float]] = {}
        for process in running.values():
            if not process.name.startswith(_MPS_SERVER):
                result.setdefault(process.group, {})[process.pid] = shares[process.pid]
        return result

    def _warn(self, uuid: str, pids: frozenset[int]) -> None:
        """Log the processes once."""
        if pids - self._warned:
            self._warned |= pids
            shown = ", ".join(map(str, sorted(pids)[:4]))
            _log.warning(
                "engine %s: programs share GPU %s (pids %s); its energy is nobody's: give each its own GPU",
                self._engine, uuid, shown,
            )  # fmt: skip
