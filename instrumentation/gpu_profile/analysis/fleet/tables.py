"""The base tables of recordings: rows of analyses, with the numbers of `analyze`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpu_profile.analysis.account import Analysis
from gpu_profile.analysis.fleet.questions import BASES, student_rows
from gpu_profile.units import NS_PER_S

Column = npt.NDArray[Any]
_HOUR_NS: Final = 3600 * NS_PER_S


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """An analysed recording: its `name`, and the version of the program that it measured, if given."""

    name: str
    version: str
    analysis: Analysis


def tables_of(runs: Sequence[RecordedRun]) -> dict[str, dict[str, Column]]:
    """The base tables by name, each with its columns."""
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in BASES}
    executions = list[dict[str, Column]]()
    for run in runs:
        rows["gpu_profile_use"] += _uses(run)
        rows["gpu_profile_durations"] += _durations(run)
        rows["gpu_profile_held"] += _held(run)
        executions += _executions(run)
    rows["gpu_profile_student"] += student_rows()
    tables = {
        name: {
            column: _array(kind, [row[place] for row in rows[name]])
            for place, (column, kind) in enumerate(BASES[name].items())
        }
        for name in BASES
    }
    if executions:
        tables["gpu_profile_executions"] = {
            column: _joined([each[column] for each in executions]) for column in BASES["gpu_profile_executions"]
        }
    return tables


def _joined(parts: Sequence[Column]) -> Column:
    values = np.concatenate([np.ma.getdata(part) for part in parts])
    if not any(isinstance(part, np.ma.MaskedArray) for part in parts):
        return values
    return np.ma.array(values, mask=np.concatenate([np.ma.getmaskarray(part) for part in parts]))


def _array(kind: str, values: list[Any]) -> Column:
    """A column of a table with this type in DuckDB; None is a missing value."""
    if kind == "TIMESTAMP":
        return np.array(values, "datetime64[ns]").astype("datetime64[us]")
    if kind == "INTEGER":
        return np.array(values, np.int32)
    if kind == "VARCHAR":
        return np.array(values, object)
    missing = [value is None for value in values]
    return np.ma.array([np.nan if value is None else value for value in values], float, mask=missing)


def _uses(run: RecordedRun) -> Iterator[tuple[Any, ...]]:
    for use in run.analysis.regions:
        summary = use.summary
        busy = _certain(summary.busy_s, summary.busy_s_half_width)
        energy = _certain(summary.energy_j, summary.energy_half_width)
        key = (*_times(run, summary.region), "", run.version, run.name, summary.region, summary.device.uuid)
        yield *key, str(use.verdict.regime), float(summary.executions), busy[0], energy[0], busy[1], energy[1]


def _certain(value: float | None, half_width: float | None) -> tuple[float | None, float | None]:
    """A share of a total as a certain and an uncertain part: without a half-width, it was shared out by time."""
    return (value, None) if half_width is not None else (None, value)


def _times(run: RecordedRun, region: str) -> tuple[int, int]:
    """The hour of a region's first execution, and its start, in ns."""
    first_ns = int(run.analysis.runs[region].starts_ns.min())
    return first_ns // _HOUR_NS * _HOUR_NS, first_ns


def _durations(run: RecordedRun) -> Iterator[tuple[Any, ...]]:
    for region, executed in run.analysis.runs.items():
        lengths = executed.durations_s
        yield *_times(run, region), "", run.version, run.name, region, float(len(lengths)), float(lengths.sum())


def _held(run: RecordedRun) -> Iterator[tuple[Any, ...]]:
    """The sampled time of each device, and apart from it the time of gaps, of which the utilisation is unknown."""
    for use in run.analysis.devices:
        whole_s = (use.end_ns - use.start_ns) / NS_PER_S
        measured_s = 0.0 if use.utilization is None else whole_s * use.coverage
        if use.utilization is not None:
            idle_s = measured_s * max(0.0, 1.0 - use.utilization)
            yield use.start_ns, run.name, use.device.uuid, measured_s, idle_s, use.energy_j
        if use.utilization is None or measured_s < whole_s:
            energy_j = use.energy_j if use.utilization is None else None
            yield use.start_ns, run.name, use.device.uuid, whole_s - measured_s, None, energy_j


def _executions(run: RecordedRun) -> Iterator[dict[str, Column]]:
    for region, executed in run.analysis.runs.items():
        count = len(executed.starts_ns)
        ranks = np.full(count, -1) if executed.ranks is None else executed.ranks
        failed = np.zeros(count, np.bool_) if executed.failed is None else executed.failed
        text = {"service": "", "version": run.version, "run": run.name, "region": region}
        yield {
            "started": executed.starts_ns.astype("datetime64[ns]").astype("datetime64[us]"),
            **{column: np.full(count, value, object) for column, value in text.items()},
            "rank": np.ma.array(ranks.astype(np.int32), mask=ranks < 0),
            "duration_s": executed.durations_s,
            "failed": np.ma.array(failed, mask=np.full(count, executed.failed is None)),
        }
