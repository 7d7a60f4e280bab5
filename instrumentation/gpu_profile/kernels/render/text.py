"""A report as text: the whole, then its regions; or one region in detail. Every share names its denominator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpu_profile.kernels.activity import Activity, evidence
from gpu_profile.kernels.counters.sums import Matched
from gpu_profile.kernels.records import Kind
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.render.cells import (
    MOST_REGIONS,
    chosen,
    confidence,
    copies_table,
    kernel_table,
    memory_table,
    region_table,
    share,
    time,
)
from gpu_profile.kernels.render.counters import counter_table
from gpu_profile.kernels.render.names import labels
from gpu_profile.kernels.report import ReportData
from gpu_profile.kernels.sums import KernelSum, longest_first
from gpu_profile.regimes import Verdict, classify
from gpu_profile.report import text_table
from gpu_profile.report.table import fitted_table, folded, printable
from gpu_profile.units import counted, percent

_ON_HOST: Final = "no GPU operation in it: the operators below ran on the CPU (record it with the GPU's activities)"
#: GPU operations come after the host's, so a trace that was cut does not show how it was recorded.
_CUT_ON_HOST: Final = "no GPU operation before its end: the operators below ran on the CPU"
#: Indexes of columns to omit in a narrow terminal, in this order: of regions, and of kernels.
_SPARE: Final = ((10,), (9,), (3,), (2,), (6, 7), (1,), (8,))
_SPARE_OF_KERNELS: Final = ((5,), (4,))
#: Characters of a kernel's name, at most and at least, and of the columns beside it.
_NAME, _LEAST_NAME, _BESIDE_NAME = 64, 44, 34


def render(report: ReportData, *, region: str | None = None, top: int = 10, width: int | None = None) -> str:
    """The whole report, or one region in detail (UsageError if there is none); `top` kernels by their time.

    Tables wider than `width` characters omit their least important columns.
    """
    causes = report.causes
    if region is not None:
        parts = _detail(report, report.region(region), causes=causes, top=top, width=width)
    else:
        parts = _all(report, causes=causes, top=top, width=width)
    # Tables fit, or are wider than a line can be folded: their rows have several spaces in a row.
    lines = "\n".join([*cut(report), *parts, *notes(report)]).splitlines()
    return "\n".join(line if "  " in line.strip() else folded(line, width, _indent(line)) for line in lines)


def _indent(line: str) -> str:
    return " " * (len(line) - len(line.lstrip()) + 2)


def cut(report: ReportData) -> list[str]:
    """A warning if the records end early: all sums are of a part then."""
    return [f"CUT SHORT: {printable(report.cut)}; all sums cover only the part before"] if report.cut else []


def on_host(report: ReportData) -> str:
    """The note that operators are shown instead of GPU operations."""
    return f"{printable(report.source)}: {_CUT_ON_HOST if report.cut else _ON_HOST}"


def notes(report: ReportData) -> list[str]:
    """Unusable and ambiguous records, by reason, and the number of records that the profiler lost."""
    lines = [f"note: {count:,} {printable(reason)}" for reason, count in sorted(report.notes.items()) if count]
    if report.dropped:
        lines.append(f"note: the profiler lost {report.dropped:,} records: sums are too low")
    if report.counted is not None:
        lines.append(f"note: {_joined(report.counted)}")
    return lines


def _joined(match: Matched) -> str:
    records, kernels = sum(match.records.values()), sum(match.kernels.values())
    whole = f", {match.ranges:,} with whole regions" if match.ranges else ""
    return (
        f"{counted(match.pairs, 'counter record')} joined with kernels of the same name{whole}, {records:,} with "
        f"nothing; {counted(kernels, 'kernel')} without a record"
    )


def _all(report: ReportData, *, causes: bool, top: int, width: int | None) -> Iterator[str]:
    source = printable(report.source)
    if report.activity is not None:
        yield from _whole(source, report.activity, causes=causes)
    elif report.on_host:
        yield on_host(report)
    if report.regions:
        yield ""
        yield from _regions(report, causes=causes, width=width)
    kernels = report.kernels
    if kernels:
        yield ""
        yield from _kernels(kernels, top, "operator" if report.on_host else "kernel", width)
    if report.activity is not None:
        yield ""
        yield from verdict_lines(classify(evidence(report.activity)))


# ---------------------------------------------------------------------- the whole


def _whole(source: str, a: Activity, *, causes: bool) -> Iterator[str]:
    span = "the span" if len(a.devices) == 1 else f"the span × {len(a.devices)} devices"
    whole = a.device_ns
    count = a.counts[Kind.KERNEL] + a.counts[Kind.COMMUNICATION]
    ran = f"{counted(a.operations, 'GPU operation')} on {counted(len(a.devices), 'device')}"
    yield f"{source}: {ran}; {counted(count, 'kernel')}, mean {time(a.mean_kernel_ns)}"
    yield f"span: {time(a.span_ns)}, from the first operation's start to the last one's end"
    yield ""
    rows = [*_split(a, whole, span, causes=causes), _row("copies", a.copy_ns, whole, span)]
    yield text_table(("", "time", "share", "of"), rows)
    yield ""
    streams = [
        (
            f"{s.device}:{printable(str(s.stream))}",
            f"{s.operations:,}",
            time(s.span_ns),
            time(s.busy_ns),
            *(time(s.idle.by_cause(causes=causes)[key]) for key in ("host_wait", "kernel_wait", "other", "unknown")),
        )
        for s in a.streams
    ]
    yield text_table(("stream", "operations", "span", "busy", "host wait", "kernel wait", "other", "unknown"), streams)


def _split(sums: Activity | RegionKernels, whole: int, of: str, *, causes: bool) -> Iterator[tuple[str, str, str, str]]:
    """The parts of a span, and communication."""
    yield _row("busy", sums.busy_ns, whole, of)
    yield _row("  work", sums.work_ns, whole, of)
    yield _row("  communication that no kernel hides", sums.exposed_communication_ns, whole, of)
    yield _row("  copies over a link that nothing hides", sums.exposed_transfer_ns, whole, of)
    if isinstance(sums, RegionKernels):
        yield _row("only others' operations", sums.others_ns, whole, of)
    idle = sums.idle.by_cause(causes=causes)
    yield _row("idle", sums.idle.total_ns, whole, of)
    yield _row("  waiting for the host", idle["host_wait"], whole, of)
    yield _row("    of that, launching", idle["launch"], idle["host_wait"] or 0, "waiting for the host")
    yield _row("  waiting between kernels", idle["kernel_wait"], whole, of)
    yield _row("  waiting for something else", idle["other"], whole, of)
    yield _row("  cause not in the trace", idle["unknown"], whole, of)
    yield _row("communication", sums.communication_ns, whole, of)
    yield _row("  beside other kernels", sums.overlap_ns, sums.communication_ns, "communication")


def _row(name: str, ns: int | None, whole: int, of: str) -> tuple[str, str, str, str]:
    return name, time(ns), share(ns, whole), of


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """The regime, the advice or else the rule, and the next nearest regime."""
    yield f"regime: {verdict.regime}{confidence(verdict)}"
    yield f"  {verdict.explanation}"
    if verdict.runner_up is not None:
        yield f"  next: {verdict.runner_up}"


# ---------------------------------------------------------------------- regions


def _regions(report: ReportData, *, causes: bool, width: int | None) -> Iterator[str]:
    shown = chosen(report.regions, MOST_REGIONS)
    rows = [*shown, *(() if report.outside is None else (report.outside,))]
    table = region_table(rows, on_host=report.on_host, causes=causes)
    yield _fitting(table, () if report.on_host else _SPARE, width)
    if len(shown) < len(report.regions):
        yield f"and {len(report.regions) - len(shown):,} more regions with less busy time; --json has all"


def _fitting(table: Sequence[Sequence[str]], spare: Sequence[Sequence[int]], width: int | None) -> str:
    head, *rows = table
    return fitted_table(head, rows, spare, width=width)


def _detail(report: ReportData, r: RegionKernels, *, causes: bool, top: int, width: int | None) -> Iterator[str]:
    where = f"GPU {', '.join(map(str, r.devices))}" if r.devices and not r.on_host else "no GPU"
    yield f"{printable(r.name)}: {counted(r.executions, 'execution')}, {time(r.host_ns)} on the host; {where}"
    what = "operator" if r.on_host else "kernel"
    if report.on_host:
        yield on_host(report)
    else:
        yield ""
        devices = 1 if report.activity is None else len(report.activity.devices)
        yield text_table(("", "time", "share", "of"), _detail_rows(r, devices, causes=causes))
        yield ""
        yield from facts(r)
    if r.kernels:
        yield ""
        yield from _kernels(r.kernels, top, what, width)
    for table in (copies_table([r], one=True), memory_table([r], one=True), counter_table([r], one=True)):
        if table:
            yield ""
            yield text_table(table[0], table[1:])
    yield ""
    yield from verdict_lines(r.verdict())


def _detail_rows(r: RegionKernels, devices: int, *, causes: bool) -> list[tuple[str, str, str, str]]:
    span = "the span" if len(r.devices) < 2 else f"the spans on {len(r.devices)} devices"
    beside = "time on the host" if devices == 1 else f"time on the host × {devices} devices"
    whole = r.span_ns
    rows = [
        _row("span", whole, 0, ""),
        *_split(r, whole, span, causes=causes),
        _row("GPU busy while it ran on the host", r.beside_ns, r.host_ns * devices, beside),
        _row("calls that wait for the GPU", r.wait_ns, r.host_ns, "time on the host"),
    ]
    if r.backward:
        rows.append(_row("backward pass", r.backward_ns, r.busy_ns, "busy"))
    return rows


def facts(r: RegionKernels) -> Iterator[str]:
    """Further facts on a region, a sentence each."""
    inside = r.operations - r.own
    deeper = f", {inside:,} of them launched in regions inside it" if inside else ""
    yield counted(r.operations, "GPU operation") + deeper
    if r.backward:
        yield f"{r.backward:,} of the backward pass of what ran forward in it"
    if r.graph:
        yield f"{r.graph:,} launched by CUDA graphs"
    if r.waits:
        yield f"{counted(r.waits, 'call')} waited for the GPU"
    for what, value, of_ns in (
        ("estimated occupancy", r.occupancy, r.occupancy_of_ns),
        ("multiprocessors with a block", r.breadth, r.breadth_of_ns),
    ):
        if value is not None:
            of = "" if of_ns == r.kernel_ns else f"the {time(of_ns)} with a value, of "
            yield f"{what}: {percent(value)}, a mean over {of}{time(r.kernel_ns)} of kernels"


# ---------------------------------------------------------------------- tables


def _kernels(kernels: Mapping[str, KernelSum], top: int, what: str, width: int | None) -> Iterator[str]:
    ranked = longest_first(kernels)
    room = _NAME if width is None else min(_NAME, max(_LEAST_NAME, width - _BESIDE_NAME))
    shown = labels((name for name, _ in ranked[:top]), room)
    table = kernel_table(ranked[:top], sum(each.total_ns for each in kernels.values()), shown, what)
    yield _fitting(table, _SPARE_OF_KERNELS, width)
    if len(ranked) > top:
        yield f"and {len(ranked) - top:,} more names"
