"""The results of one monitored run on one device, in units for people: %, MiB, W, °C, s. Pure.

The names and units are those of the documents that specify `GpuMonitor` and the decorator `gpu_profile`, not this
project's base units. A value that was not measured is None, never 0 or NaN.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Interval
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.busy import busy_time
from gpu_profile.join.reading import Reading, quantiles, read
from gpu_profile.report.sparkline import sparkline
from gpu_profile.units import MIB, NS_PER_S, seconds

R = TypeVar("R")
#: Takes times in ns and returns the mean between each two neighbours; None without samples.
Means: TypeAlias = Callable[[Sequence[int]], Sequence[float | None]]

#: The number of characters of the utilisation trace.
TRACE: Final = 40
#: A lower coverage of a run is noted: then more is missing than the edges of the run.
WELL_COVERED: Final = 0.95
#: A note is due if energy readings look further beyond the covered part of a run than this share of it.
_BESIDE: Final = 0.1


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The device at one moment, `t_s` seconds after the monitor started.

    There is one for each utilisation value of the driver. The other fields have the values at that time.
    Utilisation is in %, memory in MiB, power in W, temperature in °C, clocks in MHz.
    """

    t_s: float
    util_gpu: float | None = None
    util_mem: float | None = None
    mem_used_mb: float | None = None
    mem_total_mb: float | None = None
    power_w: float | None = None
    temp_c: float | None = None
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None


@dataclass(frozen=True)
class GpuSummary:
    """One run on one device. Its first `warmup_s` count in `duration_s` only.

    `device` is the user's name of the device. `n_samples` is the number of values that the driver renewed, not of
    queries. `busy_time_est_s` is mean utilisation x (duration - warm-up). If samples cover less than 95 % of that time,
    it is the busy time of the covered part. `coverage` is the covered share; 0 means no samples. `resolution_s` is the
    uncertainty of `busy_time_est_s`. Percentiles are weighted by time. They and the maximum are of the driver's own
    windows. `energy_source` is the signal that `energy_j` comes from: `energy`, the driver's counter, or
    `power_average`, integrated. `notes` lists anything unusual, separated by " | ".
    """

    device: int | str
    name: str
    duration_s: float
    interval_s: float
    n_samples: int = 0
    util_gpu_mean: float | None = None
    util_gpu_p50: float | None = None
    util_gpu_p95: float | None = None
    util_gpu_max: float | None = None
    util_mem_mean: float | None = None
    mem_used_max_mb: float | None = None
    mem_total_mb: float | None = None
    power_mean_w: float | None = None
    power_max_w: float | None = None
    temp_max_c: float | None = None
    busy_time_est_s: float | None = None
    sparkline: str = ""
    notes: str = ""
    coverage: float = 0.0
    energy_j: float | None = None
    energy_source: str | None = None
    resolution_s: float | None = None

    def format(self) -> str:
        """A report in several lines for people; `n/a` for a value that could not be measured."""
        utilisation = (
            f"mean {_text(self.util_gpu_mean, '%')} | p50 {_text(self.util_gpu_p50, '%')} | "
            f"p95 {_text(self.util_gpu_p95, '%')} | max {_text(self.util_gpu_max, '%')}"
        )
        lines = [
            f"[GPU {self.device}] {self.name}",
            f"  duration: {self.duration_s:.3f}s | samples: {self.n_samples} @ {self.interval_s:.3f}s",
            f"  util.gpu: {utilisation}",
            f"  util.mem: mean {_text(self.util_mem_mean, '%')}",
            f"  memory: max used {_text(self.mem_used_max_mb, ' MB', 0)} / total {_text(self.mem_total_mb, ' MB', 0)}",
            f"  power: mean {_text(self.power_mean_w, ' W')} | max {_text(self.power_max_w, ' W')}",
            f"  temp: max {_text(self.temp_max_c, ' °C', 0)}",
            f"  busy time (est): {_text(self.busy_time_est_s, 's', 3)}",
        ]
        if self.sparkline:
            lines.append(f"  util trace: {self.sparkline}")
        source = {None: "", "energy": " (counter)"}.get(self.energy_source, " (from power)")
        lines.append(f"  energy: {_text(self.energy_j, ' J')}{source}")
        lines.append(f"  coverage: {self.coverage:.1%} | resolution: {_text(self.resolution_s, 's', 3)}")
        if self.notes:
            lines.append(f"  notes: {self.notes}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, in JSON types; an unknown value is None."""
        return asdict(self)

    def to_json(self) -> str:
        """`to_dict` as one line of JSON with its keys in order."""
        return json.dumps(self.to_dict(), sort_keys=True, allow_nan=False, ensure_ascii=False)


@dataclass(frozen=True)
class ProfiledResult(Generic[R]):
    """The result of a function with the summaries of the devices: `gpus` for each device, `gpu` for the first."""

    value: R
    gpu: GpuSummary
    gpus: tuple[GpuSummary, ...] = ()

    def __post_init__(self) -> None:
        if not self.gpus:
            object.__setattr__(self, "gpus", (self.gpu,))


def _text(value: float | None, unit: str, digits: int = 1) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}{unit}"


def join_notes(notes: Sequence[str]) -> str:
    """Notes in the format of `GpuSummary.notes`, without duplicates and empty ones."""
    return " | ".join(note for note in dict.fromkeys(notes) if note)


# ---------------------------------------------------------------------- a summary


class Utilisation(NamedTuple):
    """The utilisation of a device during an interval: ratios of 0-1 and seconds. `doubt`: why it is uncertain.

    Mean and busy seconds are for the interval itself; percentiles and the maximum are of the driver's windows.
    """

    mean: float
    busy_s: float
    p50: float | None
    p95: float | None
    maximum: float
    coverage: float
    n: int
    resolution_s: float
    doubt: str = ""


def utilisation(timeline: Timeline, interval: Interval) -> Utilisation | None:
    """The utilisation of `interval`; None without samples. Every summary takes its utilisation from here."""
    column = timeline.best(BUSY_SOURCES)
    reading = None if column is None else read(column, interval)
    if column is None or reading is None:
        return None
    p50, p95 = quantiles(column, interval, 0.5, 0.95)
    length_s = seconds(interval.end_ns - interval.start_ns)
    # If samples end early, the rest is unknown and only the covered part counts. For a run that outlives the history
    # only sums are left, in which its edges hardly count.
    whole = reading.coverage >= WELL_COVERED and (column.oldest_ns or 0) <= interval.start_ns
    bounds = busy_time(timeline, interval) if whole else None
    if bounds is None:
        covered_s = length_s * reading.coverage
        mean, busy_s = min(1.0, reading.mean), min(reading.total, covered_s)
        resolution_s, doubt = reading.resolution * length_s, ""
    else:
        mean, busy_s, resolution_s = bounds.share, bounds.value_s, bounds.half_width_s
        doubt = f"busy time may be {bounds.low_s:.3f}-{bounds.high_s:.3f}s: {bounds.reason}" if bounds.reason else ""
    # A driver that is queried more often than it renews its reading repeats values.
    refresh_s = seconds(reading.signal.refresh_ns)
    independent = min(reading.n, int(length_s * reading.coverage / refresh_s) + 2) if refresh_s else reading.n
    return Utilisation(
        mean=mean,
        busy_s=busy_s,
        p50=p50,
        p95=p95,
        maximum=max(mean, min(1.0, reading.maximum)),
        coverage=reading.coverage,
        n=independent,
        resolution_s=resolution_s,
        doubt=doubt,
    )


def summarise_run(
    timeline: Timeline,
    run: Interval,
    *,
    device: int | str,
    interval_s: float,
    warmup_s: float = 0.0,
    notes: Sequence[str] = (),
    traces: Mapping[Signal, Means] | None = None,
    skipped_ns: int = 0,
) -> GpuSummary:
    """The summary of `run` from the samples of `timeline` that overlap it after the first `warmup_s`.

    For a run that outlives the history, the trace comes from `traces`, and the rest from an anchor at its start.
    `skipped_ns`: the part of the run by which the clock was set ahead, so that it never passed. If the clock was set
    back, it is negative: the run lasted longer than `run`, and the readings of some of it were dropped.
    """
    duration_s = seconds(max(0, run.end_ns - run.start_ns - skipped_ns))
    # Empty if the warm-up is at least as long as the run.
    measured = Interval(min(run.start_ns + round(warmup_s * NS_PER_S), run.end_ns), run.end_ns)
    length_s = seconds(max(0, measured.end_ns - measured.start_ns))
    remarks = list(notes)
    if warmup_s > 0:
        remarks.append(f"warmup ignored: first {warmup_s:.2f}s")
        if not length_s:
            remarks.append("the warmup is longer than the run: nothing was measured")
    busy = utilisation(timeline, measured)
    memory = _first(timeline, measured, rows.MEMORY_CONTROLLER)
    used = _first(timeline, measured, rows.MEMORY_USED)
    temperature = _first(timeline, measured, rows.TEMPERATURE)
    energy = _first(timeline, measured, *ENERGY_SOURCES)
    power = _first(timeline, measured, rows.POWER, rows.POWER_AVERAGE)
    mean_w = energy.mean if energy else power.mean if power else None
    # The maximum of a sensor with a window of a second may be below the mean of the counter.
    peaks = [watts for watts in (mean_w, power and power.maximum) if watts is not None]
    total = timeline.device.memory_bytes
    coverage = busy.coverage if busy else energy.coverage if energy else 0.0
    if skipped_ns:
        ahead = f"ahead by {seconds(skipped_ns):.3f}s: that time is left out"
        back = f"back: {seconds(-skipped_ns):.3f}s of the run are left out"
        remarks.append(f"the clock was set {ahead if skipped_ns > 0 else back}")
        coverage *= length_s / max(length_s - seconds(skipped_ns), length_s * coverage or 1.0)
    if length_s:
        remarks.append("no utilisation samples" if busy is None else busy.doubt)
        if coverage and coverage < WELL_COVERED:
            remarks.append(f"samples cover {coverage:.0%} of the run: busy time and energy are of that part")
        if energy and energy.resolution > _BESIDE * energy.coverage:
            beside_s = energy.resolution * length_s
            remarks.append(f"energy and mean power may include up to {beside_s:.3f}s before or after the measured time")
    return GpuSummary(
        device=device,
        name=timeline.device.name or timeline.device.uuid,
        duration_s=duration_s,
        interval_s=interval_s,
        n_samples=busy.n if busy else 0,
        util_gpu_mean=_scaled(busy and busy.mean, 100),
        util_gpu_p50=_scaled(busy and busy.p50, 100),
        util_gpu_p95=_scaled(busy and busy.p95, 100),
        util_gpu_max=_scaled(busy and busy.maximum, 100),
        util_mem_mean=_scaled(memory and memory.mean, 100),
        mem_used_max_mb=_scaled(used and used.maximum, 1 / MIB),
        mem_total_mb=_scaled(total, 1 / MIB),
        power_mean_w=mean_w,
        power_max_w=max(peaks, default=None),
        temp_max_c=temperature.maximum if temperature else None,
        busy_time_est_s=busy.busy_s if busy else None,
        sparkline=draw(timeline, measured, traces),
        notes=join_notes(remarks),
        coverage=min(1.0, coverage),
        energy_j=energy.total if energy else None,
        energy_source=energy.signal.key if energy else None,
        resolution_s=busy.resolution_s if busy else None,
    )


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _first(timeline: Timeline, interval: Interval, *sources: Signal) -> Reading | None:
    """The reading of the first of `sources` with samples in `interval`."""
    columns = (timeline.column(source) for source in sources)
    usable = (column for column in columns if column is not None and not column.stuck)
    return next((reading for column in usable if (reading := read(column, interval)) is not None), None)


# ---------------------------------------------------------------------- the trace


def draw(timeline: Timeline, interval: Interval, traces: Mapping[Signal, Means] | None = None) -> str:
    """Mean utilisation in `TRACE` equal steps of time, on a scale of 0-100 %; a blank for a step without samples.

    `traces`, by signal, are used if the timeline no longer reaches back to the interval's start.
    """
    column = timeline.best(BUSY_SOURCES)
    if column is None or interval.end_ns - interval.start_ns < TRACE:
        return ""
    edges = np.linspace(0, interval.end_ns - interval.start_ns, TRACE + 1).astype(np.int64) + interval.start_ns
    oldest_ns, trace = column.oldest_ns, (traces or {}).get(column.signal)
    if trace is not None and oldest_ns is not None and oldest_ns > interval.start_ns:
        ratios: Sequence[float | None] = trace(edges.tolist())
    else:
        means, covered = column.means(edges[:-1], edges[1:])
        ratios = [mean if ns else None for mean, ns in zip(means.tolist(), covered.tolist(), strict=True)]
    return "" if all(ratio is None for ratio in ratios) else sparkline(ratios)


# ---------------------------------------------------------------------- samples


def samples_of(timeline: Timeline, run: Interval) -> list[GpuSample]:
    """The samples of `run` in `timeline`, oldest first, including the warm-up."""
    column = timeline.best([*BUSY_SOURCES, rows.POWER, rows.POWER_AVERAGE, rows.MEMORY_USED])
    if column is None:
        return []
    _, ends, _ = column.edges(run.start_ns, run.end_ns)

    def at(scale: float, *sources: Signal) -> list[float | None]:
        source = timeline.best(sources)
        if source is None or not len(ends):
            return [None] * len(ends)
        values, present = source.maxima(ends - 1, ends)
        return [value * scale if has else None for value, has in zip(values.tolist(), present.tolist(), strict=True)]

    total = timeline.device.memory_bytes
    fields = zip(
        ((ends - run.start_ns) / NS_PER_S).tolist(),
        at(100, *BUSY_SOURCES),
        at(100, rows.MEMORY_CONTROLLER),
        at(1 / MIB, rows.MEMORY_USED),
        [_scaled(total, 1 / MIB)] * len(ends),
        # Samples of POWER, which the driver buffers, arrive later than those of POWER_AVERAGE.
        (a if b is None else b for a, b in zip(at(1, rows.POWER_AVERAGE), at(1, rows.POWER), strict=True)),
        at(1, rows.TEMPERATURE),
        at(1e-6, rows.CLOCK_SM),
        at(1e-6, rows.CLOCK_MEMORY),
        strict=True,
    )
    return [GpuSample(*values) for values in fields]
