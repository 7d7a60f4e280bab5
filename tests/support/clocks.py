"""Jobs of ranks on nodes with wrong clocks: every time is known by a true clock and by the node's."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gpu_profile.analysis.clocks.meetings import Meetings
from gpu_profile.recording import ProcessInfo, Recording, SpanRecord
from support.analysis import T0

MS = 1_000_000.0


@dataclass
class ClockJob:
    """Ranks compute, then meet in a collective. Offsets are in ms and by node, drifts in ppm, times in ms."""

    offsets_ms: list[float]
    per_node: int = 2
    steps: int = 120
    drifts_ppm: list[float] = field(default_factory=list)
    compute_ms: float = 180.0
    jitter_ms: float = 6.0
    collective_ms: float = 4.0
    exit_ms: float = 0.1
    straggler: int | None = None
    straggles_ms: float = 60.0
    synchronous: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        drawn = np.random.default_rng(self.seed)
        ranks, steps = self.per_node * len(self.offsets_ms), self.steps
        self.clocks = np.repeat(np.arange(len(self.offsets_ms)), self.per_node)
        work = self.compute_ms + self.jitter_ms * drawn.gamma(1.0, 1.0, (ranks, steps))
        if self.straggler is not None:
            work[self.straggler] += self.straggles_ms
        leaves = self.exit_ms * drawn.gamma(1.0, 1.0, (ranks, steps))
        self.starts, self.entries, self.exits = (np.empty((ranks, steps)) for _ in range(3))
        at = np.zeros(ranks)
        for step in range(steps):
            self.starts[:, step] = at
            self.entries[:, step] = at + work[:, step]
            last = self.entries[:, step].max() if self.synchronous else self.entries[:, step]
            lasts = self.collective_ms * (1 + 0.1 * drawn.standard_normal())
            at = self.exits[:, step] = last + abs(lasts) + leaves[:, step]

    def by_node(self, times_ms: np.ndarray) -> np.ndarray:
        """True times [R, K] by the ranks' clocks, in ns."""
        drifts = np.array(self.drifts_ppm or [0.0] * len(self.offsets_ms)) * 1e-6
        return np.asarray(
            (times_ms * (1 + drifts[self.clocks, None]) + np.array(self.offsets_ms)[self.clocks, None]) * MS
        )

    @property
    def base_ns(self) -> int:
        """The time by the first node's clock at which recordings begin."""
        return T0

    def meetings(self) -> Meetings:
        """The collectives."""
        ranks = np.arange(len(self.clocks))
        return Meetings("all-reduce", ranks, self.clocks, self.by_node(self.entries), self.by_node(self.exits))

    def ahead_ms(self, node: int, at_ns: float) -> float:
        """How far a node's clock is ahead of the first node's, at a time by the first node's clock."""
        drifts = np.array(self.drifts_ppm or [0.0] * len(self.offsets_ms)) * 1e-6
        true_ms = (at_ns / MS - self.offsets_ms[0]) / (1 + drifts[0])
        return float(self.offsets_ms[node] - self.offsets_ms[0] + true_ms * (drifts[node] - drifts[0]))

    def recording(
        self,
        regions: Sequence[str] = ("step", "compute", "all-reduce"),
        *,
        kept: dict[int, slice] | None = None,
        first_pid: int = 100,
    ) -> Recording:
        """What the ranks record, by the nodes' clocks. `kept` are the steps that a rank's recording has."""
        starts, entries, exits = (self.by_node(each).round().astype(np.int64) + T0 for each in self._edges())
        edges = {"step": (starts, exits), "compute": (starts, entries), "all-reduce": (entries, exits)}
        spans, processes = list[SpanRecord](), list[ProcessInfo]()
        for rank, node in enumerate(self.clocks.tolist()):
            own = (kept or {}).get(rank, slice(None))
            ended = int(exits[rank, own][-1]) + 1
            processes.append(
                ProcessInfo(
                    "0.1.0", f"node-{node}", first_pid + rank, int(starts[rank, own][0]), "nvml", "580.1", ended,
                    rank=rank, local_rank=rank % self.per_node, world_size=len(self.clocks),
                )
            )  # fmt: skip
            for region in regions:
                begins, ends = (each[rank, own].tolist() for each in edges[region])
                spans += [
                    SpanRecord(region, begin, end, id=f"{region}-{first_pid + rank}-{step}", rank=rank, process=rank)
                    for step, (begin, end) in enumerate(zip(begins, ends, strict=True))
                ]
        return Recording(tuple(processes), (), {}, tuple(spans), (), ())

    def _edges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.starts, self.entries, self.exits

    def inspector(self, folder: Path, version: str = "v4.3", first_pid: int = 100) -> Path:
        """What NCCL Inspector writes for each rank in verbose mode: a kernel runs from entry to exit."""
        folder.mkdir(exist_ok=True)
        entries, exits = (self.by_node(each).round().astype(np.int64) + T0 for each in (self.entries, self.exits))
        for rank, node in enumerate(self.clocks.tolist()):
            whose = {
                "header": {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": len(self.clocks), "nnodes": 2},
                "metadata": {
                    "inspector_output_format_version": version, "git_rev": "", "dump_timestamp_us": 1,
                    "rec_mechanism": "nccl_profiler_interface", "hostname": f"node-{node}", "pid": first_pid + rank,
                },
            }  # fmt: skip
            lines = [] if version == "v4.0" else [whose | {"dump_stats": {"coll_records": self.steps}}]
            for step, (start, end) in enumerate(zip(entries[rank].tolist(), exits[rank].tolist(), strict=True)):
                kernel = {"channel_id": 0, "kernel_start_ts": start // 1000, "kernel_stop_ts": end // 1000}
                perf = {
                    "coll": "AllReduce", "coll_sn": step, "coll_msg_size_bytes": 1 << 20, "coll_exec_time_us": 4000,
                    "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 277.2, "coll_busbw_gbs": 485.1,
                    "event_trace_ts": {
                        "coll_start_ts": start // 1000 + 3, "coll_stop_ts": start // 1000, "kernel_events": [kernel],
                    },
                }  # fmt: skip
                lines.append(({} if version == "v4.3" else whose) | {"coll_perf": perf})
            path = folder / f"node-{node}-pid{first_pid + rank}.log"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder
