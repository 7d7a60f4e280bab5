"""The costs of one run of a benchmark: the growth of an engine's counters, and a line of a file of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from gpu_profile.analysis.costs.benchmark import MOST, BenchmarkResult, Setting
from gpu_profile.analysis.costs.counters import IDLE, EngineCounters
from gpu_profile.catalogue.samples import Interval
from gpu_profile.errors import UsageError
from gpu_profile.report.as_json import to_json
from gpu_profile.report.table import printable
from gpu_profile.units import NS_PER_S, percent

#: The version of a line of a file. A new key leaves it as it is.
FORMAT: Final = 1
REQUESTS, PREFILL, DECODE = "requests", "prefill", "decode"
#: The parts of the costs. `REQUESTS` is all of the requests' energy, with the tokens of `DECODE`.
PARTS: Final = (REQUESTS, PREFILL, DECODE)
#: The name of `device_s` in reasons.
GPU_TIME: Final = "GPU time"
#: If a larger share of the requests' energy is unallocated, phases have no costs. The exporter's limit for tenants.
MOST_MISSING: Final = 0.05
#: Reasons of unallocated energy that may be of other programs than the engine.
_OTHERS: Final = ("devices_shared", "other_programs")
#: The reason of unallocated energy for missing spans of requests.
_NOT_KNOWN: Final = "request_not_known"
_LEFT_OUT: Final = "the exporter leaves out series beyond --series-budget: costs may be missing; raise it"
#: Counts of tokens or requests that differ by more than this share are pointed out.
_ALIKE: Final = 0.02


@dataclass(frozen=True, slots=True)
class RunCosts:
    """The costs of one run, in base units. None: not measured or not identifiable, with a reason in `reasons`.

    `energy_j` and `tokens` are by part, and `half_widths` are halves of 95 % intervals of energies as shares of them.
    The parts `prefill` and `decode` and the `unallocated_j` by reason add up to `requests`. The half-width of
    `requests` is the share that other programs may have used. `idle_j` is of the time without requests, from before
    the command until after it. `device_s` is GPU time of iterations.
    """

    engine: str
    start_ns: int
    end_ns: int
    requests: int | None
    tokens: Mapping[str, int | None]
    counted_by: str
    energy_j: Mapping[str, float | None]
    half_widths: Mapping[str, float]
    device_s: float | None
    idle_j: float
    unallocated_j: Mapping[str, float]
    settings: Mapping[str, Setting] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    simulated: bool = False
    format: int = FORMAT

    def token_j(self, part: str) -> float | None:
        """J per token of a part; of all requests, per token of their answers."""
        energy, tokens = self.energy_j.get(part), self.tokens.get(part)
        return None if energy is None or not tokens else energy / tokens

    def per_request(self, value: float | None) -> float | None:
        """A value of all requests, per request."""
        return None if value is None or not self.requests else value / self.requests

    def line(self) -> str:
        """One line of JSON."""
        return to_json(asdict(self), one_line=True)


def costs_of(
    before: EngineCounters, after: EngineCounters, during: Interval, result: BenchmarkResult | None = None
) -> RunCosts:
    """The costs of a run from settled counters. Raises UsageError if counters fell, or nothing was requested.

    The engine's own tokens and requests count if they are complete, because they include the requests of warm-up.
    """
    energy, device, tokens, lost = (
        _growth(getattr(before, name), getattr(after, name), before.engine)
        for name in ("energy_j", "device_s", "tokens", "unallocated_j")
    )
    (requests,) = _growth({"": before.requests}, {"": after.requests}, before.engine).values()
    idle_j = lost.pop(IDLE, 0.0)
    lost = {reason: joules for reason, joules in lost.items() if joules > 0}
    all_j = sum(energy.values()) + sum(lost.values())
    if all_j <= 0:
        raise UsageError(f"engine {before.engine}: no iteration ran during the command; did it send requests there?")
    not_known = lost.get(_NOT_KNOWN, 0.0) / all_j > MOST_MISSING
    counted, counted_by = _counted(requests, tokens, result, complete=not not_known)
    notes = _notes(requests, tokens, result, during, counted_by)
    missing, others = sum(lost.values()) / all_j, sum(lost.get(reason, 0.0) for reason in _OTHERS) / all_j
    reasons = {each: _missing(lost, missing) for each in (PREFILL, DECODE, GPU_TIME) if missing > MOST_MISSING}
    if others > MOST_MISSING:
        reasons[REQUESTS] = f"other programs may have used {percent(others, 0)} of the energy"
    reasons |= {part: "the engine ran none" for part in (PREFILL, DECODE) if part not in reasons and part not in energy}
    parts = {part: None if part in reasons else energy[part] for part in (PREFILL, DECODE)}
    # Unallocated energy may be of one phase alone.
    half_widths = {REQUESTS: others} if 0 < others <= MOST_MISSING else {}
    half_widths |= {part: width + missing for part, width in after.half_widths.items() if parts.get(part) is not None}
    if not counted_by:
        spans = "many spans of requests are missing" if not_known else "no spans of requests arrived"
        reasons["tokens"] = f"{spans} and there is no --result: give one of both"
    elif not counted.get(PREFILL):
        reasons.setdefault(PREFILL, "no tokens were counted")
    return RunCosts(
        before.engine,
        during.start_ns,
        during.end_ns,
        counted[REQUESTS],
        {REQUESTS: counted[DECODE], PREFILL: counted[PREFILL], DECODE: counted[DECODE]},
        counted_by,
        {REQUESTS: None if REQUESTS in reasons else all_j, **parts},
        half_widths,
        None if GPU_TIME in reasons else sum(device.values()),
        idle_j,
        lost,
        {**({"GPUs": after.gpus} if after.gpus else {}), **({} if result is None else result.settings)},
        reasons,
        (*notes, _LEFT_OUT) if after.left_out > before.left_out else notes,
        after.simulated,
    )


def _growth(before: Mapping[str, float], after: Mapping[str, float], engine: str) -> dict[str, float]:
    growth = {key: value - before.get(key, 0.0) for key, value in after.items()}
    if any(value < 0 for value in growth.values()) or set(before) - set(after):
        raise UsageError(f"engine {engine}: its counters fell during the run; run it again")
    return growth


def _counted(
    requests: float, tokens: Mapping[str, float], result: BenchmarkResult | None, *, complete: bool
) -> tuple[dict[str, int | None], str]:
    """Requests and tokens, and where they are from: the exporter, the result or nowhere ("").

    The exporter counts spans, and sampling of traces may leave some out. `complete`: it missed none in iterations.
    """
    answers = tokens.get(DECODE, 0.0)
    if result is not None:
        all_there = requests >= (1 - _ALIKE) * result.requests and answers >= (1 - _ALIKE) * result.output_tokens
    else:
        all_there = complete and requests > 0 and answers > 0
    if all_there:
        return {REQUESTS: round(requests), PREFILL: round(tokens.get(PREFILL, 0.0)), DECODE: round(answers)}, "exporter"
    if result is not None:
        return {REQUESTS: result.requests, PREFILL: result.input_tokens, DECODE: result.output_tokens}, "result"
    return dict.fromkeys(PARTS), ""


def _missing(lost: Mapping[str, float], share: float) -> str:
    reason = max(lost, key=lambda each: lost[each])
    return f"{percent(share, 0)} of the requests' energy is unallocated, mostly {reason}"


def _notes(
    requests: float, tokens: Mapping[str, float], result: BenchmarkResult | None, during: Interval, counted_by: str
) -> tuple[str, ...]:
    notes = []
    if result is not None and result.failed:
        notes.append(f"{result.failed:,} requests failed: their energy is in the costs, their tokens are not counted")
    if result is not None and result.duration_s > (length_s := (during.end_ns - during.start_ns) / NS_PER_S):
        notes.append(f"the result is of {result.duration_s:.1f} s, and the command took {length_s:.1f} s: another run?")
    if result is not None and counted_by == "exporter":
        counts = (("requests", requests, result.requests), ("tokens of answers", tokens.get(DECODE, 0.0),
                  result.output_tokens))  # fmt: skip
        notes += [
            f"the exporter counted {own:,.0f} {name} and the result {theirs:,}: warm-up and others' are in the costs"
            for name, own, theirs in counts
            if abs(own / theirs - 1) > _ALIKE
        ]
    if result is not None and counted_by == "result":
        if requests:
            counts_differ = f"the exporter counted {requests:,.0f} requests and the result {result.requests:,}"
            notes.append(f"{counts_differ}: spans are missing")
        notes.append("tokens are the result's: warm-up, and prompts in the prefix cache, make their costs differ")
    return tuple(notes)


def read_runs(text: str, name: str) -> list[RunCosts]:
    """The runs in the text of a file, one for each line. Raises UsageError with the file's `name` and the line.

    A line that is there twice is one run: a copy shows nothing of the spread between runs.
    """
    runs = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                if (run := _run(_printable(json.loads(line)))) not in runs:
                    runs.append(run)
            except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
                reason = "not the costs of a run; gpu-profile cost writes them"
                raise UsageError(f"{name}: line {number}: {reason}") from error
    if not runs:
        raise UsageError(f"{name}: no runs in it; gpu-profile cost --output writes one line for each")
    return runs


def _printable(value: Any) -> Any:
    """A JSON value with texts that a terminal and a page can show."""
    if isinstance(value, dict):
        return {printable(key): _printable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_printable(each) for each in value]
    return printable(value) if isinstance(value, str) else value


def _run(values: Mapping[str, Any]) -> RunCosts:
    """A run from its JSON. ValueError, TypeError, AttributeError or KeyError if it is not one."""
    used = RunCosts.__dataclass_fields__
    run = RunCosts(**{key: value for key, value in values.items() if key in used} | {"notes": tuple(values["notes"])})
    if run.format != FORMAT:
        raise ValueError(f"of another format: {run.format}")
    numbers = [run.requests, run.device_s, *run.energy_j.values(), *run.tokens.values(), *run.half_widths.values()]
    if any(not 0 <= number <= MOST for number in numbers if number is not None):
        raise ValueError("an impossible number")
    for each in (run.settings, run.reasons):
        each.items()
    return run
