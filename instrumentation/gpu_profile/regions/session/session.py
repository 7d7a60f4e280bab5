"""The join at work in a process: a sampler and a joiner, each in a thread of its own, while regions run.

Regions hand executions over and go on. The joiner's thread waits for the samples that cover them, pools them, judges
regimes, and tells those who wait for that, such as spans. Nothing here runs in the caller's thread except appending to
a queue.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gpu_profile.catalogue.samples import Device
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver import Driver, lag_s, live_driver, own_process
from gpu_profile.driver.visible import Spec
from gpu_profile.join.summary import Judged
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.entrance import Entrance, StreamSetting
from gpu_profile.regions.session.joiner import DEADLINE_S, Joiner
from gpu_profile.regions.session.placement import Placement
from gpu_profile.regions.session.turns import Turns
from gpu_profile.sampling.sampler import Sampler, Sink
from gpu_profile.units import NS_PER_S, nanoseconds

_log = logging.getLogger("gpu_profile")

#: Drivers that read the GPUs which a framework's streams run on.
_REAL: Final = frozenset({"nvml", "smi"})
#: How often ended executions are looked at.
STEP_S: Final = 0.1
#: The same at first, and while those who were told have more to do than they do in one step.
HURRY_S: Final = 0.025
#: Sampling stops after this long without a region.
IDLE_S: Final = 30.0
#: So many executions that wait for the join are more than it may keep waiting; of those with marks fewer, whose events
#: are wanted again.
_PRESSING: Final = 20_000
_PRESSING_MARKED: Final = 4_000
#: Who asks whether there is a driver waits at most this long for the first answer.
DRIVER_S: Final = 10.0


class Session(Entrance):
    """What stands between a driver and the regions of one process, from `start` to `stop`.

    `devices`: default devices for regions that name none. None: the devices that this process uses.
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
            open_driver, interval_s=interval_s, retention_s=retention_s, choose=self._choose, clock=clock, sinks=sinks
        )
        self.placement = Placement(devices)
        #: Failures of ours and what was left out, by name.
        self.counts: Counter[str] = Counter()
        self._turns = Turns(self._is_pressed)
        self.joiner = Joiner(self.sampler, self.placement, clock, thresholds, self.counts, self._turns)
        #: Whether executions are forgotten at once: this process must not sample, or cannot.
        self.ignoring = False
        #: Whether this is a forked child's copy of its parent's session.
        self.forked = False
        #: Executions whose spans run, by the span's id, for whoever gets the ended span.
        self.spans: dict[int, Execution] = {}
        #: How many monitors need the sampling to go on whether regions run or not.
        self.holds = 0
        #: Called after every step of the join, with whether it is the last; they return whether they are behind.
        self.on_step: list[Callable[[bool], bool]] = []
        self.on_stop: list[Callable[[], None]] = []
        self._ask_s, self._times_asked = 0.0, 0
        self._behind = False
        #: When sampling was last wanted, whether or not a region has run since.
        self._wanted_ns = clock.now_ns()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Sample and join in threads of their own from now on; returns at once. Where there can be none, ignore."""
        self.active = True
        self.seek_profiler()
        if self._thread is not None:
            self._wake.set()
            return
        self.keep_awake()
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
            with self._turns.hurried():
                thread.join(2.0)
        if not self.ignoring:
            self._take_last_sample(DEADLINE_S)
            self._settle_safely(final=True)
            self.sampler.stop()
        self.joiner.give_up()
        for stopped in self.on_stop:
            stopped()

    def _run(self) -> None:
        # Until there is a driver, no stream is looked for, and what runs has no marks.
        while not self.clock.wait(self._stop, HURRY_S if self._behind or not self.sampler.stats.turned_ns else STEP_S):
            self._turns.begin()
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
        while not (self.holds or self.began or self.joiner.backlog.running or self._wake.wait(IDLE_S)):
            pass
        if not self._stop.is_set():
            self.active = True
            self.keep_awake()
            self._launch(self.sampler)

    def _is_pressed(self) -> bool:
        return len(self.began) > (_PRESSING if self.stream is None else _PRESSING_MARKED)

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
        quiet_ns = self.clock.now_ns() - max(self._wanted_ns, self.joiner.last_end_ns)
        return not (self.holds or self.joiner.backlog.running or self.began) and quiet_ns > IDLE_S * NS_PER_S

    def keep_awake(self) -> None:
        """Sampling is wanted now: it goes on for `IDLE_S` at least."""
        self._wanted_ns = self.clock.now_ns()

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
        simulated, used = live_driver(driver).startswith("simulated"), None
        now_s = self.clock.now_ns() / NS_PER_S
        if self.placement.asked is None and len(listed) > 1 and not simulated and not 0 <= now_s < self._ask_s:
            used = own_process.uses(driver, listed, own_process.own_ids())
            self._times_asked += 1
            self._ask_s = now_s + own_process.pause_s(self._times_asked, found=bool(used))
        self.placement.update(listed, used, simulated=simulated)
        return self.placement.read

    # ------------------------------------------------------------------ steps

    def flush(self, timeout_s: float = DEADLINE_S) -> None:
        """Take a last sample and join everything that has ended, whether covered or not."""
        self._take_last_sample(timeout_s)
        self.joiner.join(self.began, final=True)

    def _take_last_sample(self, timeout_s: float) -> None:
        """Once the GPU has passed the ends of what has ended, if it gets there in time."""
        latest_ns = self.clock.now_ns() + nanoseconds(timeout_s)
        while self.clock.now_ns() < latest_ns and any(
            e.end_ns and e.interval() is None for e in [*self.joiner.backlog.everyone(), *self.began]
        ):
            self.clock.wait(threading.Event(), 0.005)
        if not self.ignoring:
            # Samples that another process reads come later than this one asks for them.
            lag_ns = nanoseconds(lag_s(self.sampler.driver))
            ended_ns = max((e.end_ns for e in [*self.joiner.backlog.everyone(), *self.began]), default=0)
            if lag_ns and ended_ns:
                self.clock.wait(threading.Event(), (ended_ns + lag_ns - self.clock.now_ns()) / NS_PER_S)
            self.sampler.flush(timeout_s)

    def settle(self, *, final: bool = False) -> None:
        """Join what samples cover, and pass the step on to whoever waits for it."""
        self.seek_profiler()
        driver = self.sampler.driver
        if driver is not None and live_driver(driver) in _REAL:
            self.seek_stream()
        self.joiner.join(self.began, final=final)
        told = [step(final) for step in list(self.on_step)]  # all of them
        self._behind = any(told)

    # ------------------------------------------------------------------ answers

    def regions(self) -> list[Judged]:
        """Every region on every device that it ran on, judged now, in order of first appearance."""
        return self.joiner.regions()
