"""The costs of a run from the energy of whole GPUs, for a server without an exporter that reads its iterations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gpu_profile.analysis.costs.benchmark import BenchmarkResult
from gpu_profile.analysis.costs.counters import gpu_names
from gpu_profile.analysis.costs.run import DECODE, PREFILL, REQUESTS, RunCosts
from gpu_profile.catalogue import ENERGY_SOURCES
from gpu_profile.catalogue.samples import Interval
from gpu_profile.errors import UsageError
from gpu_profile.history.timeline import Column, Timeline
from gpu_profile.join.reading import read
from gpu_profile.units import NS_PER_S, nanoseconds, percent

#: Least share of the command's time that samples must cover.
_COVERED: Final = 0.95
#: The step between places of the run within the command, and the most steps.
_STEP_NS, _MOST_STEPS = 100_000_000, 600
_NO_PHASES: Final = "whole GPUs were measured; an exporter with --serving tells phases apart"


def whole_costs(
    timelines: Sequence[Timeline], during: Interval, result: BenchmarkResult, *, simulated: bool = False
) -> RunCosts:
    """The costs of a benchmark that ran `during` a command, from the histories of its GPUs.

    The result has the benchmark's length, but not its begin on this clock. The command also loads a tokenizer and
    computes statistics, while the GPUs idle. So the run is the stretch of that length with the highest energy. Raises
    UsageError if the command was shorter, or energy was not measured.
    """
    length_ns = nanoseconds(result.duration_s)
    spare_ns = during.end_ns - during.start_ns - length_ns
    if spare_ns < 0:
        took = (during.end_ns - during.start_ns) / NS_PER_S
        raise UsageError(f"the result is of {result.duration_s:.1f} s, and the command took {took:.1f} s: another run?")
    columns = [_energy(timeline) for timeline in timelines]
    steps = min(_MOST_STEPS, 1 + spare_ns // _STEP_NS)
    starts = (during.start_ns + np.linspace(0, spare_ns, steps)).astype(np.int64).tolist()
    joules = [sum(_joules(column, Interval(at, at + length_ns)) for column in columns) for at in starts]
    best = int(np.argmax(joules))
    run = Interval(starts[best], starts[best] + length_ns)
    for timeline, column in zip(timelines, columns, strict=True):
        # Of the whole command: the run may be where samples are missing.
        reading = read(column, during)
        coverage = 0.0 if reading is None else reading.coverage
        if coverage < _COVERED:
            device = timeline.device.name or timeline.device.uuid
            raise UsageError(f"samples of the energy of {device} cover only {percent(coverage, 0)} of the command")
    gpus = gpu_names([timeline.device.name or timeline.device.uuid for timeline in timelines])
    return RunCosts(
        "",
        run.start_ns,
        run.end_ns,
        result.requests,
        {REQUESTS: result.output_tokens, PREFILL: result.input_tokens, DECODE: result.output_tokens},
        "result",
        {REQUESTS: joules[best], PREFILL: None, DECODE: None},
        {},
        result.duration_s * len(timelines),
        sum(_joules(column, during) for column in columns) - joules[best],
        {},
        {"GPUs": gpus, **result.settings},
        {PREFILL: _NO_PHASES, DECODE: _NO_PHASES},
        simulated=simulated,
    )


def _energy(timeline: Timeline) -> Column:
    column = timeline.best(ENERGY_SOURCES)
    if column is None:
        device = timeline.device.name or timeline.device.uuid
        raise UsageError(f"{device}: its driver reports neither energy nor power; choose GPUs with --device")
    return column


def _joules(column: Column, interval: Interval) -> float:
    reading = read(column, interval)
    return 0.0 if reading is None else reading.total
