"""The join at work in a process: a sampler, a pool per device, and the executions between the two.

Regions hand executions over and go on. A thread of the session's own waits for the samples that cover them, pools
them, judges regimes, and lets go of the spans that `spans` held back. Nothing here runs in the caller's thread except
appending to a queue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final

from gpu_profile.activities import Activity
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver import Driver
from gpu_profile.executions import Execution
from gpu_profile.pooling import Pool
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Judged, Thresholds
from gpu_profile.sampler import Sampler, Sink
from gpu_profile.samples import Device, DeviceKind
from gpu_profile.streams import Stream
from gpu_profile.timeline import Timeline
from gpu_profile.units import NS_PER_S, nanoseconds
from gpu_profile.verdicts import Verdicts

_log = logging.getLogger("gpu_profile")

#: A span, or a slice of time, waits at most this long for samples; then what is there must do.
DEADLINE_S: Final = 1.0
#: How often ended executions are looked at.
STEP_S: Final = 0.1
#: Pools take time in by slices of at least this length.
SLICE_S: Final = 0.5
#: How often verdicts are renewed: they cost a fit per signal.
JUDGE_S: Final = 1.0
#: Sampling stops after this long without a region.
IDLE_S: Final = 30.0
#: A stream that has not passed an execution's marks after this long has died, or nobody resolves its marks.
STREAM_S: Final = 60.0
#: Who asks whether there is a driver waits at most this long for the first answer.
DRIVER_S: Final = 10.0
#: Executions that may wait for the join. Beyond, the oldest are counted in calls and durations only.
MOST_PENDING: Final = 200_000
#: Executions that begin inside one another, each outliving the one before it, hold on to at most this many.
MOST_DEEP: Final = 1_000


class Session:
    """Everything between a driver and the regions of one process.

    `devices` are UUIDs; None means the device that the process would use by default.
    """

    def __init__(
        self,
        open_driver: Callable[[], Driver],
        *,
        interval_s: float = 0.05,
        retention_s: float = 600.0,
        devices: Iterable[str] | None = None,
        stream: Stream | Callable[[], Stream] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
        sinks: Iterable[Sink] = (),
    ) -> None:
        self.clock = clock
        #: The clock as regions call it: without a Python frame where it is the system's.
        self.now_ns = time.time_ns if clock is SYSTEM_CLOCK else clock.now_ns
        #: Whose marks give device intervals.
        self.stream = stream
        self.sampler = Sampler(
            open_driver, interval_s=interval_s, retention_s=retention_s, wanted=devices, clock=clock, sinks=sinks
        )
        self.pools: dict[str, Pool] = {}
        self.verdicts = Verdicts(self.pools, thresholds)
        #: Executions as they begin; the join watches them until they have ended.
        self.began: deque[Execution] = deque()
        #: Whether regions can just go on: the session runs, or ignores them. Whoever drives it by hand sets it.
        self.active = False
        #: Whether executions are forgotten at once: this process must not sample, or cannot.
        self.ignoring = False
        #: Whether this is a forked child's copy of its parent's session.
        self.forked = False
        #: Executions whose spans are ending at this moment, by the span's id, for whoever holds spans back.
        self.ending: dict[int, Execution] = {}
        self.counts: Counter[str] = Counter()
        self.on_step: list[Callable[[bool], None]] = []
        self.on_end: list[Callable[[Execution], None]] = []
        self.on_settled: list[Callable[[Execution], None]] = []
        self.on_stop: list[Callable[[], None]] = []
        #: Held while pools and counts change.
        self.lock = threading.RLock()
        self._named = devices is not None
        self._asked: set[str] = set()
        self._open: list[Execution] = []
        self._settling: list[Execution] = []
        #: The executions that outlive the history, and where it was anchored for them.
        self._anchored: dict[int, tuple[Execution, list[tuple[Timeline, int]]]] = {}
        self._judged_ns = self._frontier_ns = 0
        self._started_ns = self._last_region_ns = clock.now_ns()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Sample and join in threads of their own from now on; returns at once. Where there can be none, ignore."""
        self.active = True
        if self._thread is not None:
            self._wake.set()
            return
        self._last_region_ns = self.clock.now_ns()
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="gpu-profile-join", daemon=True)
        self._launch(self.sampler, self._thread)

    def _launch(self, *parts: Sampler | threading.Thread) -> None:
        try:
            for part in parts:
                part.start()
        except RuntimeError as error:  # the interpreter is going down, or the process may have no more threads
            _log.warning("gpu-profile: regions are not measured: %s", error)
            self._thread = None
            self.ignore()
            if self.sampler.running:
                self.sampler.stop()

    def ignore(self) -> None:
        """Let regions run without taking them in."""
        self.began = deque(maxlen=0)
        self.active = self.ignoring = True

    def stop(self) -> None:
        """Take a last sample, join what is left, and end both threads."""
        self.active = False
        self._stop.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)
        if not self.ignoring:
            self._take_last_sample(DEADLINE_S)
            self._settle_safely(final=True)
            self.sampler.stop()
        left, self._settling = self._settling, []
        for hook in self.on_settled:
            for execution in left:
                hook(execution)
        for stopped in self.on_stop:
            stopped()

    def _run(self) -> None:
        while not self.clock.wait(self._stop, STEP_S):
            self._settle_safely()
            if self.idle:
                self._pause()

    def _pause(self) -> None:
        """Sample nothing until a region begins."""
        self._settle_safely(final=True)
        self.sampler.stop()
        self._wake.clear()
        self.active = False
        # The next region wakes this thread. One that began while the sampler was stopping did not know that it had to,
        # so it is looked for: now, and after a while.
        while not (self.began or self._open or self._wake.wait(IDLE_S)):
            pass
        if not self._stop.is_set():
            self.active = True
            self._last_region_ns = self.clock.now_ns()
            self._launch(self.sampler)

    def _settle_safely(self, *, final: bool = False) -> None:
        try:
            self.settle(final=final)
        except Exception:  # noqa: BLE001 - a defect of ours must not end the joining of the host's spans
            if not self.counts["internal errors"]:
                _log.exception("gpu-profile: the join failed; it goes on")
            self.counts["internal errors"] += 1

    @property
    def idle(self) -> bool:
        """Whether no region has run for `IDLE_S`."""
        quiet_ns = self.clock.now_ns() - self._last_region_ns
        return not self._open and not self.began and quiet_ns > IDLE_S * NS_PER_S

    def missing_driver(self) -> str:
        """Why no driver can be used; empty if one can, or could once. Waits until that is known."""
        sampler = self.sampler
        for _ in range(int(DRIVER_S / 0.005)):
            turned = sampler.stats.turned_ns
            if sampler.driver is not None or sampler.states or self.ignoring:
                return ""
            if turned:
                return sampler.problem
            self.clock.wait(self._stop, 0.005)
        return f"the driver has not answered within {DRIVER_S:g} s"

    def devices(self) -> list[Device]:
        """The devices that regions are joined with."""
        known, defaults = self._known(), self._defaults()
        return [device for device in known if device in defaults or device.uuid in self._asked]

    def _known(self) -> list[Device]:
        return [state.device for state in list(self.sampler.states.values())]

    def _defaults(self) -> list[Device]:
        known = self._known()
        if self._named or not known:
            return known
        # A CUDA process that says nothing uses ordinal 0.
        return [next((d for d in known if d.kind is DeviceKind.GPU), known[0])]

    def devices_of(self, execution: Execution) -> list[Device]:
        """The devices that an execution is joined with."""
        if execution.device is None:
            return self._defaults()
        state = self.sampler.states.get(execution.device)
        return [] if state is None else [state.device]

    # ------------------------------------------------------------------ the join

    def flush(self, timeout_s: float = DEADLINE_S) -> None:
        """Take a last sample and join everything that has ended, whether covered or not."""
        self._take_last_sample(timeout_s)
        self._join(final=True)

    def _take_last_sample(self, timeout_s: float) -> None:
        """Once the GPU has passed the ends of what has ended, if it gets there in time."""
        latest_ns = self.clock.now_ns() + nanoseconds(timeout_s)
        while self.clock.now_ns() < latest_ns and any(
            e.end_ns and e.interval() is None for e in [*self._settling, *self._open, *self.began]
        ):
            self.clock.wait(threading.Event(), 0.005)
        if not self.ignoring:
            self.sampler.flush(timeout_s)

    def settle(self, *, final: bool = False) -> None:
        """Advance every pool to what samples cover, and pass the step on to whoever waits for it."""
        self._join(final=final)
        for step in list(self.on_step):
            step(final)

    def _join(self, *, final: bool) -> None:
        with self.lock:
            now = self.clock.now_ns()
            if not (final or self._answered(now)):
                return
            self._collect()
            devices, frontier = self.devices(), now
            for device in devices:
                pool = self._pool(device, now)
                if pool is not None:
                    mark = pool.timeline.watermark_ns(pool.joined)
                    until = max(now if mark is None else mark, now - nanoseconds(DEADLINE_S))
                    if final or not 0 <= until - pool.frontier_ns < nanoseconds(SLICE_S):
                        self._advance(pool, until, final=final)
                    frontier = min(frontier, pool.frontier_ns)
            if frontier != self._frontier_ns:
                self._frontier_ns = frontier
                self._let_go(now)
            if final or not 0 <= now - self._judged_ns < JUDGE_S * NS_PER_S:
                self._judged_ns = now
                self.verdicts.judge(device.uuid for device in devices)
                self._anchor(now)
            self.verdicts.count_calls()

    def _advance(self, pool: Pool, until_ns: int, *, final: bool) -> None:
        times = pool.set_back
        pool.advance(self._activities(pool), until_ns, final=final)
        if pool.set_back > times:
            self.counts["clock set back"] += 1
            _log.warning("gpu-profile: the clock was set back; the join of %s starts anew", pool.timeline.device.uuid)

    def _answered(self, now: int) -> bool:
        """Whether the driver has said which devices there are, or has had the time to."""
        return self.sampler.stats.turned_ns > 0 or now - self._started_ns > DEADLINE_S * NS_PER_S

    def _collect(self) -> None:
        while self.began:
            self._open.append(self.began.popleft())
        still: list[Execution] = []
        defaults = [device.uuid for device in self._defaults()]
        for execution in self._open:
            if execution.end_ns:
                self._take(execution, defaults)
            else:
                still.append(execution)
        self._open = still
        over = len(self._settling) - MOST_PENDING
        if over > 0:
            del self._settling[:over]
            self.counts["executions left out"] += over

    def _take(self, execution: Execution, defaults: list[str]) -> None:
        """Count an execution that has ended; it is joined with its device, or else with the `defaults`."""
        self._last_region_ns = max(self._last_region_ns, execution.end_ns)
        ancestor, depth = execution.parent, 0
        while ancestor is not None and ancestor.end_ns and depth < MOST_DEEP:
            ancestor, depth = ancestor.parent, depth + 1
        if depth == MOST_DEEP:
            execution.parent = None
        self._settling.append(execution)
        if execution.device is not None:
            self._asked.add(execution.device)
        devices = defaults if execution.device is None else [execution.device]
        self.verdicts.take(execution, devices)
        for pool in (self.pools[uuid] for uuid in devices if uuid in self.pools):
            pool.count(execution.name)
        for hook in self.on_end:
            hook(execution)

    def _pool(self, device: Device, now: int) -> Pool | None:
        pool = self.pools.get(device.uuid)
        timeline = self.sampler.timeline(device.uuid)
        if pool is None and timeline is not None:
            mine = self._executions(device.uuid)
            pool = self.pools[device.uuid] = Pool(timeline, start_ns=min((e.start_ns for e in mine), default=now))
            for execution in mine:
                if execution.end_ns:
                    pool.count(execution.name)
        return pool

    def _executions(self, uuid: str) -> list[Execution]:
        """What runs or waits for the join on one device."""
        default = any(device.uuid == uuid for device in self._defaults())
        return [e for e in (*self._settling, *self._open) if (default if e.device is None else e.device == uuid)]

    def _activities(self, pool: Pool) -> list[Activity]:
        uuid, frontier_ns = pool.timeline.device.uuid, pool.frontier_ns
        found = {
            id(e): (e, a)
            for e in self._executions(uuid)
            if (a := e.activity(uuid)) is not None and (a.end_ns is None or a.end_ns > frontier_ns)
        }
        return [a._replace(parent=e.nearest(found)) for e, a in found.values()]

    def _let_go(self, now: int) -> None:
        """Forget the executions that every pool has taken in."""
        still: list[Execution] = []
        for execution in self._settling:
            interval = execution.interval()
            # What ended in what is now the future, before the clock was set back, will not be covered.
            if (
                now - execution.end_ns > STREAM_S * NS_PER_S
                if interval is None
                else not self._frontier_ns < interval.end_ns <= now + DEADLINE_S * NS_PER_S
            ):
                for hook in self.on_settled:
                    hook(execution)
            else:
                still.append(execution)
        self._settling = still

    def _anchor(self, now: int) -> None:
        """Have the history keep what executions need that are about to outlive it, until their spans have gone on."""
        for key, (execution, held) in list(self._anchored.items()):
            if execution.end_ns and now - execution.end_ns > STREAM_S * NS_PER_S:
                del self._anchored[key]
                for anchored, start_ns in held:
                    anchored.release(start_ns)
        for execution in self._open:
            if id(execution) in self._anchored:
                continue
            due = []
            for device in self.devices_of(execution):
                timeline, activity = self.sampler.timeline(device.uuid), execution.activity(device.uuid)
                if timeline is not None and activity is not None and timeline.anchor_due(activity.start_ns):
                    due.append((timeline, activity.start_ns))
            if not due:
                return  # those that began later are not due either
            for anchored, start_ns in due:
                anchored.anchor(start_ns)
            self._anchored[id(execution)] = execution, due

    def covered(self, execution: Execution) -> bool:
        """Whether the pools of its devices have taken in all of an execution that has ended."""
        interval = execution.interval()
        if interval is None or not self._answered(self.clock.now_ns()):
            return False
        pools = (self.pools.get(device.uuid) for device in self.devices_of(execution))
        return all(pool is not None and pool.frontier_ns >= interval.end_ns for pool in pools)

    # ------------------------------------------------------------------ answers

    def verdict(self, region: str, device: str) -> Judged | None:
        """The newest verdict on a region on one device."""
        with self.lock:
            return self.verdicts.newest(region, device)

    def regions(self) -> list[Judged]:
        """Every region on every device that it ran on, judged now, in order of first appearance."""
        with self.lock:
            self._judged_ns = self.clock.now_ns()
            self.verdicts.judge(device.uuid for device in self.devices())
            return self.verdicts.every()
