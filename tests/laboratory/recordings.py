"""A case as a recording in a temporary folder, read back and analysed; and the same replayed through the live join."""

from __future__ import annotations

import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
    """A program, its sensors, how long it is recorded, and the seed of all chance in it."""

    program: Program
    sensors: tuple[Sensor, ...]
    seconds: float
    seed: int

    def run(self) -> Run:
        """The device's curves, the sensors' readings, and the executions' stamps."""
        rng = np.random.default_rng(self.seed)
        world = make(self.program, self.seconds, rng)
        readings = [(sensor, *found) for sensor in self.sensors for found in sensor.read(world, rng)]
        return Run(self, world, readings, *_stamps(world, rng))


class Run(NamedTuple):
    """What happened in a case. Stamps are in ns after the recording's start; marks are None where there are none."""

    case: Case
    world: World
    readings: list[tuple[Sensor, Signal, Quantity, Readings]]
    host: tuple[Ints, Ints]
    marks: tuple[Ints, Ints] | None

    @property
    def joined(self) -> tuple[Ints, Ints]:
        """The stamps that the product joins by: the device's where there are any."""
        return self.host if self.marks is None else self.marks


class Answer(NamedTuple):
    """What the product says of one quantity of a region; None: refused, for `reason`. No half-width: None.

    `flagged`: the number comes with a word that it may be wrong.
    """

    value: float | None
    half_width: float | None = None
    reason: str = ""
    flagged: bool = False


#: By region and quantity. `OUTSIDE` stands for what no region was active for.
Answers = Mapping[tuple[str, str], Answer]
OUTSIDE: Final = "(outside)"
#: The live path is fed by slices of so long.
SLICE_S: Final = 0.5


def _stamps(world: World, rng: np.random.Generator) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints] | None]:
    """What the host stamps the executions with, and the device's marks."""
    stamps, ran = world.program.stamps, world.executions
    true = np.stack([ran.starts, ran.ends]) * STEP_NS
    late = rng.uniform(*stamps.late_ms, true.shape)
    late = np.where(rng.random(true.shape) < stamps.tail, late * stamps.tail_factor, late)
    host = true + (late * 1e6).astype(np.int64)
    depth = np.where(ran.parents >= 0, 1, 0)
    for thread in np.unique(ran.threads):
        mine = np.flatnonzero(ran.threads == thread)
        # An outer execution starts before those inside it and ends after them; one ends before the next starts.
        edges = np.concatenate([true[0, mine] * 4 + 2 + depth[mine], true[1, mine] * 4 + 1 - depth[mine]])
        order = np.argsort(edges, kind="stable")
        flat = np.concatenate([host[0, mine], host[1, mine]])
        flat[order] = np.maximum.accumulate(flat[order])
        host[:, mine] = flat.reshape(2, -1)
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
    """All readings as a driver gives them, in order of their stamps."""
    found = [
        Sample(signal, T0 + a, T0 + b, value)
        for _, signal, _, each in readings
        for a, b, value in zip(each.starts_ns.tolist(), each.stamps_ns.tolist(), each.values.tolist(), strict=True)
    ]
    return sorted(found, key=lambda sample: sample.t_end_ns)


def record(run: Run, directory: Path) -> Path:
    """Write the recording; the file's path."""
    with RecordingWriter(directory, now_ns=lambda: T0, driver="laboratory") as writer:
        writer.device(DEVICE)
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
    """What `gpu-profile analyze` says of the recording."""
    analysis = analyse(recorded(run))
    answers: dict[tuple[str, str], Answer] = {}
    for use in analysis.regions:
        answers |= _answers(use.summary)
    rest, width = analysis.devices[0].unattributed_j, analysis.devices[0].unattributed_half_width_j
    answers[OUTSIDE, "energy"] = Answer(rest, width, "" if rest is not None else "not known", flagged=width is None)
    return answers


def _answers(summary: RegionSummary) -> dict[tuple[str, str], Answer]:
    sm = summary.rates.get("sm")
    found = {
        "power": Answer(summary.power_w, summary.power_half_width, summary.energy_reason),
        "busy": Answer(summary.busy, summary.busy_half_width, summary.reason),
        "sm": Answer(sm and sm.value, sm and sm.half_width, summary.reason),
        "energy": Answer(summary.energy_j, summary.energy_half_width, flagged=summary.energy_half_width is None),
        "busy_s": Answer(summary.busy_s, summary.busy_s_half_width, flagged=summary.busy_s_half_width is None),
    }
    return {(summary.region, quantity): answer for quantity, answer in found.items()}


def replayed(run: Run) -> Answers:
    """What a live session says that meets the same samples and executions as they arrive, half a second at a time."""
    samples = samples_of(run.readings)
    timeline = Timeline(DEVICE, [signal for _, signal, _, _ in run.readings], capacity=6000)
    clock = FakeClock(T0)
    sampler = SimpleNamespace(
        states={DEVICE.uuid: SimpleNamespace(device=DEVICE)},
        stats=SimpleNamespace(turned_ns=1),
        driver=None,
        timeline=lambda _: timeline,
        look_again=lambda: None,
    )
    placement = SimpleNamespace(version=0, has=lambda _: True, of=lambda _: (DEVICE,), add=lambda _: False)
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
