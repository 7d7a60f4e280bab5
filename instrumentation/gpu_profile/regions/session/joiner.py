"""The join of a session: executions and samples meet in one pool for each device."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from gpu_profile.catalogue.samples import Device, Event
from gpu_profile.clock import Clock, ClockStep, StepWatch
from gpu_profile.history.ledger import FARTHEST
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.summary import Judged
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.regimes import Thresholds
from gpu_profile.regimes.kernel_work import KernelWork
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.backlog import Backlog
from gpu_profile.regions.session.changes import Changes
from gpu_profile.regions.session.placement import Placement
from gpu_profile.regions.session.sensor_priors import sensor_priors, unexpected
from gpu_profile.regions.session.spinning_regions import SpinningRegions
from gpu_profile.regions.session.turns import HurryingLock, Turns
from gpu_profile.regions.session.verdicts import Verdicts
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.sampling.tracked import LEAST_BACK_NS
from gpu_profile.units import NS_PER_S, nanoseconds

_log = logging.getLogger("gpu_profile")

#: A span, or a slice of time, waits at most this long for samples; then it is joined with the samples that are there.
DEADLINE_S: Final = 1.0
#: The shortest interval between two renewals of verdicts, their largest share of a processor, and the longest interval.
#: A renewal runs several fits for each region and signal in the measured program's interpreter. After a search for
#: timings only the shortest interval applies, because regions without a rate may have one then.
JUDGE_S: Final = 1.0
JUDGING_SHARE: Final = 0.01
_LONGEST_S: Final = 30.0
#: How often running executions are checked for outliving the history.
_ANCHOR_S: Final = 1.0
#: A stream that has not passed an execution's marks after this long has died, or nobody resolves its marks.
STREAM_S: Final = 60.0
#: Executions that may wait for the join. Of any more, the oldest count in calls and durations only.
MOST_PENDING: Final = 200_000
#: Pools continue later after a step ahead of at least this size: the length of a sensor's window. Ours.
_LEAST_SKIP_NS: Final = NS_PER_S // 10
#: The newest steps that are kept, for executions that began before them.
_MOST_CLOCK_STEPS: Final = 16
_DEVICE, _STREAM = attrgetter("device"), attrgetter("stream")


class Joiner:
    """Takes in executions, advances pools as far as samples cover them, and judges regions.

    One thread at a time calls `join`; the other methods may be called from any. Failures and omissions are added to
    `counts`. Executions may arrive up to `late_s` after their end: pools stay that far behind. With `defers`,
    `judge_first` leaves the work to the next join, and never waits for one.
    """

    def __init__(
        self,
        sampler: Sampler,
        placement: Placement,
        clock: Clock,
        thresholds: Thresholds,
        counts: Counter[str],
        turns: Turns | None = None,
        *,
        late_s: float = 0.0,
        defers: bool = False,
    ) -> None:
        self.sampler = sampler
        self.placement = placement
        self.pools: dict[str, Pool] = {}
        self.verdicts, self.changes = Verdicts(self.pools, thresholds), Changes(thresholds, clock)
        self.spinning = SpinningRegions(thresholds, self._judge_again)
        self.spinning.event_sinks.append(self._pass_event)
        self.backlog = Backlog(self._is_marked)
        #: `on_end` is called with every execution that has ended, `on_settled` once every pool has taken it in.
        self.on_end: list[Callable[[Execution], None]] = []
        self.on_settled: list[Callable[[Execution], None]] = []
        self._turns = turns or Turns()
        #: Held while pools and counts change, for as long as a search for timings. A waiting thread speeds that up.
        self.lock = HurryingLock(self._turns)
        #: The last renewal of all verdicts, the time up to which every pool is complete, the last end of an execution.
        self.judged_ns = self.frontier_ns = self.last_end_ns = 0
        self._anchored_ns = self._searches = 0
        #: Processor seconds of the last two renewals. The lower counts: garbage collection may have slowed the other.
        self._took_s = deque((0.0, 0.0), maxlen=2)
        self._clock = clock
        self._counts = counts
        self._late_ns = nanoseconds(late_s)
        self._defers = defers
        #: Regions, with a device each, that need a first verdict.
        self._lacking = set[tuple[str, str]]()
        self._started_ns = clock.now_ns()
        self._clock_steps = StepWatch(clock)
        #: Steps ahead of the clock.
        self._skipped = deque[ClockStep](maxlen=_MOST_CLOCK_STEPS)
        #: Sensors, by UUID and signal, that were logged as contradicting their calibration.
        self._unexpected: set[tuple[str, str]] = set()
        #: The number of names and the placement's version at the last look-up of names of devices.
        self._looked_up = (0, 0)
        #: Executions that outlive the history, and the start times that timelines keep for them.
        self._anchored: dict[int, tuple[Execution, list[tuple[Timeline, int]]]] = {}

    # ------------------------------------------------------------------ devices

    def read_devices(self, uuids: Iterable[str]) -> None:
        """Have these devices read too, from the next round on."""
        if self.placement.add(uuids):
            self.sampler.relist_devices()

    def devices(self) -> list[Device]:
        """The devices that regions are joined with."""
        sampled = (state.device for state in list(self.sampler.states.values()))
        return [device for device in sampled if self.placement.has(device)]

    def devices_of(self, execution: Execution) -> Sequence[Device]:
        """The devices that an execution is joined with."""
        return self.placement.of(execution.device)

    # ------------------------------------------------------------------ the join

    def join(self, began: deque[Execution], *, final: bool) -> None:
        """Take in the executions of `began`, and advance every pool as far as samples cover it; with `final` to now."""
        with self.lock:
            now = self._clock.now_ns()
            if not (final or self._answered(now)):
                return
            step = self._clock_steps.step()
            if step is not None and step.ahead_ns > 0:
                self._skipped.append(step)
            back_ns = -step.ahead_ns if step is not None else 0
            if step is not None and back_ns >= LEAST_BACK_NS:
                self._counts["clock set back"] += 1
                self._skip(step)
                self._call_settled(self.backlog.restart().separate())
            if step is not None and back_ns > 0:
                self.backlog.set_back(step.before.now_ns, step.after.now_ns, step.set_ns, list(began))
            self._collect(began)
            if back_ns >= LEAST_BACK_NS:  # the rest of those that ended before the step
                self._remove_joined(-FARTHEST, self._clock.now_ns())
            if step is not None and step.ahead_ns >= _LEAST_SKIP_NS:
                self._skip(step)
            devices, frontier = self.devices(), now
            for device in devices:
                pool = self._pool(device, now)
                if pool is not None:
                    until = pool.watermark_ns(now)
                    until = until if final else min(until, now - self._late_ns)
                    if final or pool.due(until):
                        self._advance(pool, until, final=final)
                    frontier = min(frontier, pool.frontier_ns)
            if frontier != self.frontier_ns:
                self.frontier_ns = frontier
                self._remove_joined(frontier, now + nanoseconds(DEADLINE_S))
            if final or self._is_due(now):
                used_s = self._turns.used_s()
                self._judge(devices, now)
                self._took_s.append(self._turns.used_s() - used_s)
            if not 0 <= now - self._anchored_ns < _ANCHOR_S * NS_PER_S:
                self._anchored_ns = now
                self._anchor(now)
                self._look_for_spinning(devices, now)
            self._judge_lacking()
            self.verdicts.count_calls()

    def _judge(self, devices: Iterable[Device], now: int) -> None:
        """Renew all verdicts."""
        try:
            self.verdicts.judge(device.uuid for device in devices)
        finally:
            # Last: threads that read verdicts keep the former ones meanwhile, instead of waiting for the lock.
            self.judged_ns = now

    def _is_due(self, now: int) -> bool:
        """Whether verdicts must be renewed now."""
        searches = sum(pool.searches for pool in self.pools.values())
        wait_s = max(JUDGE_S, min(_LONGEST_S, min(self._took_s) / JUDGING_SHARE))
        if searches != self._searches:
            wait_s = JUDGE_S
        due = not 0 <= now - self.judged_ns < wait_s * NS_PER_S
        self._searches = searches if due else self._searches
        return due

    def _advance(self, pool: Pool, until_ns: int, *, final: bool) -> None:
        times = pool.set_back
        here = self._here(pool.timeline.device.uuid)
        pool.advance(self.backlog.activities(here, pool.frontier_ns, until_ns), until_ns, final=final)
        if pool.set_back > times:
            self._counts["clock set back"] += 1
            _log.warning("gpu-profile: the clock was set back; the join of %s starts anew", pool.timeline.device.uuid)
        uuid = pool.timeline.device.uuid
        for signal in pool.unexpected:
            if (uuid, signal.key) not in self._unexpected:
                self._unexpected.add((uuid, signal.key))
                _log.warning("gpu-profile: %s", unexpected(pool.timeline.device, signal))

    def _skip(self, step: ClockStep) -> None:
        """Advance every pool up to now by the earlier setting of the clock, and continue by the present one."""
        ahead_ns, now_ns = step.ahead_ns, step.after.now_ns
        way = "ahead" if ahead_ns > 0 else "back"
        _log.warning("gpu-profile: the clock was set %s by %.3f s", way, abs(ahead_ns) / NS_PER_S)
        first_ns, last_ns = step.before.now_ns + ahead_ns, now_ns - ahead_ns
        later_ns = max(first_ns, last_ns) if ahead_ns > 0 else first_ns  # times from here to now are by the present one
        for uuid, pool in self.pools.items():
            since_ns, until_ns = min(pool.frontier_ns, first_ns), max(now_ns, last_ns)
            active = self.backlog.activities(self._here(uuid), since_ns, until_ns)
            starts, ends = (
                np.where((times > later_ns) & (times <= now_ns), times - ahead_ns, times)
                for times in (active.starts, active.ends)
            )
            pool.set_back += ahead_ns < 0
            pool.advance(active._replace(starts=starts, ends=ends), max(pool.frontier_ns, last_ns), final=True)
            pool.skip(ahead_ns)

    def _answered(self, now: int) -> bool:
        """Whether the driver has listed its devices, or `DEADLINE_S` has passed."""
        return self.sampler.stats.turned_ns > 0 or now - self._started_ns > DEADLINE_S * NS_PER_S

    def _here(self, uuid: str) -> Callable[[Hashable], bool]:
        """A function that returns whether an execution's `device` includes this UUID."""
        cached: dict[Hashable, bool] = {}

        def here(device: Hashable) -> bool:
            if device not in cached:
                cached[device] = any(each.uuid == uuid for each in self.placement.of(device))
            return cached[device]

        return here

    def _is_marked(self, execution: Execution) -> bool:
        if execution.stream is None or execution.device == execution.stream.device_uuid:
            return True
        return [d.uuid for d in self.placement.of(execution.device)] == [execution.stream.device_uuid]

    def _collect(self, began: deque[Execution]) -> None:
        """Count the executions that have ended since the last call, in verdicts and in the pools of their devices."""
        ended = self.backlog.collect(began)
        key = len(self.backlog.named), self.placement.version
        if key != self._looked_up:  # a new name, or a name may resolve to other devices than before
            self._looked_up = key
            self.read_devices(device.uuid for name in self.backlog.named for device in self.placement.of(name))
        if not ended.executions:
            return
        self.last_end_ns = max(self.last_end_ns, int(ended.ends.max()))
        # Without a loop in Python, as here come all executions; of shared ones, only the last row of each.
        executions, ends = ended.executions, ended.ends
        if not executions[0].end_ns:
            rows = dict(zip(executions, range(len(executions)), strict=True))
            executions = sorted(rows, key=rows.__getitem__)
            ends = ends[sorted(rows.values())]
        last = dict(zip(map(_DEVICE, executions), range(len(executions)), strict=True))
        where = {device: [each.uuid for each in self.placement.of(device)] for device in last}
        self.spinning.take_ends((uuid, int(ends[i])) for device, i in last.items() for uuid in where[device])
        marked: Counter[tuple[str, Hashable]] = Counter()
        if any(map(_STREAM, executions)):
            marked.update((e.name, e.device) for e in ended.executions if e.stream is not None)
        counted = ended
        for step in self._skipped:
            counted = counted.skipped(*step.between_ns, step.set_ns)
        for (name, device), times in self.verdicts.take(counted, where).items():
            for pool in (self.pools[uuid] for uuid in where[device] if uuid in self.pools):
                pool.count(name, times, until_ns=self.last_end_ns, marked=marked[name, device])
        for hook in self.on_end:
            for execution in ended.separate():
                hook(execution)
        if left_out := self.backlog.drop(MOST_PENDING):
            self._counts["executions left out"] += left_out

    def _pool(self, device: Device, now: int) -> Pool | None:
        pool = self.pools.get(device.uuid)
        timeline = self.sampler.timeline(device.uuid)
        if pool is None and timeline is not None:
            here = self._here(device.uuid)
            mine = [execution for execution in self.backlog.all_executions() if here(execution.device)]
            starts = (execution.start_ns for execution in mine if execution.start_ns)
            driver = self.sampler.driver
            prior = sensor_priors(device, driver.version if driver is not None else "")
            pool = self.pools[device.uuid] = Pool(
                timeline, start_ns=min(starts, default=now - self._late_ns), prior=prior
            )
            pool.periods.listeners.append(self.changes.watch(timeline))
            for execution in mine:
                if execution.end_ns:
                    pool.count(execution.name, until_ns=execution.end_ns, marked=int(execution.stream is not None))
        return pool

    def _remove_joined(self, until_ns: int, latest_ns: int) -> None:
        """Remove the executions that every pool has taken in, up to `until_ns`, and those after `latest_ns`."""
        removed = self.backlog.remove_joined(until_ns, latest_ns, self._clock.now_ns() - nanoseconds(STREAM_S))
        if self.on_settled:
            self._call_settled(removed.separate())

    def _call_settled(self, executions: Iterable[Execution]) -> None:
        for execution in executions:
            for hook in self.on_settled:
                hook(execution)

    def abandon_rest(self) -> None:
        """At the end: call `on_settled` for the ended executions that will not be joined any more."""
        self._call_settled([*self.backlog.ended, *self.backlog.behind])

    def _anchor(self, now: int) -> None:
        """Keep the samples of executions that are about to outlive the history, until `STREAM_S` after their end."""
        for key, (execution, anchors) in list(self._anchored.items()):
            if execution.end_ns and now - execution.end_ns > STREAM_S * NS_PER_S:
                del self._anchored[key]
                for anchored, start_ns in anchors:
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
                return  # executions that began later are not due either
            for anchored, start_ns in due:
                anchored.anchor(start_ns)
            self._anchored[id(execution)] = execution, due

    def _look_for_spinning(self, devices: Iterable[Device], now: int) -> None:
        """Look for devices that are busy without movement, with their innermost open region."""
        read = ((device.uuid, self.sampler.timeline(device.uuid)) for device in devices)
        timelines = {uuid: timeline for uuid, timeline in read if timeline is not None}
        running = {device.uuid: e.name for e in self.backlog.running for device in self.devices_of(e)}
        self.spinning.look(timelines, running, now)

    def _judge_again(self, region: str, uuid: str) -> None:
        self.verdicts.judge_spinning(region, uuid, self.spinning.spins.get((region, uuid)))

    def _pass_event(self, event: Event) -> None:
        for sink in list(self.sampler.event_sinks):
            sink(event)

    # ------------------------------------------------------------------ answers

    def covered(self, execution: Execution) -> bool:
        """Whether the pools of its devices have taken in the whole of an ended execution."""
        if execution.stream is None and execution.end_ns <= self.frontier_ns:
            return True
        interval = execution.interval()
        if interval is None or not self._answered(self._clock.now_ns()):
            return False
        pools = (self.pools.get(device.uuid) for device in self.devices_of(execution))
        return all(pool is not None and pool.frontier_ns >= interval.end_ns for pool in pools)

    def judge_first(self, execution: Execution) -> bool:
        """Judge its region on each device without a verdict, instead of waiting up to `_LONGEST_S` for the renewal.

        False if the next join does so, as between two turns of a search.
        """
        # Without the lock if none can be judged: with 64 regions on each of 8 devices, a join holds it for seconds.
        devices = self.devices_of(execution)
        lacking = [(execution.name, each.uuid) for each in devices if self.verdicts.lacks(execution.name, each.uuid)]
        self._lacking.update(lacking)
        if not lacking or self._defers or self._turns.interrupted:
            return not lacking
        with self.lock:
            self._judge_lacking()
        return True

    def _judge_lacking(self) -> None:
        while self._lacking:
            self.verdicts.judge_first(*self._lacking.pop())

    def take_kernels(self, region: str, work: KernelWork) -> None:
        """Add the kernels and copies of one execution of a region, from a profiler's records."""
        with self.lock:
            self.verdicts.take_kernels(region, work)

    def regions(self) -> list[Judged]:
        """Every region on every device that it ran on, in order of first appearance.

        Judged now, but between two turns of a search as before it.
        """
        with self.lock:
            if not self._turns.interrupted:
                self._judge(self.devices(), self._clock.now_ns())
            return self.verdicts.every()
