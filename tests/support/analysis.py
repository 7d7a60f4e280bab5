"""A synthetic training run with a computed truth, as a recording, and helpers that read back an analysis page."""

import base64
import io
import json
import pickle
import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np

from gpu_profile.analysis import Analysis, Comparison, Difference, RegionUse, analyse
from gpu_profile.analysis.views.report import AnalysisReport
from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Device, Event, Sample
from gpu_profile.catalogue.signals import DRAM, ENERGY, GRAPHICS, SM, TENSOR, THROTTLES
from gpu_profile.recording import Columns, DeviceInterval, ProcessInfo, Recording, RecordingWriter, SpanRecord

MS = 1_000_000
T0 = 1_767_225_600_000_000_000
GPU = Device("GPU-a", index=0, name="NVIDIA H200", clock_max_hz=1_980_000_000)
#: Another device.
B = Device("GPU-b", index=1, name="NVIDIA A10G")
ITEMS = 32.0
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
EMPTY = Recording((), (), {}, (), (), ())
#: Busy, SM, tensor and DRAM activity, and watts while each region is innermost. "" is the time outside regions.
RATES = {
    "": (0.0, 0.0, 0.0, 0.0, 80.0),
    "load": (0.0, 0.0, 0.0, 0.0, 90.0),
    "forward": (0.98, 0.95, 0.8, 0.3, 600.0),
    "step": (0.6, 0.5, 0.1, 0.4, 300.0),
}


@dataclass
class Run:
    """`calls` of load, then step with a nested forward. `dear`: factor of forward's power. `seed`: of all lengths."""

    seed: int = 1
    calls: int = 60
    dear: float = 1.0
    slow: float = 1.0
    marked: bool = True
    identified: bool = True
    spans: list[SpanRecord] = field(default_factory=list)
    active_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.stretches: list[tuple[str, int]] = []
        at = T0
        for call in range(self.calls):
            load, before, forward, after, pause = (
                int(rng.uniform(low, high) * MS)
                for low, high in ((60, 140), (10, 30), (90 * self.slow, 190 * self.slow), (20, 60), (1, 20))
            )
            self.stretches += [("load", load), ("step", before), ("forward", forward), ("step", after), ("", pause)]
            inner = at + load + before
            end = inner + forward + after
            self.spans.append(self._span("load", at, at + load, 3 * call + 1))
            self.spans.append(self._span("forward", inner, inner + forward, 3 * call + 2, parent=3 * call + 3))
            self.spans.append(self._span("step", at + load, end, 3 * call + 3, items=ITEMS))
            at = end + pause
        for name, length in self.stretches:
            self.active_s[name] = self.active_s.get(name, 0.0) + length / 1e9

    def _span(
        self, name: str, start: int, end: int, number: int, *, parent: int = 0, items: float | None = None
    ) -> SpanRecord:
        return SpanRecord(
            name,
            start,
            end,
            trace_id=TRACE if self.identified else "",
            span_id=f"{number:016x}" if self.identified else "",
            parent_span_id=f"{parent:016x}" if parent and self.identified else None,
            device_intervals=(DeviceInterval(GPU.uuid, 0, start, end),) if self.marked else (),
            items=items,
        )

    def watts(self, name: str) -> float:
        return RATES[name][4] * (self.dear if name == "forward" else 1.0)

    @property
    def samples(self) -> dict[Signal, list[Sample]]:
        edges = np.concatenate(([0], np.cumsum([length for _, length in self.stretches]))).astype(np.float64)
        stamps = np.arange(0, int(edges[-1]) + 1, 100 * MS)

        def integral(rates: list[float]) -> np.ndarray:
            steps = [rate * length for rate, (_, length) in zip(rates, self.stretches, strict=True)]
            return np.interp(stamps, edges, np.concatenate(([0.0], np.cumsum(steps))))

        samples: dict[Signal, list[Sample]] = {}
        for place, signal in enumerate((GRAPHICS, SM, TENSOR, DRAM)):
            means = np.diff(integral([RATES[name][place] for name, _ in self.stretches])) / (100 * MS)
            samples[signal] = [
                Sample(signal, T0 + int(end) - 100 * MS, T0 + int(end), signal.quanta(float(mean)))
                for end, mean in zip(stamps[1:], means, strict=True)
            ]
        joules = integral([self.watts(name) for name, _ in self.stretches]) / 1e9
        samples[ENERGY] = [
            Sample(ENERGY, T0 + int(at), T0 + int(at), ENERGY.quanta(float(total)))
            for at, total in zip(stamps, joules, strict=True)
        ]
        return samples

    def recording(self, device: Device = GPU) -> Recording:
        columns = {signal.key: to_columns(samples) for signal, samples in self.samples.items()}
        process = ProcessInfo("0.1.0", "node-a", 42, T0, "nvml", "580.1", T0 + 10**11)
        return Recording((process,), (device,), {device.uuid: columns}, tuple(self.spans), (), ())

    def write(self, directory: Path, driver: str = "nvml") -> None:
        """Write the run as files that do not depend on the time and place of writing."""
        with (
            mock.patch("socket.gethostname", return_value="node-a"),
            mock.patch("os.getpid", return_value=42),
            mock.patch("importlib.metadata.version", return_value="0.1.0"),
            RecordingWriter(directory, now_ns=lambda: T0, driver=driver, driver_version="580.1") as writer,
        ):
            writer.device(GPU)
            for samples in self.samples.values():
                writer.samples(GPU.uuid, samples)
            for i, span in enumerate(self.spans):
                if i % 60 == 0:
                    writer.flush()
                writer.span(span)


def to_columns(samples: list[Sample]) -> Columns:
    return Columns(*(np.array([sample[i] for sample in samples], np.int64) for i in (1, 2, 3)))


class _Content(pickle.Pickler):
    """Takes read-only mappings too."""

    def reducer_override(self, value: Any) -> Any:
        return (dict, (dict(value),)) if isinstance(value, MappingProxyType) else NotImplemented


_ANALYSES: dict[bytes, AnalysisReport] = {}


def analysed(recording: Recording, **options: Any) -> AnalysisReport:
    """The result of `analyse`, computed once in a process for equal arguments. No test may change it."""
    _Content(key := io.BytesIO()).dump((recording, options))
    if key.getvalue() not in _ANALYSES:
        _ANALYSES[key.getvalue()] = analyse(recording, **options)
    return _ANALYSES[key.getvalue()]


def one(analysis: Analysis, region: str) -> RegionUse:
    (use,) = analysis.of(region)
    return use


def regimes(analysis: Analysis) -> dict[str, tuple[str, str]]:
    """The regime of each region, and its basis."""
    return {use.summary.region: (str(use.verdict.regime), use.verdict.basis) for use in analysis.regions}


def difference_of(comparison: Comparison, region: str, quantity: str) -> Difference:
    """The only difference of a quantity."""
    (found,) = (d for d in comparison.differences if (d.region, d.quantity) == (region, quantity))
    return found


def around(found: Difference) -> tuple[float, float]:
    """Its interval as a share, if it has one."""
    assert found.relative_interval is not None
    return found.relative_interval


def throttled(run: Run, region: str, share: float) -> Recording:
    """The run with clocks reduced by the power cap for `share` of the region's time, and at no other time."""
    recording, edges = run.recording(), np.cumsum([0, *(length for _, length in run.stretches)])
    held = np.cumsum([0.0, *(share * length if name == region else 0.0 for name, length in run.stretches)])
    stamps = np.arange(0, int(edges[-1]) + 1, 2 * MS)
    totals = np.interp(stamps, edges, held).astype(np.int64)
    columns = Columns(T0 + stamps, T0 + stamps, totals)
    ((uuid, samples),) = recording.samples.items()
    return replace(recording, samples={uuid: {**samples, THROTTLES[0].key: columns}})


def two_devices(run: Run) -> Recording:
    recording = run.recording()
    columns = recording.samples[GPU.uuid]
    return replace(recording, devices=(B, GPU), samples={B.uuid: columns, GPU.uuid: columns})


TYPES = {"t0": "<u4", "t1": "<u4", "low": "<u2", "mean": "<u2", "high": "<u2", "gaps": "<u4"} | {
    "lane": "u1",
    "region": "<u2",
    "n": "<u4",
    "fill": "u1",
}
EVIL = "</script><script>alert(1)</script><b>\"'&\x1b[31m\ud800\n"
#: A stretch without samples, in ns from the recording's start.
GAP = 5_000 * MS, 9_000 * MS


def unpacked(columns: dict[str, Any], key: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(columns[key]), TYPES[key])


def drawn(page: str) -> dict[str, Any]:
    """The data that the page's script draws."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    return data


#: Elements of HTML that have no end tag.
VOID = frozenset(("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"))


class Page(HTMLParser):
    """Collects a page's external references and its tags, and checks that all tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loads += [f"{tag} {key}={value}" for key, value in attrs if key in ("src", "href", "srcset", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


def loads_nothing(text: str) -> Page:
    """A page in one file, which needs no other."""
    page = parsed(text)
    assert page.loads == []
    assert not {"img", "link", "iframe", "object"} & {*page.seen}
    for way in ("url(", "@import", "fetch(", "XMLHttpRequest", "import(", "http://", "https://"):
        assert way not in text
    return page


def with_gap(run: Run) -> Recording:
    """The run without samples during `GAP`, and with an XID error at its start."""
    recording = run.recording()
    first, last = T0 + GAP[0], T0 + GAP[1]
    columns = {}
    for key, column in recording.samples[GPU.uuid].items():
        keep = (column.t_end <= first) | (column.t_end > last)
        columns[key] = type(column)(*(each[keep] for each in column))
    event = Event(GPU.uuid, first, "xid", 79, "GPU has fallen off the bus")
    return replace(recording, samples={GPU.uuid: columns}, events=(event,))


def hostile(run: Run) -> Recording:
    """The run with names that contain HTML, quotes and control characters."""
    run.spans = [span._replace(name=EVIL if span.name == "load" else span.name) for span in run.spans]
    recording = run.recording()
    return replace(recording, devices=(replace(recording.devices[0], name="<b>\x07"),))
