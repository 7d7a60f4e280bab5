"""The results of a profiled command: as text, as JSON, as a page and as a trace."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpu_profile.analysis import Analysis, analyse
from gpu_profile.analysis.ranks.data import of_ranks
from gpu_profile.analysis.views.data import SCHEMA_VERSION, of_region
from gpu_profile.analysis.views.text import render_regions
from gpu_profile.catalogue.samples import Device, Interval
from gpu_profile.cli.devices import label
from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile.monitor.gpu_summary import WELL_COVERED, GpuSummary, summarise_run
from gpu_profile.recording import Recording, read_recording
from gpu_profile.report.as_json import to_json
from gpu_profile.report.table import folded
from gpu_profile.units import seconds, si

if TYPE_CHECKING:
    from gpu_profile.cli.watch import DeviceWatch

#: A GPU with no higher utilisation than this, in per cent, was idle.
_IDLE: Final = 0.5


@contextmanager
def no_collection() -> Iterator[None]:
    """Without garbage collection. It would take a fifth of an analysis: very many objects live to the end."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class RunOutcome:
    """The results of `command`. It ran from `start_ns` to `end_ns` while `watch` read its devices.

    `directory` has the recordings of its processes from `since_ns` on; None if they could not record. `problems` has a
    line for each error so far. Making the results may add more.
    """

    def __init__(
        self,
        command: Sequence[str],
        exit_code: int,
        run: Interval,
        watch: DeviceWatch,
        directory: Path | None,
        *,
        since_ns: int = 0,
        warmup_s: float = 0.0,
        problems: Sequence[str] = (),
    ) -> None:
        self.command = tuple(command)
        self.exit_code = exit_code
        self.run = run
        self.problems = list(problems)
        self._watch = watch
        self._directory = directory
        self._since_ns = since_ns
        self._warmup_s = warmup_s
        if watch.recorder is not None and watch.recorder.problem:
            self.problems.append(f"the recording is not whole: {watch.recorder.problem}")

    # ------------------------------------------------------------------ the data

    @cached_property
    def summaries(self) -> list[tuple[Device, GpuSummary]]:
        """Each device with its summary, in the driver's order."""
        summaries = []
        for state in self._watch.states:
            device = state.timeline.device
            summary = summarise_run(
                state.timeline,
                self.run,
                device=label(device),
                interval_s=self._watch.interval_s,
                warmup_s=self._warmup_s,
                notes=() if state.up else (f"sampling stopped early: {state.reason}",),
            )
            summaries.append((device, summary))
        return summaries

    @cached_property
    def recording(self) -> Recording | None:
        """The recording of the watch and of the command's processes."""
        if self._directory is None or not any(self._directory.glob("*.gpr")):
            return None
        return read_recording(self._directory, since_ns=self._since_ns)

    @cached_property
    def regions(self) -> Analysis | None:
        """The analysis of the command's regions; None if it had none, or the analysis failed."""
        own = self._watch.recorder.path if self._watch.recorder is not None else None
        if self._directory is None or not any(path != own for path in self._directory.glob("*.gpr")):
            return None
        try:
            recording = self.recording
            if recording is not None and recording.spans:
                return self._analysis
            self.problems += recording.problems if recording is not None else ()  # else the analysis notes them
        except GpuProfileError as error:
            self.problems.append(f"regions are not shown: {error}")
        except Exception as error:  # noqa: BLE001 - a damaged recording must not hide the summary
            self.problems.append(f"regions are not shown: unexpected {type(error).__name__}: {error}")
        return None

    @cached_property
    def _analysis(self) -> Analysis:
        recording = self.recording
        if recording is None or not (recording.samples or recording.spans):
            raise UsageError(f"nothing was recorded: {self._watch.problem or 'the run was too short'}")
        with no_collection():
            return analyse(recording)

    # ------------------------------------------------------------------ as text

    def text(self, *, width: int | None = None) -> str:
        """The results as text. `width`: the terminal's, for a narrower table of regions."""
        parts = [
            folded(self._devices(), width),
            render_regions(self.regions, width=width) if self.regions is not None else "",
        ]
        return "\n\n".join(part for part in [*parts, self.problem_lines()] if part)

    def problem_lines(self) -> str:
        """The signal that ended the command, and the problems."""
        number = self._signal
        ended = [f"the command was ended by {number.name}"] if number is not None else []
        return "\n".join(f"gpu-profile: {line}" for line in [*ended, *self.problems])

    def _devices(self) -> str:
        if not self.summaries:
            return f"gpu-profile: {si(seconds(self.run.end_ns - self.run.start_ns), 's')}; {self._unwatched()}"
        read = [summary for _, summary in self.summaries if not _unread(summary)]
        used = [summary for summary in read if not _idle(summary)]
        idle = [summary for summary in read if _idle(summary)]
        if not used:
            used, idle = idle[:1], idle[1:]
        unread = [summary for _, summary in self.summaries if _unread(summary)]
        return "\n".join(
            [
                *(summary.format() for summary in used),
                *(_one_line(summary) for summary in idle),
                *(_no_line(summary) for summary in unread),
            ]
        )

    def _unwatched(self) -> str:
        why = self._watch.why_unread
        return why if why.startswith("no GPU") else f"no GPU was read: {why}"

    @property
    def _signal(self) -> signal.Signals | None:
        try:
            return signal.Signals(self.exit_code - 128) if self.exit_code > 128 else None
        except ValueError:
            return None

    # ------------------------------------------------------------------ for programs

    def json_line(self) -> bytes:
        """One line of JSON: the first device's summary, and beside it everything else by name."""
        length = seconds(self.run.end_ns - self.run.start_ns)
        devices: list[dict[str, Any]] = [
            {**summary.to_dict(), "uuid": device.uuid, "kind": str(device.kind), "parent": device.parent}
            for device, summary in self.summaries
        ]
        nothing = GpuSummary(0, "", length, self._watch.interval_s, notes="").to_dict()
        first = {**nothing, "device": None, "name": None, "notes": self._unwatched()}
        if self.summaries:
            first = self.summaries[0][1].to_dict()
        regions = self.regions
        values = {
            **first,
            "schema_version": SCHEMA_VERSION,
            "command": list(self.command),
            "exit_code": self.exit_code,
            "start_ns": self.run.start_ns,
            "end_ns": self.run.end_ns,
            "driver": self._watch.driver_name or None,
            "devices": devices,
            "regions": [] if regions is None else [of_region(use) for use in regions.regions],
            "ranks": [] if regions is None else [of_ranks(each) for each in regions.ranks],
            "problems": [*self.problems, *(self.recording.problems if regions and self.recording else ())],
        }
        return to_json(values, one_line=True).encode() + b"\n"

    def page(self) -> bytes:
        """The page of `analyze --html`."""
        from gpu_profile.analysis.views.page import render_page

        text = " ".join(self.command)
        title = text if len(text) <= 80 else text[:79] + "…"
        page = render_page(self._analysis, title=title, recording=self.recording)
        return page.encode("utf-8", "xmlcharrefreplace")

    def trace(self) -> bytes:
        """A trace for Perfetto."""
        from gpu_profile.analysis.views.perfetto import perfetto_trace

        analysis, recording = self._analysis, self.recording
        return b"" if recording is None else perfetto_trace(recording, analysis)


def _unread(summary: GpuSummary) -> bool:
    """Whether no reading fell into the run. Energy may still come from a reading that looks back."""
    return summary.n_samples == 0 and summary.mem_used_max_mb is None and summary.temp_max_c is None


def _idle(summary: GpuSummary) -> bool:
    return summary.util_gpu_max is not None and summary.util_gpu_max <= _IDLE


def _one_line(summary: GpuSummary) -> str:
    watts = "" if summary.power_mean_w is None else f" | power: mean {summary.power_mean_w:.1f} W"
    joules = "" if summary.energy_j is None else f" | energy: {summary.energy_j:.1f} J"
    covered = "" if summary.coverage >= WELL_COVERED else f" | coverage: {summary.coverage:.1%}"
    return f"[GPU {summary.device}] {summary.name}: idle{watts}{joules}{covered}"


def _no_line(summary: GpuSummary) -> str:
    length = si(summary.duration_s, "s")
    return f"[GPU {summary.device}] {summary.name}: nothing measured, {length} are too short for readings"
