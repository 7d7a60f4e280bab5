"""`gpu-profile kernels TRACE`: what the GPU operations of a saved trace add up to, and what bounds them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_profile.errors import UsageError
from gpu_profile.units import percent, seconds, si

if TYPE_CHECKING:
    from gpu_profile.kernels import Activity, Idle, Launch, Operation, Trace
    from gpu_profile.regimes import Verdict

_UNKNOWN = "–"


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def kernels(trace: Path, *, as_json: bool) -> None:
    """Sum up the GPU operations of a trace that PyTorch's profiler saved.

    TRACE is a Chrome trace, .json or .json.gz. Of a damaged one, what can be read is shown, and the exit code is 2.
    """
    from gpu_profile.kernels import Trace, evidence, measure
    from gpu_profile.regimes import classify

    source = Trace(trace)
    problems: list[UsageError] = []
    activity = measure(_until_problem(source, problems))
    if activity is None:
        if problems:
            raise problems[0]
        raise UsageError(f"{trace}: no GPU operations in it: record it with ProfilerActivity.CUDA")
    verdict = classify(evidence(activity))
    if as_json:
        found = _object(activity, verdict) | {"skipped": dict(source.skipped)}
        if problems:
            found["problem"] = str(problems[0])
        click.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        click.echo(_text(trace, activity, verdict))
        for reason, count in sorted(source.skipped.items()):
            click.echo(f"left out: {count:,} events ({reason})")
    if problems:
        raise UsageError(f"{problems[0]}; what is shown is what came before")


def _until_problem(trace: Trace, problems: list[UsageError]) -> Iterator[Operation | Launch]:
    try:
        yield from trace
    except UsageError as problem:
        problems.append(problem)


def _object(a: Activity, verdict: Verdict) -> dict[str, Any]:
    whole = a.device_ns
    return {
        "operations": a.operations,
        "devices": list(a.devices),
        "span_s": seconds(a.span_ns),
        "busy_s": seconds(a.busy_ns),
        "busy_ratio": a.busy_ns / whole if whole else None,
        "work_s": seconds(a.work_ns),
        "communication_s": seconds(a.communication_ns),
        "overlap_s": seconds(a.overlap_ns),
        "overlap_ratio": a.overlap_ratio,
        "transfer_s": seconds(a.transfer_ns),
        "exposed_transfer_s": seconds(a.exposed_transfer_ns),
        "copy_s": seconds(a.copy_ns),
        "mean_kernel_s": None if a.mean_kernel_ns is None else a.mean_kernel_ns / 1e9,
        "counts": {str(kind): count for kind, count in a.counts.items()},
        "idle": _idle(a.idle, a.launches),
        "regime": str(verdict.regime),
        "confidence": verdict.confidence,
        "basis": verdict.basis,
        "coverage": verdict.coverage,
        "rule": verdict.rule,
        "runner_up": None if verdict.runner_up is None else str(verdict.runner_up),
        "advice": verdict.advice,
        "streams": [
            {
                "device": s.device,
                "stream": s.stream,
                "operations": s.operations,
                "span_s": seconds(s.span_ns),
                "busy_s": seconds(s.busy_ns),
                "idle": _idle(s.idle, a.launches),
            }
            for s in a.streams
        ],
    }


def _idle(idle: Idle, launches: int) -> dict[str, float | None]:
    """Seconds by cause; None where the trace has no calls of the host to tell causes by."""
    known = {
        "host_wait_s": idle.host_wait_ns,
        "launch_s": idle.launch_ns,
        "kernel_wait_s": idle.kernel_wait_ns,
        "other_s": idle.other_ns,
    }
    causes = {key: seconds(ns) if launches else None for key, ns in known.items()}
    return causes | {"unknown_s": seconds(idle.unknown_ns if launches else idle.total_ns)}


def _text(trace: Path, a: Activity, verdict: Verdict) -> str:
    from gpu_profile.kernels import Kind
    from gpu_profile.regimes import Regime
    from gpu_profile.report import text_table

    span = "the span" if len(a.devices) == 1 else f"the span × {len(a.devices)} devices"
    whole = seconds(a.device_ns)
    idle = _idle(a.idle, a.launches)
    rows = [
        _row("busy", seconds(a.busy_ns), whole, span),
        _row("  work", seconds(a.work_ns), whole, span),
        _row("  communication that no kernel hides", seconds(a.exposed_communication_ns), whole, span),
        _row("  copies over a link that nothing hides", seconds(a.exposed_transfer_ns), whole, span),
        _row("idle", seconds(a.idle.total_ns), whole, span),
        _row("  waiting for the host", idle["host_wait_s"], whole, span),
        _row("    of that, launching", idle["launch_s"], seconds(a.idle.host_wait_ns), "waiting for the host"),
        _row("  waiting between kernels", idle["kernel_wait_s"], whole, span),
        _row("  waiting for something else", idle["other_s"], whole, span),
        _row("  cause not in the trace", idle["unknown_s"], whole, span),
        _row("communication", seconds(a.communication_ns), whole, span),
        _row("  beside other kernels", seconds(a.overlap_ns), seconds(a.communication_ns), "communication"),
        _row("copies", seconds(a.copy_ns), whole, span),
    ]
    streams = [
        (
            f"{s.device}:{_printable(s.stream)}",
            f"{s.operations:,}",
            si(seconds(s.span_ns), "s"),
            si(seconds(s.busy_ns), "s"),
            *(
                _time(_idle(s.idle, a.launches)[f"{cause}_s"])
                for cause in ("host_wait", "kernel_wait", "other", "unknown")
            ),
        )
        for s in a.streams
    ]
    count = a.counts[Kind.KERNEL] + a.counts[Kind.COMMUNICATION]
    mean = _UNKNOWN if a.mean_kernel_ns is None else si(a.mean_kernel_ns / 1e9, "s")
    devices = "1 device" if len(a.devices) == 1 else f"{len(a.devices)} devices"
    lines = [
        f"{_printable(trace)}: {a.operations:,} GPU operations on {devices}; {count:,} kernels, mean {mean}",
        f"span: {si(seconds(a.span_ns), 's')}, from the first operation's start to the last one's end",
        "",
        text_table(("", "time", "share", "of"), rows),
        "",
        text_table(("stream", "operations", "span", "busy", "host wait", "kernel wait", "other", "unknown"), streams),
        "",
        f"regime: {verdict.regime}"
        + ("" if verdict.regime is Regime.UNKNOWN else f", sure {percent(verdict.confidence, 0)}"),
        f"  {verdict.advice or verdict.rule}",
    ]
    if verdict.runner_up is not None:
        lines.append(f"  next: {verdict.runner_up}")
    return "\n".join(lines)


def _row(name: str, time: float | None, whole: float, of: str) -> tuple[str, str, str, str]:
    return name, _time(time), percent(time / whole) if time is not None and whole else _UNKNOWN, of


def _time(time: float | None) -> str:
    return _UNKNOWN if time is None else si(time, "s")


def _printable(text: object) -> str:
    """Text without what a terminal or an encoder would choke on."""
    return "".join(c if c.isprintable() else "?" for c in str(text))
