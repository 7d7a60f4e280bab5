"""Plays a known load on a device and polls every sensor meanwhile: chips of pseudo-random lengths and levels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.calibration.load import Load
from gpu_profile.calibration.workers import LoadWorker
from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.clock import Clock
from gpu_profile.driver.protocol import Driver
from gpu_profile.errors import GpuProfileError
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.regions.streams import Stream
from gpu_profile.units import NS_PER_S, nanoseconds

#: Lengths of chips in s. None is a round number: sensors are in lock-step with exactly 10, 20 or 50 ms.
CHIPS_S: Final = (0.01037, 0.02071, 0.05193)
#: Bounds of the pause between two polls, in s. Random pauses keep the polls out of step with sensors. 200 Hz and more.
_POLLS_S: Final = (0.002, 0.006)
#: GPM refuses windows that are not longer than its refresh of 100 ms.
_GPM_NS: Final = nanoseconds(0.105)
#: Drivers keep some seconds of readings. Others' processes are looked for as often.
_DRAIN_NS: Final = nanoseconds(0.5)
#: The longest wait for the mark at a chip's end, beyond twice its length.
_LATEST_NS: Final = 5 * NS_PER_S


class LoadStep(NamedTuple):
    """Seconds at a level; None is idleness."""

    level: int | None
    seconds: float


class Played(NamedTuple):
    """The load by the device's marks, and the samples of each poll, oldest first, by the way they were read."""

    load: Load
    read: list[list[Sample]]
    drained: list[Sample]
    windows: list[Sample]
    start_ns: int
    end_ns: int


def chips(seconds: float, levels: int, rng: np.random.Generator) -> list[LoadStep]:
    """Chips of all lengths for about `seconds`: a third of them idle, the others at one of the levels."""
    steps, left = [], seconds
    while left > 0:
        level = int(rng.integers(-1, levels))
        steps.append(LoadStep(None if level < 0 else level, float(rng.choice(CHIPS_S))))
        left -= steps[-1].seconds
    return steps


def loop(seconds: float, lengths_s: Sequence[float], rng: np.random.Generator) -> list[LoadStep]:
    """Regions of these lengths, one for each level, in random order with pauses of up to 5 ms between them."""
    steps, left = [], seconds
    while left > 0:
        level = int(rng.integers(len(lengths_s)))
        steps += [
            LoadStep(level, lengths_s[level] * float(rng.uniform(0.8, 1.2))),
            LoadStep(None, float(rng.uniform(0, 5e-3))),
        ]
        left -= steps[-1].seconds + steps[-2].seconds
    return steps


class Player:
    """Plays steps on a device and polls its sensors meanwhile, all in one thread.

    `check` is called twice a second and may raise to end that.
    """

    def __init__(self, driver: Driver, device: Device, clock: Clock, check: Callable[[], None], seed: int = 0) -> None:
        self._driver, self._device, self._clock, self._check = driver, device, clock, check
        self._rng = np.random.default_rng(seed)
        self._never = threading.Event()

    def play(self, worker: LoadWorker | None, steps: Iterable[LoadStep]) -> Played:
        """Play the steps one after the other; without a worker, only idleness.

        GpuProfileError if the device does not mark their begin and end.
        """
        self._read: list[list[Sample]] = []
        self._drained: list[Sample] = []
        self._windows: list[Sample] = []
        self._gpm_ns = self._drain_ns = start_ns = self._clock.now_ns()
        # The driver's buffered readings are of another load.
        self._driver.drain(self._device)
        self._driver.boundary(self._device)
        marks = []
        for level, seconds in steps:
            if level is None or worker is None:
                due = self._clock.now_ns() + nanoseconds(seconds)
                self._poll_until(partial(self._due, due), seconds)
                continue
            began = worker.stream.record()
            worker.launch(level, seconds)
            ended = worker.stream.record()
            latest = self._clock.now_ns() + _LATEST_NS + 2 * nanoseconds(seconds)
            self._poll_until(partial(self._passed, worker.stream, ended, latest), seconds)
            marks.append((began, ended, level))
        self._drained += self._driver.drain(self._device)
        resolved = [
            (_moment(worker.stream, began), _moment(worker.stream, ended), level)
            for began, ended, level in marks
            if worker is not None
        ]
        starts, ends, levels = np.array(resolved, np.int64).reshape(-1, 3).T
        load = Load(starts, ends, levels)
        return Played(load, self._read, self._drained, self._windows, start_ns, self._clock.now_ns())

    def _poll_until(self, done: Callable[[], bool], seconds: float) -> None:
        while not done():
            self._poll()
            wait = min(float(self._rng.uniform(*_POLLS_S)), max(seconds, 1e-4))
            self._clock.wait(self._never, wait)

    def _due(self, moment_ns: int) -> bool:
        return self._clock.now_ns() >= moment_ns

    def _passed(self, stream: Stream, mark: object, latest_ns: int) -> bool:
        try:
            if stream.resolve(mark) is not None:
                return True
        except LookupError as error:
            raise GpuProfileError(f"the device gives no marks: {error}") from error
        if self._clock.now_ns() > latest_ns:
            raise GpuProfileError("the device has not run what was launched for seconds: is it used by others?")
        return False

    def _poll(self) -> None:
        self._read.append(list(self._driver.read(self._device, Tier.FAST)))
        now = self._clock.now_ns()
        if now - self._gpm_ns >= _GPM_NS:
            self._gpm_ns = now
            self._windows += self._driver.boundary(self._device)
        if now - self._drain_ns >= _DRAIN_NS:
            self._drain_ns = now
            self._drained += self._driver.drain(self._device)
            self._check()


def _moment(stream: Stream, mark: object) -> int:
    moment = stream.resolve(mark)
    if moment is None:
        raise GpuProfileError("the device has not marked what it ran")
    return moment


def series(samples: Iterable[Sample], signal: Signal) -> tuple[Ints, Ints, Floats]:
    """A signal's samples as columns: starts, ends, values in its base unit."""
    rows_of = [(s.t_start_ns, s.t_end_ns, s.value) for s in samples if s.signal is signal]
    starts, ends, values = np.array(rows_of, np.int64).reshape(-1, 3).T
    return starts, ends, values.astype(np.float64) * signal.quantum
