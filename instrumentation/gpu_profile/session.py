"""The join at work in a process: a sampler, a pool per device, and the executions between the two.

Regions hand executions over and go on. A thread of the session's own waits for the samples that cover them, pools
them, judges regimes, and lets go of the spans that `spans` held back. Nothing here runs in the caller's thread except
appending to a queue.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver import Driver
from gpu_profile.durations import DurationStats
from gpu_profile.executions import Execution
from gpu_profile.pooling import Pool
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Regime, Thresholds, Verdict, classify
from gpu_profile.sampler import Sampler, Sink
from gpu_profile.samples import Device, DeviceKind
from gpu_profile.summary import Durations, RegionSummary, summarise
from gpu_profile.units import NS_PER_S, nanoseconds

_log = logging.getLogger("gpu_profile")

#: A span, or a slice of time, waits at most this long for samples; then what is there must do.
DEADLINE_S: Final = 1.0
#: How often ended executions are looked at.
STEP_S: Final = 0.1
#: How often verdicts are renewed: they cost a fit per signal.
JUDGE_S: Final = 1.0
#: Sampling stops after this long without a region.
IDLE_S: Final = 30.0
#: Executions that may wait for the join. Beyond, the oldest are counted in calls and durations only.
MOST_PENDING: Final = 200_000


class Judged(NamedTuple):
    """A region on one device, with the verdict on it."""

    summary: RegionSummary
    verdict: Verdict


class Session:
    """Everything between a driver and the regions of one process.

    `devices` are UUIDs; None means the devices that the process would use by default (`default_devices`).
    """

    def __init__(
        self,
        open_driver: Callable[[], Driver],
        *,
        interval_s: float = 0.05,
        retention_s: float = 600.0,
        devices: Iterable[str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
        sinks: Iterable[Sink] = (),
    ) -> None:
        self.clock = clock
        self.thresholds = thresholds
        self.sampler = Sampler(
            open_driver, interval_s=interval_s, retention_s=retention_s, wanted=devices, clock=clock, sinks=sinks
        )
        self.pools: dict[str, Pool] = {}
        self.open: dict[Execution, None] = {}
        self.ended: deque[Execution] = deque()
        #: Executions by the id of their span, for whoever holds spans back.
        self.executions: dict[int, Execution] = {}
        self.durations: dict[str, DurationStats] = {}
        self.calls: Counter[tuple[str, str, str]] = Counter()
        self.counts: Counter[str] = Counter()
        self.on_step: list[Callable[[bool], None]] = []
        self.on_end: list[Callable[[Execution], None]] = []
        self.on_settled: list[Callable[[Execution], None]] = []
        self.on_stop: list[Callable[[], None]] = []
        self._named = devices is not None
        self._settling: list[Execution] = []
        self._uncounted: Counter[tuple[str, str]] = Counter()
        self._sources: dict[str, str] = {}
        self._judged: dict[tuple[str, str], Judged] = {}
        self._judged_ns = 0
        self._last_region_ns = clock.now_ns()
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start sampling and joining in threads of their own; returns at once."""
        self._stop.clear()
        self._last_region_ns = self.clock.now_ns()
        self.sampler.start()
        self._thread = threading.Thread(target=self._run, name="gpu-profile-join", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the session's threads are alive."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Take a last sample, join what is left, and end both threads."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)
        self.flush()
        self.sampler.stop()
        left, self._settling = self._settling, []
        for execution in left:
            for hook in self.on_settled:
                hook(execution)
        for stopped in self.on_stop:
            stopped()

    def _run(self) -> None:
        while not self.clock.wait(self._stop, STEP_S):
            try:
                self.settle()
            except Exception:  # noqa: BLE001 - a defect of ours must not end the joining of the host's spans
                self.counts["internal errors"] += 1
                _log.exception("gpu-profile: the join failed; it goes on")
            if self.idle:
                self._thread = None
                self.stop()
                return

    @property
    def idle(self) -> bool:
        """Whether no region has run for `IDLE_S`."""
        return not self.open and self.clock.now_ns() - self._last_region_ns > IDLE_S * NS_PER_S

    def devices(self) -> list[Device]:
        """The devices that regions are joined with."""
        known = [state.device for state in list(self.sampler.states.values())]
        if self._named or not known:
            return known
        # A CUDA process that says nothing uses ordinal 0.
        return [next((d for d in known if d.kind is DeviceKind.GPU), known[0])]

    @property
    def holds_spans(self) -> bool:
        """Whether anybody waits for steps, and so wants to find executions by their spans."""
        return bool(self.on_step)

    # ------------------------------------------------------------------ the join

    def flush(self, timeout_s: float = DEADLINE_S) -> None:
        """Take a last sample and join everything that has ended, whether covered or not."""
        self.sampler.flush(timeout_s)
        self.settle(final=True)

    def settle(self, *, final: bool = False) -> None:
        """Advance every pool to what samples cover, and pass the step on to whoever waits for it."""
        with self._lock:
            now = self.clock.now_ns()
            self._collect()
            devices = self.devices()
            frontier = now
            for device in devices:
                pool = self._pool(device, now)
                if pool is not None:
                    frontier = min(frontier, self._advance(pool, device, now, final=final))
            still: list[Execution] = []
            for execution in self._settling:
                if self._settled(execution, frontier, now):
                    for hook in self.on_settled:
                        hook(execution)
                else:
                    still.append(execution)
            self._settling = still[-MOST_PENDING:]
            self.counts["executions left out"] += len(still) - len(self._settling)
            if final or now - self._judged_ns >= JUDGE_S * NS_PER_S:
                self._judge(devices, now)
            self._count_calls()
            for step in self.on_step:
                step(final)

    def _collect(self) -> None:
        while self.ended:
            execution = self.ended.popleft()
            self._last_region_ns = max(self._last_region_ns, execution.end_ns)
            stats = self.durations.get(execution.name)
            if stats is None:
                stats = self.durations[execution.name] = DurationStats()
            stats.add(execution.end_ns - execution.start_ns, items=execution.items, failed=execution.failed)
            self._sources[execution.name] = "host" if execution.stream is None else "device"
            self._settling.append(execution)
            uuid = execution.stream.device_uuid if execution.stream is not None else execution.device
            for device in [uuid] if uuid is not None else [d.uuid for d in self.devices()] or [""]:
                self._uncounted[execution.name, device] += 1
                if device in self.pools:
                    self.pools[device].count(execution.name)
            for hook in self.on_end:
                hook(execution)

    def _pool(self, device: Device, now: int) -> Pool | None:
        pool = self.pools.get(device.uuid)
        timeline = self.sampler.timeline(device.uuid)
        if pool is None and timeline is not None:
            start = min((e.start_ns for e in [*self.open, *self._settling]), default=now)
            pool = Pool(timeline, start_ns=start)
            self.pools[device.uuid] = pool
            for execution in self._settling:
                if execution.activity(device.uuid) is not None:
                    pool.count(execution.name)
        return pool

    def _advance(self, pool: Pool, device: Device, now: int, *, final: bool) -> int:
        mark = pool.timeline.watermark_ns(pool.joined)
        until = max(now if mark is None else mark, now - nanoseconds(DEADLINE_S))
        executions = [*self._settling, *list(self.open)]
        activities = [a for e in executions if (a := e.activity(device.uuid)) is not None]
        pool.advance([a for a in activities if a.end_ns is None or a.end_ns > pool.frontier_ns], until, final=final)
        return pool.frontier_ns

    def covered(self, execution: Execution) -> bool:
        """Whether every pool has taken in all of an execution that has ended."""
        interval = execution.interval()
        return interval is not None and all(p.frontier_ns >= interval.end_ns for p in list(self.pools.values()))

    def _settled(self, execution: Execution, frontier: int, now: int) -> bool:
        interval = execution.interval()
        if interval is None:
            return now - execution.end_ns > 60 * NS_PER_S  # its stream has died, or nobody resolves its marks
        return interval.end_ns <= frontier

    # ------------------------------------------------------------------ answers

    def _judge(self, devices: list[Device], now: int) -> None:
        self._judged_ns = now
        for device in devices:
            pool = self.pools.get(device.uuid)
            for region in self.durations if pool is not None else ():
                if pool is not None and region in pool.regions:
                    source = self._sources.get(region, "host")
                    summary = summarise(pool, region, self._durations(region), interval_source=source)
                    verdict = classify(summary.evidence, self.thresholds)
                    self._judged[region, device.uuid] = Judged(summary, verdict)

    def _durations(self, region: str) -> Durations:
        stats = self.durations[region]
        return Durations(
            calls=stats.calls,
            errors=stats.errors,
            items=stats.items,
            total_s=stats.total_ns / NS_PER_S,
            p50_s=stats.quantile_s(0.5),
            p95_s=stats.quantile_s(0.95),
            max_s=stats.max_ns / NS_PER_S,
        )

    def _count_calls(self) -> None:
        for (region, uuid), calls in self._uncounted.items():
            judged = self._judged.get((region, uuid))
            regime = judged.verdict.regime if judged is not None else Regime.UNKNOWN
            self.calls[region, str(regime), uuid] += calls
        self._uncounted.clear()

    def verdict(self, region: str, device: str) -> Judged | None:
        """The newest verdict on a region on one device."""
        return self._judged.get((region, device))

    def regions(self) -> list[Judged]:
        """Every region on every device that it ran on, judged now, in order of first appearance."""
        with self._lock:
            self._judge(self.devices(), self.clock.now_ns())
            return list(self._judged.values())
