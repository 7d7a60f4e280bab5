"""One monitored run: it starts sampling, marks the run's start and end, and makes the summaries.

`opening` and `closing` are generators of pauses in seconds: threads sleep through them, event loops do other work
meanwhile.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES, Signal
from gpu_profile.catalogue.samples import Device, Interval, Sample
from gpu_profile.clock import StepWatch
from gpu_profile.driver import is_simulated, lag_s
from gpu_profile.driver.visible import Visible
from gpu_profile.errors import GpuBackendError, GpuProfileError
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.busy import settled
from gpu_profile.monitor.gpu_summary import GpuSample, GpuSummary, join_notes, samples_of, summarise_run
from gpu_profile.monitor.holds import Hold, hold
from gpu_profile.monitor.options import Options
from gpu_profile.monitor.pauses import Pauses
from gpu_profile.monitor.trace import UtilisationTrace
from gpu_profile.regions.frameworks import current_device, find_sync
from gpu_profile.regions.region import region
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import DRIVER_S
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.units import nanoseconds, seconds

_log = logging.getLogger("gpu_profile")

#: The end of a run waits until its numbers cannot improve, but at most this long.
SETTLE_S: Final = 0.25
#: The start of a run waits at most this long for a reading.
FIRST_READING_S: Final = 0.25
#: While waiting: the interval between two checks, and between two requests for a reading.
LOOK_S: Final = 0.002
READ_AGAIN_S: Final = 0.02
#: Rows of each signal that `keep_samples` keeps: a week at 25 Hz.
MOST_KEPT: Final = 1 << 24

_warned: Final[set[str]] = set()


class Run:
    """One run with `options`. Without `reads` its summaries are not needed: it is sampled but never waited for.

    `summaries` has one entry for each device after `closing`. With `keeps`, `kept` has the timelines of its samples.
    """

    def __init__(self, options: Options, *, reads: bool = True, keeps: bool = False) -> None:
        self.options = options
        self.summaries: tuple[GpuSummary, ...] = ()
        #: The label and the device of each measured device; the device is None until it is resolved.
        self.devices: list[tuple[int | str, Device | None]] = [(label, None) for label in options.labels]
        self.kept: dict[str, Timeline] = {}
        self.start_ns = self.end_ns = 0
        self._reads, self._keeps = reads, keeps
        self._clock = process.settings().clock
        self._clock_steps = StepWatch(self._clock)
        #: The part of the run by which the clock was set ahead.
        self.skipped_ns = 0
        self._pid = os.getpid()
        self._notes: list[str] = []
        self._hold: Hold | None = None
        self._anchored: list[tuple[Timeline, int]] = []
        self._traces: dict[str, dict[Signal, UtilisationTrace]] = {}
        self._sync: Callable[[], object] | None = None
        self._synced = False

    @property
    def abandoned(self) -> str:
        """Why the run cannot have numbers any more; empty if it can.

        A forked child has only copies of its parent's threads and locks. A program that ends has no working threads.
        """
        if os.getpid() != self._pid:
            return "the process was forked during the run: its parent has the numbers"
        return "the program ended during the run" if sys.is_finalizing() else ""

    # ------------------------------------------------------------------ before

    def opening(self) -> Pauses:
        """Start sampling, wait for the work launched before, and start the run. An exception ends the sampling.

        Raises GpuBackendError or UsageError with `strict` if the run cannot be measured.
        """
        try:
            if process.disabled:
                self._notes.append("gpu-profile is switched off")
            else:
                yield from self._start_sampling()
                self._sync = find_sync() if self.options.sync_fn == "auto" else self.options.sync_fn
                if self._sync is not None:
                    self._sync()
                if self._reads and self._sampler is not None:
                    yield from self._first_reading(self._sampler)
        except BaseException:
            self.release()
            raise
        self._clock_steps.step()
        self.start_ns = self._clock.now_ns()
        if self._reads:
            # The anchor keeps sums from here on, for a run that outlives the history.
            first_ns = self.start_ns + nanoseconds(self.options.warmup_s)
            for timeline in self._timelines():
                self._traces[timeline.device.uuid] = {signal: UtilisationTrace(first_ns) for signal in BUSY_SOURCES}
                timeline.anchor(first_ns)
                self._anchored.append((timeline, first_ns))

    @property
    def _sampler(self) -> Sampler | None:
        return None if self._hold is None else self._hold.sampler

    @property
    def _resolved(self) -> list[Device]:
        return [device for _, device in self.devices if device is not None]

    def _start_sampling(self) -> Pauses:
        try:
            self._hold = hold(self.options.backend, self.options.interval_s)
            sampler = self._hold.sampler
            if sampler is None:
                self._notes.append(self._hold.reason)
            elif self._reads or self.options.strict:
                yield from _until_driver(sampler)
                self.devices = self._resolve(sampler)
                yield from self._until_read(sampler)
        except GpuProfileError as error:
            if self.options.strict:
                raise
            problem = str(error)
            self._notes.append(problem)
            # The sampler has already logged a problem of its driver.
            if problem not in _warned and (self._sampler is None or problem != self._sampler.problem):
                _warned.add(problem)
                _log.warning("gpu-profile: a run continues without measurements: %s", problem)

    def _resolve(self, sampler: Sampler) -> list[tuple[int | str, Device | None]]:
        simulated = sampler.driver is not None and is_simulated(sampler.driver)
        visible = Visible(sampler.listed, os.environ, simulated=simulated)
        current = current_device()
        labelled: list[tuple[int | str, Device | None]] = []
        for label, spec in zip(self.options.labels, self.options.devices, strict=True):
            devices = visible.resolve(spec, current=current)
            alone = len(devices) == 1
            labelled += [(label if alone else _ordinal(visible.devices, device), device) for device in devices]
        return labelled

    def _until_read(self, sampler: Sampler) -> Pauses:
        """Wait until the sampler reads this run's devices. The process's own one must be asked for them first."""
        wanted = [device.uuid for device in self._resolved]
        if self._hold is not None and self._hold.session is not None:
            self._hold.session.joiner.read_devices(wanted)
        end_ns = self._clock.now_ns() + nanoseconds(FIRST_READING_S)
        while any(uuid not in sampler.states for uuid in wanted):
            if _refused(sampler) or self._clock.now_ns() >= end_ns:
                raise GpuBackendError(f"{', '.join(wanted)}: the driver returned no reading")
            yield LOOK_S

    def _first_reading(self, sampler: Sampler) -> Pauses:
        if self._keeps:
            self.kept = {device.uuid: Timeline(device, capacity=MOST_KEPT) for device in self._resolved}
        sampler.sinks.append(self._watch)
        target, end_ns = sampler.next_round(), self._clock.now_ns() + nanoseconds(FIRST_READING_S)
        sampler.wake()
        while sampler.stats.rounds < target and not _refused(sampler) and self._clock.now_ns() < end_ns:
            yield LOOK_S

    def _watch(self, device: Device, samples: Sequence[Sample]) -> None:
        """A sink in the sampler's thread: keep values that the history may drop before the run has ended."""
        timeline, traces = self.kept.get(device.uuid), self._traces.get(device.uuid)
        if timeline is not None:
            timeline.append(samples)
        if traces is not None:
            for signal, start_ns, end_ns, value in samples:
                if signal in BUSY_SOURCES:
                    traces[signal].add(start_ns, end_ns, signal.base(value))

    def _timelines(self) -> list[Timeline]:
        sampler = self._sampler
        timelines = [sampler.timeline(device.uuid) for device in self._resolved] if sampler is not None else []
        return [timeline for timeline in timelines if timeline is not None]

    # ------------------------------------------------------------------ meanwhile

    def region(self, name: str) -> AbstractContextManager[object]:
        """The run as a region if the process's own session samples it: only its samples can be joined."""
        template = self.as_region(name)
        return nullcontext() if template is None else template

    def as_region(self, name: str) -> Any:
        """`region(name)`, or None if another driver samples the run."""
        if self._hold is None or self._hold.session is None:
            return None
        return region(name, device=tuple(device.uuid for device in self._resolved) or self.options.devices)

    def synchronise(self) -> None:
        """Call `sync_fn` once to wait for launched work. Its exceptions pass through."""
        if self.options.sync_fn == "auto" and not self._synced:
            self._sync = find_sync()  # the run itself may have been the first to use the GPU
        if self._sync is not None and not self._synced:
            self._synced = True
            self._sync()

    # ------------------------------------------------------------------ after

    def closing(self, error: BaseException | None = None) -> Pauses:
        """End the run and summarise it. An exception of `sync_fn` is raised last, or added as a note to `error`."""
        if self.abandoned:
            self._end()
            self.summaries = tuple(self._without_numbers(label, "n/a", self.abandoned) for label, _ in self.devices)
            return
        failure: Exception | None = None
        try:
            try:
                self.synchronise()
            except Exception as raised:  # noqa: BLE001 - the summary comes first
                failure = raised
            self._end()
            if self._reads:
                if self._sampler is not None:
                    yield from self._settle(self._sampler)
                self.summaries = tuple(self._summary(label, device) for label, device in self.devices)
        finally:
            self.release()
        if failure is not None:
            if error is None:
                raise failure
            error.add_note(f"gpu-profile: sync_fn raised too: {failure!r}")

    def _end(self) -> None:
        now_ns = self._clock.now_ns()
        self.end_ns = max(now_ns, self.start_ns)
        step = self._clock_steps.step()
        self.skipped_ns = step.set_ns + self.end_ns - now_ns if step is not None else 0

    def _settle(self, sampler: Sampler) -> Pauses:
        """Wait until samples cover the run's end, or will not come."""
        timelines = self._timelines()
        energies = [c for timeline in timelines if (c := timeline.best(ENERGY_SOURCES)) is not None]
        last_ns = self.end_ns + nanoseconds(max(SETTLE_S, lag_s(sampler.driver)))
        target, read_ns = sampler.next_round(), self._clock.now_ns()
        sampler.wake()
        while not (sampler.stopped or _refused(sampler)):
            now = self._clock.now_ns()
            if sampler.stats.rounds >= target:
                states = (sampler.states.get(device.uuid) for device in self._resolved)
                if not any(state is not None and state.up for state in states) or (
                    all((column.watermark_ns or 0) >= self.end_ns for column in energies)
                    and all(_is_settled(timeline, self.end_ns) for timeline in timelines)
                ):
                    return
                if now - read_ns >= nanoseconds(READ_AGAIN_S):
                    read_ns = now
                    sampler.wake(quick=True)
            if not 0 <= now - self.end_ns < last_ns - self.end_ns:
                return
            yield LOOK_S

    def _summary(self, label: int | str, device: Device | None) -> GpuSummary:
        sampler, notes = self._sampler, list(self._notes)
        timeline = sampler.timeline(device.uuid) if sampler is not None and device is not None else None
        if sampler is None or device is None or timeline is None:
            return self._without_numbers(label, device.name if device is not None else "n/a", join_notes(notes))
        state = sampler.states.get(device.uuid)
        if sampler.stopped or sampler.driver is None:
            notes.append(f"sampling stopped early: {sampler.problem or 'the session was ended'}")
        elif state is not None and not state.up:
            notes.append(f"sampling stopped early: {state.reason}")
        return summarise_run(
            timeline,
            Interval(self.start_ns, self.end_ns),
            device=label,
            interval_s=self.options.interval_s,
            warmup_s=self.options.warmup_s,
            notes=notes,
            traces={signal: trace.means for signal, trace in self._traces.get(device.uuid, {}).items()},
            skipped_ns=self.skipped_ns,
        )

    def samples(self) -> list[list[GpuSample]]:
        """The samples kept so far, for each device."""
        run = Interval(self.start_ns, self.end_ns or self._clock.now_ns())
        kept = (self.kept.get(device.uuid) if device is not None else None for _, device in self.devices)
        return [[] if timeline is None else samples_of(timeline, run) for timeline in kept]

    def _without_numbers(self, label: int | str, name: str, note: str) -> GpuSummary:
        duration_s = seconds(max(0, self.end_ns - self.start_ns - self.skipped_ns))
        return GpuSummary(label, name, duration_s, self.options.interval_s, notes=note)

    def release(self) -> None:
        """End this run's request for samples."""
        if self._hold is None or self.abandoned:
            return
        if self._sampler is not None and self._watch in self._sampler.sinks:
            self._sampler.sinks.remove(self._watch)
        for timeline, start_ns in self._anchored:
            timeline.release(start_ns)
        self._anchored.clear()
        self._hold.release()


def _ordinal(visible: Sequence[Device], device: Device) -> int | str:
    return visible.index(device) if device in visible else device.uuid


def _refused(sampler: Sampler) -> bool:
    """Whether the sampler has tried to open a driver and has none now."""
    return sampler.driver is None and sampler.stats.turned_ns > 0 and bool(sampler.problem)


def _until_driver(sampler: Sampler) -> Pauses:
    """Wait until the driver has answered. Raises GpuBackendError if there is none."""
    looks = int(DRIVER_S / LOOK_S)
    if sampler.driver is None and not sampler.running:
        sampler.wake()  # without a thread, this opens the driver
    for _ in range(looks):
        if sampler.driver is not None and sampler.stats.rounds:
            return
        if _refused(sampler):
            raise GpuBackendError(sampler.problem)
        yield LOOK_S
    raise GpuBackendError(f"the driver has not answered within {DRIVER_S:g} s")


def _is_settled(timeline: Timeline, t_ns: int) -> bool:
    """Whether later samples cannot improve the busy time up to `t_ns`."""
    column = timeline.best(BUSY_SOURCES)
    if column is not None and column.watermark_ns is None:
        return False  # its first reading is pending
    return settled(timeline, t_ns)
