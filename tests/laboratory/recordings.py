"""A case as a recording in a temporary folder, read back and analysed, or replayed through the live join."""

from __future__ import annotations

import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import numpy as np

from gpu_profile.analysis import analyse
from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.summary import RegionSummary
from gpu_profile.recording import DeviceInterval, Recording, RecordingWriter, SpanRecord, read_recording
from gpu_profile.regimes import DEFAULT_THRESHOLDS
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.joiner import Joiner
from gpu_profile.testing import FakeClock
from gpu_profile.units import NS_PER_S
from laboratory.curves import Quantity, World, make
from laboratory.programs import STEP_NS, Ints, Program
from laboratory.sensors import Readings, Sensor

T0: Final = 1_750_000_000 * NS_PER_S
DEVICE: Final = Device("GPU-laboratory", index=0, name="Laboratory H200")


@dataclass(frozen=True)
class Case:
    """A program, its sensors, the length of the recording, the seed of all random choices, and the board's name."""

    program: Program
    sensors: tuple[Sensor, ...]
    seconds: float
    seed: int
    board: str = field(default=DEVICE.name, repr=False)  # the digest of the mix is of the other fields

    @property
    def gpu(self) -> Device:
        """The device with the board's name.

        The counters of measured boards measure all of the time. One that measures a part is of an unknown board.
        """
        parts = any(sensor.kind == "counter" and sensor.window_ms for sensor in self.sensors)
        return replace(DEVICE, name="Laboratory" if parts else self.board)

    def run(self) -> Run:
        """The device's curves, the sensors' readings, and the executions' stamps."""
        rng = np.random.default_rng(self.seed)
        world = make(self.program, self.seconds, rng)
        readings = [(sensor, *signal) for sensor in self.sensors for signal in sensor.read(world, rng)]
        return Run(self, world, readings, *_stamps(world, rng))


class Run(NamedTuple):
    """The events of a case. Stamps are in ns after the recording's start. `marks` is None without device marks."""

    case: Case
    world: World
    readings: list[tuple[Sensor, Signal, Quantity, Readings]]
    host: tuple[Ints, Ints]
    marks: tuple[Ints, Ints] | None

    @property
    def joined(self) -> tuple[Ints, Ints]:
        """The stamps for the product's join: the device's if there are any, else the host's."""
        return self.host if self.marks is None else self.marks


class Answer(NamedTuple):
    """The product's answer for one quantity of a region. `value` None: refused, for `reason`.

    `flagged`: the product warns that the number may be wrong.
    """

    value: float | None
    half_width: float | None = None
    reason: str = ""
    flagged: bool = False


#: By region and quantity. `OUTSIDE` is the time without any active region.
Answers = Mapping[tuple[str, str], Answer]
OUTSIDE: Final = "(outside)"
#: Length of the slices of data for the live path.
SLICE_S: Final = 0.5


def _stamps(world: World, rng: np.random.Generator) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints] | None]:
    """The host's stamps of the executions, and the device's marks."""
    stamps, ran = world.program.stamps, world.executions
    true = np.stack([ran.starts, ran.ends]) * STEP_NS
    late = rng.uniform(*stamps.late_ms, true.shape)
    late = np.where(rng.random(true.shape) < stamps.tail, late * stamps.tail_factor, late)
    host = true + (late * 1e6).astype(np.int64)
    depth = np.where(ran.parents >= 0, 1, 0)
    for thread in np.unique(ran.threads):
        own = np.flatnonzero(ran.threads == thread)
        # An outer execution starts before its inner ones and ends after them. Each ends before the next starts.
        edges = np.concatenate([true[0, own] * 4 + 2 + depth[own], true[1, own] * 4 + 1 - depth[own]])
        order = np.argsort(edges, kind="stable")
        flat = np.concatenate([host[0, own], host[1, own]])
        flat[order] = np.maximum.accumulate(flat[order])
        host[:, own] = flat.reshape(2, -1)
    if stamps.marks_us is None:
        return (host[0], host[1]), None
    error = np.clip(rng.normal(0, stamps.marks_us, true.shape), -20 * stamps.marks_us, 20 * stamps.marks_us)
    starts = true[0] + (error[0] * 1000).astype(np.int64)
    return (host[0], host[1]), (starts, np.maximum(starts, true[1] + (error[1] * 1000).astype(np.int64)))


def spans_of(run: Run) -> Iterator[SpanRecord]:
    """The marked executions, in the order in which they end."""
    ran, names = run.world.executions, run.world.program.names
    starts, ends = run.host
    for i in np.argsort(ends, kind="stable").tolist():
        if not ran.marked[i]:
            continue
        parent = int(ran.parents[i])
        marks = run.marks
        yield SpanRecord(
            names[ran.regions[i]],
            T0 + int(starts[i]),
            T0 + int(ends[i]),
            id=str(i),
            parent=str(parent) if parent >= 0 else None,
            devices=(DEVICE.uuid,),
            device_intervals=()
            if marks is None
            else (DeviceInterval(DEVICE.uuid, int(ran.threads[i]), T0 + int(marks[0][i]), T0 + int(marks[1][i])),),
        )


def samples_of(readings: Iterable[tuple[Sensor, Signal, Quantity, Readings]]) -> list[Sample]:
    """All readings as samples of a driver, in order of their stamps."""
    samples = [
        Sample(signal, T0 + a, T0 + b, value)
        for _, signal, _, each in readings
        for a, b, value in zip(each.starts_ns.tolist(), each.stamps_ns.tolist(), each.values.tolist(), strict=True)
    ]
    return sorted(samples, key=lambda sample: sample.t_end_ns)


def record(run: Run, directory: Path) -> Path:
    """Write the recording. Returns the file's path."""
    with RecordingWriter(directory, now_ns=lambda: T0, driver="laboratory") as writer:
        writer.device(run.case.gpu)
        writer.samples(DEVICE.uuid, samples_of(run.readings))
        for span in spans_of(run):
            writer.span(span)
        return writer.path


def recorded(run: Run) -> Recording:
    """The recording as a user reads it back."""
    with tempfile.TemporaryDirectory() as directory:
        record(run, Path(directory))
        return read_recording(directory)


def analysed(run: Run) -> Answers:
    """The answers of `gpu-profile analyze` for the recording."""
    analysis = analyse(recorded(run))
    answers: dict[tuple[str, str], Answer] = {}
    for use in analysis.regions:
        answers |= _answers(use.summary)
    rest, width = analysis.devices[0].unattributed_j, analysis.devices[0].unattributed_half_width_j
    answers[OUTSIDE, "energy"] = Answer(rest, width, "" if rest is not None else "not known", flagged=width is None)
    return answers


def _answers(summary: RegionSummary) -> dict[tuple[str, str], Answer]:
    sm = summary.rates.get("sm")
    by_quantity = {
        "power": Answer(summary.power_w, summary.power_half_width, summary.energy_reason),
        "busy": Answer(summary.busy, summary.busy_half_width, summary.reason),
        "sm": Answer(sm and sm.value, sm and sm.half_width, summary.reason),
        "energy": Answer(summary.energy_j, summary.energy_half_width, flagged=summary.energy_half_width is None),
        "busy_s": Answer(summary.busy_s, summary.busy_s_half_width, flagged=summary.busy_s_half_width is None),
    }
    return {(summary.region, quantity): answer for quantity, answer in by_quantity.items()}


def replayed(run: Run) -> Answers:
    """The answers of a live session that gets the same samples and executions in slices of half a second."""
    samples = samples_of(run.readings)
    device = run.case.gpu
    timeline = Timeline(device, [signal for _, signal, _, _ in run.readings], capacity=6000)
    clock = FakeClock(T0)
    sampler = SimpleNamespace(
        states={DEVICE.uuid: SimpleNamespace(device=device)},
        stats=SimpleNamespace(turned_ns=1),
        driver=None,
        timeline=lambda _: timeline,
        relist_devices=lambda: None,
    )
    placement = SimpleNamespace(version=0, has=lambda _: True, of=lambda _: (device,), add=lambda _: False)
    joiner = Joiner(cast("Any", sampler), cast("Any", placement), clock, DEFAULT_THRESHOLDS, Counter())
    executions: dict[str, tuple[Execution, SpanRecord]] = {}
    for span in sorted(spans_of(run), key=lambda span: (span.start_ns, -span.end_ns)):
        around = executions.get(span.parent or "")
        executions[span.id] = Execution(span.name, around and around[0]), span
    coming, ending = deque(executions.values()), deque(sorted(executions.values(), key=lambda e: e[1].end_ns))
    began: deque[Execution] = deque()
    arrived = 0
    for slice_number in range(1, int(run.case.seconds / SLICE_S) + 1):
        now = T0 + int(slice_number * SLICE_S * NS_PER_S)
        clock.advance((now - clock.now_ns()) / NS_PER_S)
        first = arrived
        while arrived < len(samples) and samples[arrived].t_end_ns <= now:
            arrived += 1
        timeline.append(samples[first:arrived])
        while coming and coming[0][1].start_ns <= now:
            execution, span = coming.popleft()
            execution.start_ns = span.start_ns
            began.append(execution)
        while ending and ending[0][1].end_ns <= now:
            execution, span = ending.popleft()
            execution.end_ns = span.end_ns
        joiner.join(began, final=slice_number == int(run.case.seconds / SLICE_S))
    answers: dict[tuple[str, str], Answer] = {}
    for judged in joiner.regions():
        answers |= _answers(judged.summary)
    return answers
