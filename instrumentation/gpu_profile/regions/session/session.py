"""The join at work in a process: a sampler, a pool per device, and the executions between the two.

Regions hand executions over and go on. A thread of the session's own waits for the samples that cover them, pools
them, judges regimes, and lets go of the spans that `spans` held back. Nothing here runs in the caller's thread except
appending to a queue.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

from gpu_profile.catalogue.samples import Device
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver import Driver, own_process
from gpu_profile.driver.visible import Spec
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.summary import Judged
from gpu_profile.join.unmixing.pooling import Pool
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.backlog import Backlog
from gpu_profile.regions.session.entrance import Entrance, StreamSetting
from gpu_profile.regions.session.placement import Placement
from gpu_profile.regions.session.verdicts import Verdicts
from gpu_profile.sampling.sampler import Sampler, Sink
from gpu_profile.units import NS_PER_S, nanoseconds

_log = logging.getLogger("gpu_profile")

#: Drivers that read the GPUs which a framework's streams run on.
_REAL: Final = frozenset({"nvml", "smi"})
#: A span, or a slice of time, waits at most this long for samples; then what is there must do.
DEADLINE_S: Final = 1.0
#: How often ended executions are looked at.
STEP_S: Final = 0.1
#: The same while those who were told have more to do than they do in one step.
HURRY_S: Final = 0.025
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


class Session(Entrance):
    """Everything between a driver and the regions of one process.

    `devices` names what regions are on that name none; None means what the process uses.
    """

    def __init__(
        self,
        open_driver: Callable[[], Driver],
        *,
        interval_s: float = 0.05,
        retention_s: float = 600.0,
        devices: Spec | None = None,
        stream: StreamSetting = None,
        clock: Clock = SYSTEM_CLOCK,
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
        sinks: Iterable[Sink] = (),
    ) -> None:
        super().__init__(clock, stream)
        self.sampler = Sampler(
            open_driver,
            interval_s=interval_s,
            retention_s=retention_s,
            choose=self._choose,
            clock=clock,
            sinks=sinks,
        )
        self.pools: dict[str, Pool] = {}
        self.verdicts = Verdicts(self.pools, thresholds)
        #: Whether executions are forgotten at once: this process must not sample, or cannot.
        self.ignoring = False
        #: Whether this is a forked child's copy of its parent's session.
        self.forked = False
        #: Executions whose spans are ending at this moment, by the span's id, for whoever holds spans back.
        self.ending: dict[int, Execution] = {}
        self.counts: Counter[str] = Counter()
        #: How many monitors need the sampling to go on whether regions run or not.
        self.holds = 0
        #: Told of every step, and whether it is the last; they say whether they are behind.
        self.on_step: list[Callable[[bool], bool]] = []
        self.on_end: list[Callable[[Execution], None]] = []
        self.on_settled: list[Callable[[Execution], None]] = []
        self.on_stop: list[Callable[[], None]] = []
        #: Held while pools and counts change.
        self.lock = threading.RLock()
        self.placement = Placement(devices)
        self.backlog = Backlog(self._is_marked)
        #: Devices that somebody named; how many names there were when they were looked up, and the placement's version.
        self._used: set[str] = set()
        self._met = (0, 0)
        self._ask_s, self._times_asked = 0.0, 0
        self._behind = False
        #: The executions that outlive the history, and where it was anchored for them.
        self._anchored: dict[int, tuple[Execution, list[tuple[Timeline, int]]]] = {}
        self.judged_ns = self.frontier_ns = 0
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
        left = [*self.backlog.ended, *self.backlog.behind]
        for hook in self.on_settled:
            for execution in left:
                hook(execution)
        for stopped in self.on_stop:
            stopped()

    def _run(self) -> None:
        while not self.clock.wait(self._stop, HURRY_S if self._behind else STEP_S):
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
        while not (self.holds or self.began or self.backlog.running or self._wake.wait(IDLE_S)):
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
        return not (self.holds or self.backlog.running or self.began) and quiet_ns > IDLE_S * NS_PER_S

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

    def _choose(self, driver: Driver, listed: Sequence[Device]) -> set[str]:
        """In the sampler's thread: the devices that are read, which are those that regions are on."""
        simulated, used = driver.name.startswith("simulated"), None
        now_s = self.clock.now_ns() / NS_PER_S
        if self.placement.asked is None and len(listed) > 1 and not simulated and not 0 <= now_s < self._ask_s:
            used = own_process.uses(driver, listed, own_process.own_ids())
            self._times_asked += 1
            self._ask_s = now_s + own_process.pause_s(self._times_asked, found=bool(used))
        self.placement.update(listed, used, simulated=simulated)
        return {device.uuid for device in self.placement.defaults} | self._used

    def read_devices(self, uuids: Iterable[str]) -> None:
        """Have these devices read too, from the next round on."""
        new = set(uuids) - self._used
        if new:
            self._used = self._used | new  # not in place: the sampler's thread may be looking at it
            self.sampler.look_again()

    def devices(self) -> list[Device]:
        """The devices that regions are joined with."""
        defaults = self.placement.defaults
        known = (state.device for state in list(self.sampler.states.values()))
        return [device for device in known if device in defaults or device.uuid in self._used]

    def devices_of(self, execution: Execution) -> Sequence[Device]:
        """The devices that an execution is joined with."""
        return self.placement.of(execution.device)

    # ------------------------------------------------------------------ the join

    def flush(self, timeout_s: float = DEADLINE_S) -> None:
        """Take a last sample and join everything that has ended, whether covered or not."""
        self._take_last_sample(timeout_s)
        self._join(final=True)

    def _take_last_sample(self, timeout_s: float) -> None:
        """Once the GPU has passed the ends of what has ended, if it gets there in time."""
        latest_ns = self.clock.now_ns() + nanoseconds(timeout_s)
        while self.clock.now_ns() < latest_ns and any(
            e.end_ns and e.interval() is None for e in [*self.backlog.everyone(), *self.began]
        ):
            self.clock.wait(threading.Event(), 0.005)
        if not self.ignoring:
            self.sampler.flush(timeout_s)

    def settle(self, *, final: bool = False) -> None:
        """Advance every pool to what samples cover, and pass the step on to whoever waits for it."""
        driver = self.sampler.driver
        if driver is not None and driver.name in _REAL:
            self.seek_stream()
        self._join(final=final)
        told = [step(final) for step in list(self.on_step)]  # all of them
        self._behind = any(told)

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
            if frontier != self.frontier_ns:
                self.frontier_ns = frontier
                self._let_go(now)
            if final or not 0 <= now - self.judged_ns < JUDGE_S * NS_PER_S:
                self.judged_ns = now
                self.verdicts.judge(device.uuid for device in devices)
                self._anchor(now)
            self.verdicts.count_calls()

    def _advance(self, pool: Pool, until_ns: int, *, final: bool) -> None:
        times = pool.set_back
        here = self._here(pool.timeline.device.uuid)
        pool.advance(self.backlog.activities(here, pool.frontier_ns, until_ns), until_ns, final=final)
        if pool.set_back > times:
            self.counts["clock set back"] += 1
            _log.warning("gpu-profile: the clock was set back; the join of %s starts anew", pool.timeline.device.uuid)

    def _answered(self, now: int) -> bool:
        """Whether the driver has said which devices there are, or has had the time to."""
        return self.sampler.stats.turned_ns > 0 or now - self._started_ns > DEADLINE_S * NS_PER_S

    def _here(self, uuid: str) -> Callable[[Hashable], bool]:
        """Whether executions that name such devices are on this one."""
        known: dict[Hashable, bool] = {}

        def here(device: Hashable) -> bool:
            if device not in known:
                known[device] = any(found.uuid == uuid for found in self.placement.of(device))
            return known[device]

        return here

    def _is_marked(self, execution: Execution) -> bool:
        if execution.stream is None or execution.device == execution.stream.device_uuid:
            return True
        return [d.uuid for d in self.placement.of(execution.device)] == [execution.stream.device_uuid]

    def _collect(self) -> None:
        """Count the executions that have ended since the last time; each is joined with its devices."""
        found = self.backlog.collect(self.began)
        met = len(self.backlog.named), self.placement.version
        if met != self._met:  # a new name, or a name may mean something by now that it did not before
            self._met = met
            self.read_devices(known.uuid for name in self.backlog.named for known in self.placement.of(name))
        if not found:
            return
        self._last_region_ns = max(self._last_region_ns, *(execution.end_ns for execution in found))
        where: dict[Hashable, list[str]] = {}
        for device in {execution.device for execution in found}:
            where[device] = [known.uuid for known in self.placement.of(device)]
        for (name, device), times in self.verdicts.take(found, where).items():
            for pool in (self.pools[uuid] for uuid in where[device] if uuid in self.pools):
                pool.count(name, times)
        for hook in self.on_end:
            for execution in found:
                hook(execution)
        if left_out := self.backlog.drop(MOST_PENDING):
            self.counts["executions left out"] += left_out

    def _pool(self, device: Device, now: int) -> Pool | None:
        pool = self.pools.get(device.uuid)
        timeline = self.sampler.timeline(device.uuid)
        if pool is None and timeline is not None:
            here = self._here(device.uuid)
            mine = [execution for execution in self.backlog.everyone() if here(execution.device)]
            starts = (execution.start_ns for execution in mine if execution.start_ns)
            pool = self.pools[device.uuid] = Pool(timeline, start_ns=min(starts, default=now))
            for execution in mine:
                if execution.end_ns:
                    pool.count(execution.name)
        return pool

    def _let_go(self, now: int) -> None:
        """Forget the executions that every pool has taken in."""
        gone = self.backlog.let_go(self.frontier_ns, now + nanoseconds(DEADLINE_S), now - nanoseconds(STREAM_S))
        for hook in self.on_settled:
            for execution in gone:
                hook(execution)

    def _anchor(self, now: int) -> None:
        """Have the history keep what executions need that are about to outlive it, until their spans have gone on."""
        for key, (execution, held) in list(self._anchored.items()):
            if execution.end_ns and now - execution.end_ns > STREAM_S * NS_PER_S:
                del self._anchored[key]
                for anchored, start_ns in held:
                    anchored.release(start_ns)
        for execution in self.backlog.running:
            if id(execution) in self._anchored:
                continue
            due, active = [], execution.active()
            for device in self.devices_of(execution) if active is not None else ():
                timeline = self.sampler.timeline(device.uuid)
                if timeline is not None and active is not None and timeline.anchor_due(active[0]):
                    due.append((timeline, active[0]))
            if not due:
                return  # those that began later are not due either
            for anchored, start_ns in due:
                anchored.anchor(start_ns)
            self._anchored[id(execution)] = execution, due

    def covered(self, execution: Execution) -> bool:
        """Whether the pools of its devices have taken in all of an execution that has ended."""
        if execution.stream is None and execution.end_ns <= self.frontier_ns:
            return True
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
            self.judged_ns = self.clock.now_ns()
            self.verdicts.judge(device.uuid for device in self.devices())
            return self.verdicts.every()
