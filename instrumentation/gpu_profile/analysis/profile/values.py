"""A recording as a profile: GPU time, energy and kernel time by call path. `report.pprof` and its sibling write it.

Values are exclusive: a region's own, without the regions inside it. With the samples outside all regions they add up to
the device's totals. Uncertain parts are frames of their own. A region has one rate in the model, so that its
parts are shared among its executions by their time as the innermost ones. The energy of kernels that the unmixing
separates is theirs; their region has the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.analysis.account import Analysis
from gpu_profile.analysis.clocks.alignment import aligned
from gpu_profile.analysis.devices import DeviceUse
from gpu_profile.analysis.profile.call_paths import CallPaths
from gpu_profile.analysis.profile.kernel_energy import DeviceKernels, device_kernels, own_ns, region_energy
from gpu_profile.analysis.profile.kernel_times import OTHERS, kernel_times
from gpu_profile.analysis.runs import DeviceWork, usable
from gpu_profile.analysis.views.labels import labels
from gpu_profile.analysis.views.lanes import as_joined
from gpu_profile.catalogue import attributes as names_of
from gpu_profile.catalogue import signal
from gpu_profile.errors import UsageError
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.remedies import DOCTOR
from gpu_profile.join.summary import RegionSummary
from gpu_profile.recording import Recording, SpanRecord
from gpu_profile.regimes import Regime
from gpu_profile.report.devices import title
from gpu_profile.report.stacks import SpanLink, StackProfile, StackSample, ValueKind
from gpu_profile.report.table import printable
from gpu_profile.units import NS_PER_S, si

GPU_TIME: Final = ValueKind("gpu", "nanoseconds")
ENERGY: Final = ValueKind("energy", "millijoules")
KERNEL_TIME: Final = ValueKind("kernels", "nanoseconds")
_MJ: Final = 1e3
#: The most executions with samples of their own: the ones with the longest time. The others are summed up by path.
MOST_LINKED: Final = 5_000
#: The most names of kernels below a path; the others are one frame.
_MOST_KERNELS: Final = 200
#: The most notes of the analysis among the comments.
_MOST_NOTES: Final = 20
#: Frames that are no regions; the first follows the name of one.
UNCERTAIN: Final = "(uncertain: shared out by time)"
MIXED: Final = "(kernels not separated)"
OUTSIDE: Final = "(outside all regions)"
REMAINDER: Final = "(not attributed)"
#: The frame of an empty name, as both formats take an empty text for no frame.
NO_NAME: Final = "(no name)"
#: Labels of samples.
_DEVICE: Final = "hw.id"
_SHARE: Final = "share"
_WIDTH: Final = "half_width"
_REASON: Final = "reason"


class _Amount(NamedTuple):
    """A region's own part of a device's total; `certain` unless it was shared out by time."""

    value: float
    certain: bool


class _Rows:
    """Samples before rounding, each with its values in ns and mJ."""

    def __init__(self) -> None:
        self.values: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...], SpanLink | None], list[float]] = {}

    def add(
        self,
        stack: tuple[str, ...],
        label: tuple[tuple[str, str], ...],
        link: SpanLink | None,
        value: float,
        place: int,
    ) -> None:
        self.values.setdefault((stack, label, link), [0.0, 0.0])[place] += value


def profile_of(recording: Recording, analysis: Analysis, *, name: str = "") -> StackProfile:
    """The profile of a recording. UsageError if it has no measured GPU time, no energy and no kernels."""
    recording = aligned(recording, analysis.clocks)
    work = as_joined(recording, analysis)
    spans = usable(recording.spans)
    paths = CallPaths(recording, spans, work)
    uses = {use.device.uuid: use for use in analysis.devices}
    own = {uuid: own_ns(each.activities, uses[uuid]) for uuid, each in work.devices.items() if uuid in uses}
    placed = Counter(key for each in work.devices.values() for key in each.keys.tolist())
    several = {key for key, devices in placed.items() if devices > 1}
    linked = _linked(spans, work.devices, own)
    samples: list[StackSample] = []
    comments = [f"{len(spans):,} executions of {len(work.runs)} regions."]
    measured = [False, False]
    divided = {device.parent for device in recording.devices if device.uuid in work.devices}
    # A process without an end was killed or still runs: regions that had not ended are not recorded.
    unended = any(process.end_ns is None for process in recording.processes)
    lost = unended or analysis.lost_bytes > 0 or len(spans) < len(recording.spans)
    for uuid, use in uses.items():
        device = _DeviceSamples(analysis, use, paths, linked, complete=not lost and uuid not in divided)
        ran = work.devices.get(uuid)
        if ran is not None and device.measured[1]:
            device.add_kernels(device_kernels(spans, ran, use, recording.processes, several))
        rows = device.rows(ran, own.get(uuid))
        samples += _rounded(rows)
        comments += device.comments
        measured = [before or now for before, now in zip(measured, device.measured, strict=True)]
    kernels, profiled = _kernels(spans, work.around, paths, linked, uses)
    samples += kernels
    kinds = [
        kind for kind, there in zip((GPU_TIME, ENERGY, KERNEL_TIME), (*measured, profiled > 0), strict=True) if there
    ]
    if not kinds:
        raise UsageError(f"a profile needs GPU time, energy or kernels, and the recording has none ({DOCTOR})")
    places = [(GPU_TIME, ENERGY, KERNEL_TIME).index(kind) for kind in kinds]
    comments += _remarks(analysis, spans, paths, linked, profiled)
    return StackProfile(
        tuple(kinds),
        [
            each._replace(
                stack=tuple(frame or NO_NAME for frame in each.stack), values=tuple(each.values[i] for i in places)
            )
            for each in samples
        ],
        analysis.start_ns,
        analysis.end_ns,
        printable(name),
        tuple(comments),
        tuple(("host.name", host) for host in _only({printable(each.host) for each in recording.processes})),
    )


def _only(values: set[str]) -> list[str]:
    return [*values] if len(values) == 1 else []


def _remarks(
    analysis: Analysis, spans: Sequence[SpanRecord], paths: CallPaths, linked: dict[int, SpanLink], profiled: int
) -> Iterator[str]:
    """Lines about the limits of the numbers."""
    if analysis.simulated:
        yield "The GPUs were simulated."
    yield "Values are a region's own, without the regions inside it. Its executions share them by their time."
    named = sum(bool(span.span_id) for span in spans)
    if named > len(linked):
        yield f"{len(linked):,} of {named:,} spans have samples of their own, the longest ones; others are sums."
    if paths.cut:
        yield f"{paths.cut:,} executions are listed below a part of their call path: it is too long, or one too many."
    if profiled:
        yield f"Kernel time and energy are of {profiled:,} executions that a profiler saw."
    if analysis.lost_bytes:
        yield f"{analysis.lost_bytes:,} bytes of the recording are damaged and left out."
    yield from map(printable, analysis.notes[:_MOST_NOTES])
    if len(analysis.notes) > _MOST_NOTES:
        yield f"{len(analysis.notes) - _MOST_NOTES:,} more notes are printed by gpu-profile analyze."


# ------------------------------------------------------------------ executions


def _linked(spans: Sequence[SpanRecord], devices: dict[str, DeviceWork], own: dict[str, Floats]) -> dict[int, SpanLink]:
    """The spans with samples of their own."""
    total = np.zeros(len(spans))
    for uuid, ns in own.items():
        total[devices[uuid].keys] += ns
    links: dict[int, SpanLink] = {}
    for key in np.argsort(-total, kind="stable").tolist():
        if (link := _link(spans[key])) is not None:
            links[key] = link
            if len(links) == MOST_LINKED:
                break
    return links


def _link(span: SpanRecord) -> SpanLink | None:
    """The span's identity, if it is one of W3C trace context."""
    link = SpanLink(span.trace_id, span.span_id)
    try:
        right = [len(bytes.fromhex(each)) for each in link] == [16, 8] and [*map(len, link)] == [32, 16]
    except ValueError:
        return None
    return link if right and all(each.strip("0") for each in link) else None


class _DeviceSamples:
    """The samples of one device, and lines about its totals. `measured`: whether it has GPU time, and energy.

    `complete`: whether all executions that used it are listed on it, so that the rest is outside all regions. Those of
    MIG instances are not, nor are lost ones.
    """

    def __init__(
        self, analysis: Analysis, use: DeviceUse, paths: CallPaths, linked: dict[int, SpanLink], *, complete: bool
    ) -> None:
        self._use, self._paths, self._linked, self._complete = use, paths, linked, complete
        self._summaries = {
            each.summary.region: each for each in analysis.regions if each.summary.device.uuid == use.device.uuid
        }
        self._title = title(use.device, labels(analysis)[use.device.uuid])
        self.comments: list[str] = []
        joules = [use.energy_j, *(each.summary.energy_j for each in self._summaries.values())]
        self.measured = (use.utilization is not None, any(each is not None for each in joules))
        self._kernels: DeviceKernels | None = None

    def add_kernels(self, kernels: DeviceKernels | None) -> None:
        """Give the kernels of the device energy of their own."""
        self._kernels = kernels
        if kernels is not None and kernels.outside:
            self.comments.append(
                f"{self._title}: kernels of {kernels.outside:,} executions have no energy: they ran outside their "
                "executions. Set a stream, so that its marks give the device's intervals."
            )

    def rows(self, work: DeviceWork | None, own: Floats | None) -> _Rows:
        rows = _Rows()
        if work is not None and own is not None:
            self._regions(rows, work, own)
        summaries = [each.summary for each in self._summaries.values()]
        times, joules = [each.busy_s for each in summaries], [each.energy_j for each in summaries]
        self._rest(rows, "GPU time", "s", self._busy_s(summaries), times, 0)
        self._rest(rows, "energy", "J", self._use.energy_j, joules, 1)
        return rows

    def _busy_s(self, summaries: list[RegionSummary]) -> float | None:
        """The device's busy time in s, by the signal of its regions' parts; None if they are of several."""
        use = self._use
        keys = {each.busy_source for each in summaries if each.busy_s} or {use.utilization_source}
        column = use.timeline.column(signal(keys.pop())) if len(keys) == 1 and all(keys) else None
        return None if column is None else column.signal.base(column.integral(use.start_ns, use.end_ns)[0]) / NS_PER_S

    def _regions(self, rows: _Rows, work: DeviceWork, own: Floats) -> None:
        for column, region in enumerate(work.regions):
            use = self._summaries.get(region)
            mine = np.flatnonzero(work.activities.columns == column)
            if use is None or not len(mine):
                continue
            summary, verdict = use.summary, use.verdict
            busy = _amount(summary.busy_s, summary.busy_s_half_width, NS_PER_S)
            energy = _amount(summary.energy_j, summary.energy_half_width, _MJ)
            label = ((names_of.REGIME.name, str(verdict.regime)),) if verdict.regime is not Regime.UNKNOWN else ()
            keys, weights = work.keys[mine], own[mine]
            self._add(rows, keys, weights, busy, label, 0)
            if self._kernels is None or region not in self._kernels.regions:
                self._add(rows, keys, weights, energy, label, 1)
                continue
            parts = region_energy(self._kernels, region, mine, energy.value / _MJ, (summary.energy_half_width or 0.0))
            for kernel in parts.kernels:
                width = (_WIDTH, f"{kernel.half_width / kernel.joules * 100:.0f} %")
                joules = _Amount(kernel.joules * _MJ, certain=True)
                self._add(rows, keys, kernel.own_ns, joules, (*label, width), 1, kernel.name)
            energy = energy._replace(value=parts.rest_j * _MJ)
            mixed = energy.value * parts.mixed_ns.sum() / max(1.0, parts.rest_ns.sum())
            self._add(rows, keys, parts.rest_ns - parts.mixed_ns, energy._replace(value=energy.value - mixed), label, 1)
            why = (*label, (_REASON, parts.reason))
            self._add(rows, keys, parts.mixed_ns, energy._replace(value=mixed), why, 1, f"{region} {MIXED}")
            if parts.reason:
                self.comments.append(f"{self._title}: {region}: kernels not separated: {parts.reason}.")

    def _add(
        self,
        rows: _Rows,
        keys: Ints,
        weights: Floats,
        amount: _Amount,
        label: tuple[tuple[str, str], ...],
        place: int,
        *leaf: str,
    ) -> None:
        """Add an amount of a region, shared among its executions by weight; `leaf` is the frame below it, if any."""
        if not amount.value:
            return
        labelled = self._labels("certain" if amount.certain else "uncertain", *label)
        for key, share in self._shares(keys, weights):
            frames, link = self._paths.frames(int(self._paths.of[key])), self._linked.get(key)
            if share:
                unsure = () if amount.certain else (f"{frames[-1]} {UNCERTAIN}",)
                rows.add((*frames, *leaf, *unsure), labelled, link, amount.value * share, place)

    def _shares(self, keys: Ints, own: Floats) -> Iterator[tuple[int, float]]:
        """Linked executions, and one of each path for all others of it, with their part of the region's time."""
        weights = own if own.sum() > 0 else np.ones(len(own))
        weights = weights / weights.sum()
        linked = np.isin(keys, np.fromiter(self._linked, np.int64, len(self._linked)))
        yield from zip(keys[linked].tolist(), weights[linked].tolist(), strict=True)
        others, weights = keys[~linked], weights[~linked]
        _, first, which = np.unique(self._paths.of[others], return_index=True, return_inverse=True)
        yield from zip(others[first].tolist(), np.bincount(which, weights=weights).tolist(), strict=True)

    def _labels(self, share: str, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        return ((_DEVICE, self._use.device.uuid), ("gpu", self._title), (_SHARE, share), *more)

    def _rest(
        self, rows: _Rows, what: str, unit: str, total: float | None, parts: Sequence[float | None], place: int
    ) -> None:
        """Add the device's total less its regions' parts, and a line about it."""
        if not self.measured[place]:
            self.comments.append(f"{self._title}: {what} was not measured.")
            return
        given = [part for part in parts if part is not None]
        if total is None:
            self.comments.append(
                f"{self._title}: {what} of {si(sum(given), unit)} in regions; there is no total by the same signal."
            )
            return
        rest = total - sum(given)
        if rest < -1e-6 * total:
            self.comments.append(
                f"{self._title}: regions have {si(-rest, unit)} of {what} more than its samples: they ran beyond them."
            )
        whole = self._complete and len(given) == len(parts) and (place == 0 or self._use.unattributed_j is not None)
        line = f"{self._title}: {what} {si(total, unit)}, of which {si(sum(given), unit)} in regions."
        self.comments.append(line if whole else f"{line} Some parts of the rest may be of regions.")
        if rest > 0:
            leaf, share = (OUTSIDE, "outside") if whole else (REMAINDER, "not attributed")
            rows.add((self._title, leaf), self._labels(share), None, rest * (NS_PER_S, _MJ)[place], place)


def _amount(value: float | None, half_width: float | None, factor: float) -> _Amount:
    right = value is not None and isfinite(value) and value > 0
    return _Amount(value * factor if right and value is not None else 0.0, half_width is not None)


def _rounded(rows: _Rows) -> Iterator[StackSample]:
    """Whole numbers with the rounded sum: each takes over the error of the ones before it."""
    sums = np.cumsum(np.array([*rows.values.values()]).reshape(-1, 2), axis=0)
    whole = np.diff(np.rint(sums), axis=0, prepend=np.zeros((1, 2))).astype(np.int64).tolist()
    for (stack, label, link), (ns, mj) in zip(rows.values, whole, strict=True):
        if ns or mj:
            yield StackSample(stack, (ns, mj, 0), label, link)


# ------------------------------------------------------------------ kernels


def _on(span: SpanRecord, uses: dict[str, DeviceUse]) -> tuple[tuple[str, str], ...]:
    """The label of the only device of an execution."""
    devices = {each.device for each in span.device_intervals} or set(span.devices) or set(uses)
    return tuple((_DEVICE, device) for device in _only(devices))


def _kernels(
    spans: Sequence[SpanRecord], around: Ints, paths: CallPaths, linked: dict[int, SpanLink], uses: dict[str, DeviceUse]
) -> tuple[list[StackSample], int]:
    """Samples of kernels, and the number of executions that they are of.

    Linked executions have their own. The others are summed up by path and devices, in the one that came first.
    """
    first: dict[tuple[int, tuple[str, ...]], int] = {}
    sums: dict[int, Counter[str]] = {}
    profiled = 0
    for key, times in kernel_times(spans, around):
        profiled += 1
        where = (int(paths.of[key]), tuple(sorted({each.device for each in spans[key].device_intervals})))
        mine = sums.setdefault(key if key in linked else first.setdefault(where, key), Counter())
        for kernel, ns in times.items():
            mine[kernel if kernel in mine or len(mine) < _MOST_KERNELS else OTHERS] += ns
    samples = [
        StackSample((*paths.frames(int(paths.of[key])), kernel), (0, 0, ns), _on(spans[key], uses), linked.get(key))
        for key, times in sums.items()
        for kernel, ns in times.items()
    ]
    return samples, profiled
