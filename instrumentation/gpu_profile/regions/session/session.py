"""The session of a process: a sampler and a joiner, each in a thread of its own, while regions run.

A region only appends its execution to a queue in the caller's thread. The joiner's thread waits for the samples that
cover it, pools them, judges regimes, and calls the hooks of consumers such as spans.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gpu_profile.catalogue.samples import Device
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver import Driver, is_simulated, lag_s, live_driver, own_process
from gpu_profile.driver.visible import Spec
from gpu_profile.join.summary import Judged
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.inbox import Inbox, StreamSetting
from gpu_profile.regions.session.joiner import DEADLINE_S, Joiner
from gpu_profile.regions.session.placement import Placement
from gpu_profile.regions.session.turns import Turns
from gpu_profile.sampling.sampler import Sampler, Sink
from gpu_profile.units import NS_PER_S, nanoseconds

#: The variable that names the directory to record into if the code does not.
RECORD_VARIABLE: Final = "GPU_PROFILE_RECORD"

_log = logging.getLogger("gpu_profile")

#: Drivers of real GPUs, on which a framework's streams run.
_REAL: Final = frozenset({"nvml", "smi"})
#: The interval between two steps of the join.
STEP_S: Final = 0.1
#: The same before the sampler's first round, and while a hook of `on_step` is behind.
HURRY_S: Final = 0.025
#: Sampling stops after this long without a region.
IDLE_S: Final = 30.0
#: With more executions in the queue the join computes without pauses. Fewer with marks: their CUDA events are reused.
_PRESSING: Final = 20_000
_PRESSING_MARKED: Final = 4_000
#: `missing_driver` waits at most this long for the driver's first answer.
DRIVER_S: Final = 10.0


class Session(Inbox):
    """Joins the regions of one process with a driver's samples, from `start` to `stop`.

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
        #: Errors of the measurement and omissions, by name.
        self.counts: Counter[str] = Counter()
        self._turns = Turns(self._is_pressed, self._interrupt)
        self.joiner = Joiner(self.sampler, self.placement, clock, thresholds, self.counts, self._turns)
        #: Whether executions are dropped at once: this process must not sample, or cannot.
        self.ignoring = False
        #: Whether this is a forked child's copy of its parent's session.
        self.forked = False
        #: Executions with a span that runs, by span id, for the processor that gets the ended span.
        self.spans: dict[int, Execution] = {}
        #: The number of monitors that need sampling to continue without regions.
        self.holds = 0
        #: Called after every step of the join with `final`. They return whether they are behind.
        self.on_step: list[Callable[[bool], bool]] = []
        #: Called between two turns of a computation, in the join's thread. They read verdicts, but no pool.
        self.on_interrupt: list[Callable[[], None]] = []
        self.on_stop: list[Callable[[], None]] = []
        #: When `_choose` next asks for this process's devices, and how often it has.
        self._ask_s, self._times_asked = 0.0, 0
        self._behind = False
        #: The last call of `keep_awake`.
        self._wanted_ns = clock.now_ns()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the sampler's and the join's threads; returns at once. Ignores regions if no thread can start."""
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
        except RuntimeError as error:  # the interpreter shuts down, or the process has reached its limit of threads
            _log.warning("gpu-profile: regions are not measured: %s", error)
            self._thread = None
            self.ignore()
            if self.sampler.running:
                self.sampler.stop()

    def ignore(self) -> None:
        """Drop executions from now on: regions run, but are not counted."""
        self.began = deque(maxlen=0)
        self.active = self.ignoring = True

    def stop(self) -> None:
        """Take a last sample, join the remaining executions, and end both threads."""
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
        self.joiner.abandon_rest()
        for stopped in self.on_stop:
            stopped()

    def _run(self) -> None:
        # Fast until the sampler's first round: before there is a driver no stream is sought, and regions have no marks.
        while not self.clock.wait(self._stop, HURRY_S if self._behind or not self.sampler.stats.turned_ns else STEP_S):
            self._turns.begin()
            self._settle_safely()
            if self.idle:
                self._pause()

    def _pause(self) -> None:
        """Stop sampling until a region begins."""
        self._settle_safely(final=True)
        self.sampler.stop()
        self._wake.clear()
        self.active = False
        # The next region wakes this thread. A region that began while the sampler was stopping saw `active` set and did
        # not wake it. So the queue is checked now and every `IDLE_S`.
        while not (self.holds or self.began or self.joiner.backlog.running or self._wake.wait(IDLE_S)):
            pass
        if not self._stop.is_set():
            self.active = True
            self.keep_awake()
            self._launch(self.sampler)

    def _is_pressed(self) -> bool:
        return len(self.began) > (_PRESSING if self.stream is None else _PRESSING_MARKED)

    def _interrupt(self) -> None:
        for hook in list(self.on_interrupt):
            self._call_safely(hook)

    def _settle_safely(self, *, final: bool = False) -> None:
        self._call_safely(lambda: self.settle(final=final))

    def _call_safely(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001 - an internal error must not end the joining of the program's spans
            if not self.counts["internal errors"]:
                _log.exception("gpu-profile: the join failed; it goes on")
            self.counts["internal errors"] += 1

    @property
    def idle(self) -> bool:
        """Whether no region has run for `IDLE_S`."""
        quiet_ns = self.clock.now_ns() - max(self._wanted_ns, self.joiner.last_end_ns)
        return not (self.holds or self.joiner.backlog.running or self.began) and quiet_ns > IDLE_S * NS_PER_S

    def keep_awake(self) -> None:
        """Keep sampling for at least `IDLE_S` from now on."""
        self._wanted_ns = self.clock.now_ns()

    def missing_driver(self) -> str:
        """Why no driver can be used; empty if one works, or once did. Waits up to `DRIVER_S` for the first answer."""
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
        """UUIDs of the devices to read: the ones that regions are on. Called in the sampler's thread."""
        simulated, used = is_simulated(driver), None
        now_s = self.clock.now_ns() / NS_PER_S
        if self.placement.asked is None and len(listed) > 1 and not simulated and not 0 <= now_s < self._ask_s:
            used = own_process.uses(driver, listed, own_process.own_ids())
            self._times_asked += 1
            self._ask_s = now_s + own_process.pause_s(self._times_asked, listed=bool(used))
        self.placement.update(listed, used, simulated=simulated, driver=driver.name)
        return self.placement.read

    # ------------------------------------------------------------------ steps

    def flush(self, timeout_s: float = DEADLINE_S) -> None:
        """Take a last sample and join all executions that have ended, covered or not."""
        self._take_last_sample(timeout_s)
        self.joiner.join(self.began, final=True)

    def _take_last_sample(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for the GPU to pass the end marks, then sample."""
        latest_ns = self.clock.now_ns() + nanoseconds(timeout_s)
        while self.clock.now_ns() < latest_ns and any(
            e.end_ns and e.interval() is None for e in [*self.joiner.backlog.all_executions(), *self.began]
        ):
            self.clock.wait(threading.Event(), 0.005)
        if not self.ignoring:
            # Samples that another process reads arrive later than this process asks for them.
            lag_ns = nanoseconds(lag_s(self.sampler.driver))
            ended_ns = max((e.end_ns for e in [*self.joiner.backlog.all_executions(), *self.began]), default=0)
            if lag_ns and ended_ns:
                self.clock.wait(threading.Event(), (ended_ns + lag_ns - self.clock.now_ns()) / NS_PER_S)
            self.sampler.flush(timeout_s)

    def settle(self, *, final: bool = False) -> None:
        """Join the executions that samples cover, then call the hooks of `on_step`."""
        self.seek_profiler()
        driver = self.sampler.driver
        if driver is not None and live_driver(driver) in _REAL:
            self.seek_stream()
        self.joiner.join(self.began, final=final)
        behind = [step(final) for step in list(self.on_step)]  # a list: `any` alone would skip some
        self._behind = any(behind)

    # ------------------------------------------------------------------ answers

    def regions(self) -> list[Judged]:
        """Every region on every device that it ran on, judged now, in order of first appearance."""
        return self.joiner.regions()
