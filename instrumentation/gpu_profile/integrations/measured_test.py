"""Measures the GPU during one test of pytest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpu_profile.catalogue import signal
from gpu_profile.catalogue.samples import Interval
from gpu_profile.integrations.budgets import Measured, show
from gpu_profile.join.summary import LEAST_COVERAGE, read_span, span_evidence
from gpu_profile.monitor import GpuMonitor
from gpu_profile.monitor.gpu_summary import GpuSummary
from gpu_profile.regimes import classify
from gpu_profile.regions.session import process
from gpu_profile.report.table import UNKNOWN, text_table
from gpu_profile.units import MIB, percent, seconds, si

#: The interval between two readings during a test, and so the precision at its start and end.
INTERVAL_S: Final = 0.05
#: The uncertainty of a busy share is printed from this value on.
_NOTABLE: Final = 0.01
_COLUMNS: Final = ("test", "duration", "GPU busy", "energy", "power", "memory", "regime", "budget")


class MeasuredTest:
    """Call `begin`, run the test, call `end`, then read the numbers. A missing GPU never fails a test."""

    def __init__(self, *, device: Any = 0, sync_fn: Any = "auto") -> None:
        self._monitor = GpuMonitor(device, interval_s=INTERVAL_S, strict=False, sync_fn=sync_fn)
        self._regime = ""

    def begin(self) -> None:
        """Start sampling, and wait for the first reading."""
        self._monitor.__enter__()

    def end(self, error: BaseException | None = None) -> None:
        """Take the last reading and summarise. `error`: the test's own exception."""
        self._monitor.__exit__(type(error) if error is not None else None, error, None)
        self._regime = self._judged()

    @property
    def _summaries(self) -> tuple[GpuSummary, ...]:
        return self._monitor.summaries

    def quantities(self) -> dict[str, Measured]:
        """The quantities of budgets, in base units. For several devices energy, power and memory are sums."""
        summaries = self._summaries
        reason = self._reason()
        if not summaries:
            return {}
        busiest = max(summaries, key=lambda s: -1.0 if s.util_gpu_mean is None else s.util_gpu_mean)
        length_s = busiest.duration_s
        coverage = min(s.coverage for s in summaries)
        source = "utilization" if coverage else ""
        measured = {
            "duration": Measured(length_s, "the clock"),
            "coverage": Measured(coverage, source) if coverage else Measured(None, reason=reason),
        }
        sums = {
            "busy": None if busiest.util_gpu_mean is None else busiest.util_gpu_mean / 100,
            "busy_time": busiest.busy_time_est_s,
            "energy": _sum([s.energy_j for s in summaries]),
            "power": _sum([s.power_mean_w for s in summaries]),
            "memory": _sum([s.mem_used_max_mb for s in summaries]),
        }
        for quantity, value in sums.items():
            if value is None:
                measured[quantity] = Measured(None, reason=reason)
            elif quantity in ("busy", "busy_time"):
                off_s = busiest.resolution_s or 0.0
                off = off_s if quantity == "busy_time" else off_s / length_s
                measured[quantity] = _covered(value, source, off, coverage)
            elif quantity == "memory":
                measured[quantity] = Measured(value * MIB, "the driver, all processes together")
            else:
                key = busiest.energy_source
                step_s = seconds(max(signal(key).refresh_ns, signal(key).window_ns)) if key else None
                words = {"energy": "the energy counter", None: "the driver"}.get(key, "power, integrated")
                measured[quantity] = _metered(value, words, step_s, length_s)
        return measured

    def described(self) -> str:
        """The measurement in one line."""
        measured = self.quantities()
        parts = [f"{name} {show(name, each.value)}" for name, each in measured.items() if each.value is not None]
        notes = "; ".join(dict.fromkeys(s.notes for s in self._summaries if s.notes))
        return f"measured: {', '.join(parts)}" + (f" ({notes})" if notes else "")

    def row(self) -> dict[str, Any]:
        """The numbers in JSON types and base units; an unknown value is None."""
        measured = self.quantities()
        values = {name: each.value for name, each in measured.items()}
        off = measured["busy"].off if "busy" in measured else 0.0
        return {**values, "busy_off": off, "regime": self._regime, "reason": self._reason()}

    def _reason(self) -> str:
        notes = [s.notes for s in self._summaries if s.notes]
        return notes[0] if notes else "the device does not report it"

    def _judged(self) -> str:
        """The regime of the busiest device with samples in the process's own session; "" if there is none."""
        session, run = process.running(), self._monitor._run
        best, busiest = "", -1.0
        if run is None or run.end_ns <= run.start_ns:
            return best
        interval = Interval(run.start_ns, run.end_ns)
        for _, device in run.devices:
            timeline = None if session is None or device is None else session.sampler.timeline(device.uuid)
            if timeline is None:
                continue
            evidence = span_evidence(timeline, read_span(timeline, interval), None)
            busy = evidence.get("busy") or 0.0
            if busy > busiest:
                best, busiest = str(classify(evidence).regime), busy
        return best


def _sum(values: list[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) if present and len(present) == len(values) else None


def _covered(value: float, source: str, off: float, coverage: float) -> Measured:
    """A busy share or time, if samples cover the test."""
    if coverage < LEAST_COVERAGE:
        return Measured(None, reason=f"samples cover only {percent(coverage, 0)} of the test")
    return Measured(value, source, off)


def _metered(value: float, source: str, step_s: float | None, length_s: float) -> Measured:
    """Energy or power, if the test is at least as long as the period in which its source is renewed."""
    if step_s is not None and step_s > length_s:
        reason = f"{source} is renewed every {si(step_s, 's')}, and the test took {si(length_s, 's')}"
        return Measured(None, reason=reason)
    return Measured(value, source)


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of all tests, followed by the reasons for tests without measurements."""

    def cell(row: Mapping[str, Any], quantity: str) -> str:
        value, off = row.get(quantity), row["busy_off"] if quantity == "busy" else 0.0
        doubt = f" ±{off * 100:.0f}" if off >= _NOTABLE else ""
        return UNKNOWN if value is None else show(quantity, value) + doubt

    shown = [
        (
            name,
            *(cell(row, quantity) for quantity in ("duration", "busy", "energy", "power", "memory")),
            row["regime"] or UNKNOWN,
            row["budget"] or "",
        )
        for name, row in rows.items()
    ]
    reasons = dict.fromkeys(row["reason"] for row in rows.values() if row.get("coverage") is None)
    return "\n".join([text_table(_COLUMNS, shown), *(f"not measured: {reason}" for reason in reasons)])
