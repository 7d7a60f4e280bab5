"""Counts, durations and the newest verdict on each device, for every region of a process."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Ints
from gpu_profile.join.durations import DurationStats
from gpu_profile.join.spinning import Spin
from gpu_profile.join.summary import Durations, Judged, summarise, unfinished
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.solving.region_columns import OTHER
from gpu_profile.regimes import Regime, Thresholds, Verdict, classify
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.regimes.kernel_work import KernelWork, KernelWorks
from gpu_profile.regimes.operation import RegionOperations
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.backlog import EndedExecutions
from gpu_profile.units import NS_PER_S

_log = logging.getLogger("gpu_profile")

#: Regions that are counted by name. Further ones count as `other`: a program may put a request's id into the name.
MOST_NAMES: Final = 1_000
#: The optional values of an execution, and an execution without any.
_EXTRAS: Final = attrgetter("items", "failed", "represents", "operation")
_NO_EXTRAS: Final = None, False, 1, None


class Verdicts:
    """Regions by name. `pools`, by device UUID, give the evidence for their verdicts."""

    def __init__(self, pools: Mapping[str, Pool], thresholds: Thresholds) -> None:
        self.thresholds = thresholds
        self.durations: dict[str, DurationStats] = {}
        #: Executions by region, its regime when they were counted, and device UUID.
        self.calls: Counter[tuple[str, str, str]] = Counter()
        #: Regions with profiled operations.
        self.operations: dict[str, RegionOperations] = {}
        #: Regions with kernels or copies in a profiler's window.
        self.kernels: dict[str, KernelWorks] = {}
        self._pools = pools
        self._uncounted: Counter[tuple[str, str]] = Counter()
        self._sources: dict[str, str] = {}
        self._judged: dict[tuple[str, str], Judged] = {}
        #: Verdicts from kernels or operations until the next `judge`; None: UNKNOWN by them.
        self._profiled: dict[str, Verdict | None] = {}
        #: The evidence on regions that spin now, by region and device UUID.
        self._spins: dict[tuple[str, str], Evidence] = {}

    def take(self, ended: EndedExecutions, where: Mapping[Hashable, Sequence[str]]) -> dict[tuple[str, Hashable], int]:
        """Count executions that have ended. `where`: the device UUIDs for each `Execution.device`.

        Returns the number of executions by name and `device`.
        """
        result: dict[tuple[str, Hashable], int] = {}
        for (region, device), (executions, lengths) in _by_region(ended).items():
            calls = result[region, device] = len(lengths)
            name = region if region in self.durations or len(self.durations) < MOST_NAMES else OTHER
            if name not in self.durations:
                self.durations[name] = DurationStats()
            stats, omitted, special = self.durations[name], 0, False
            stats.add_many(lengths)
            # Nearly always false for executions of their own. A loop over all of them would take twice as long.
            extras = not executions[0].end_ns or list(map(_EXTRAS, executions)).count(_NO_EXTRAS) < calls
            for execution, times in Counter(executions).items() if extras else ():
                if execution.items is not None:
                    stats.add_items(execution.items)
                stats.errors += execution.failed * execution.represents * times
                omitted += (execution.represents - 1) * times
                special = special or execution.represents != 1 or execution.operation is not None
            if special:
                self._take_special(name, executions, lengths.tolist())
            if name in self.operations:
                self.operations[name].whole_ns = stats.total_ns
            self._sources[name] = "host" if executions[-1].stream is None else "device"
            for uuid in where[device] or [""]:
                self._uncounted[name, uuid] += calls + omitted
        return result

    def _take_special(self, name: str, executions: Iterable[Execution], lengths: Iterable[int]) -> None:
        """Count executions that represent several, and profiled operations."""
        for execution, length_ns in zip(executions, lengths, strict=True):
            if execution.represents != 1:
                self.durations[name].add_repeated(length_ns, execution.represents - 1)
            if execution.operation is not None:
                self.operations.setdefault(name, RegionOperations()).add(execution.operation, length_ns)

    def take_kernels(self, region: str, work: KernelWork) -> None:
        """Add the kernels and copies of one execution. `take` counts the execution itself."""
        listed = region in self.durations or region in self.kernels
        full = max(len(self.durations), len(self.kernels)) >= MOST_NAMES
        self.kernels.setdefault(region if listed or not full else OTHER, KernelWorks()).add(work)

    def count_calls(self) -> None:
        """Add the executions taken since the last call to `calls`, under the current regimes."""
        for (region, uuid), calls in self._uncounted.items():
            judged = self._judged.get((region, uuid))
            # A verdict by profilers needs no sampled device.
            verdict = self._by_profilers(region) or (judged.verdict if judged else None)
            self.calls[region, str(verdict.regime if verdict else Regime.UNKNOWN), uuid] += calls
        self._uncounted.clear()

    def judge(self, devices: Iterable[str]) -> None:
        """Judge every region on each of the devices anew."""
        self._profiled.clear()
        for uuid in devices:
            pool = self._pools.get(uuid)
            for region in pool.regions if pool is not None else ():
                self._judge(region, uuid)

    def lacks(self, region: str, device: str) -> bool:
        """Whether a region has no verdict on a device where it can have one. From any thread."""
        pool, key = self._pools.get(device), (region, device)
        if pool is None or key in self._judged:
            return False
        return key in self._spins or (region in self.durations and region in pool.regions)

    def judge_first(self, region: str, device: str) -> None:
        """Judge a region on a device where it has no verdict yet."""
        if (region, device) not in self._judged:
            self._judge(region, device)

    def judge_spinning(self, region: str, device: str, spin: Spin | None) -> None:
        """Judge a region whose device begins to spin, by that evidence until it ends: then with None."""
        if spin is None:
            self._spins.pop((region, device), None)
        else:
            self._spins[region, device] = Evidence(
                spin.basis, {**spin.evidence, "stalled": 1.0}, self.thresholds.least_n, 1.0
            )
        self._judge(region, device)

    def _judge(self, region: str, device: str) -> None:
        pool, spinning = self._pools.get(device), self._spins.get((region, device))
        if pool is None:
            return
        if region not in self.durations or region not in pool.regions:  # no execution has ended
            self._judged.pop((region, device), None)
            if spinning is not None:
                summary = unfinished(region, pool.timeline.device, spinning)
                self._judged[region, device] = Judged(summary, classify(spinning, self.thresholds))
            return
        durations, source = self._durations(region), self._sources.get(region, "host")
        summary = summarise(pool, region, durations, interval_source=source)
        before = self._judged.get((region, device))
        if summary.contradiction and not (before and before.summary.contradiction):
            _log.warning("region %s on %s: %s", region, device, summary.contradiction)
        if spinning is not None:
            verdict = classify(spinning, self.thresholds)
        else:
            verdict = self._by_profilers(region) or classify(summary.evidence, self.thresholds)
        self._judged[region, device] = Judged(summary, verdict)

    def _by_profilers(self, region: str) -> Verdict | None:
        """The verdict by a region's kernels, else by its operations, for all devices; None if both are UNKNOWN."""
        profiles = [each for each in (self.kernels.get(region), self.operations.get(region)) if each is not None]
        if profiles and region not in self._profiled:
            verdicts = (classify(each.evidence(), self.thresholds) for each in profiles)
            self._profiled[region] = next((v for v in verdicts if v.regime is not Regime.UNKNOWN), None)
        return self._profiled.get(region)

    def _durations(self, region: str) -> Durations:
        stats = self.durations[region]
        total_s, max_s, q = stats.total_ns / NS_PER_S, stats.max_ns / NS_PER_S, stats.quantile_s
        return Durations(stats.calls, stats.errors, stats.items, total_s, q(0.5), q(0.95), max_s)

    def newest(self, region: str, device: str) -> Judged | None:
        """The newest verdict on a region on one device; None before the first."""
        return self._judged.get((region, device))

    def every(self) -> list[Judged]:
        """The newest verdict on every region on every device that it ran on, in order of first appearance."""
        return list(self._judged.values())


def _by_region(ended: EndedExecutions) -> dict[tuple[str, Hashable], tuple[Sequence[Execution], Ints]]:
    """The rows by the name and the `device` of their executions, with their lengths in ns."""
    executions, lengths = ended.executions, ended.ends - ended.starts
    if executions and not executions[0].end_ns:  # as of executions that rows share
        return _shared_by_region(executions, lengths)
    groups: dict[tuple[str, Hashable], tuple[list[Execution], list[int]]] = {}
    for execution, length_ns in zip(executions, lengths.tolist(), strict=True):
        key = execution.name, execution.device
        group = groups.get(key)
        if group is None:
            group = groups[key] = [], []
        group[0].append(execution)
        group[1].append(length_ns)
    return {key: (members, np.array(own, np.int64)) for key, (members, own) in groups.items()}


def _shared_by_region(
    executions: Sequence[Execution], lengths: Ints
) -> dict[tuple[str, Hashable], tuple[Sequence[Execution], Ints]]:
    """The same for rows that share few executions: without a loop over the rows."""
    keys: dict[tuple[str, Hashable], int] = {}
    numbers = {each: keys.setdefault((each.name, each.device), len(keys)) for each in dict.fromkeys(executions)}
    if len(keys) == 1:
        return dict.fromkeys(keys, (executions, lengths))
    which = np.fromiter(map(numbers.__getitem__, executions), np.int64, len(executions))
    order = np.argsort(which, kind="stable")
    parts = np.split(order, np.searchsorted(which[order], np.arange(1, len(keys))))
    return {key: ([executions[i] for i in rows.tolist()], lengths[rows]) for key, rows in zip(keys, parts, strict=True)}
