"""Profiles of operations, and the ceilings of a machine, as text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gpu_profile.units import MIB, NS_PER_S, percent, si

if TYPE_CHECKING:
    from gpu_profile.roofline.ceilings.ceilings import Ceiling, Ceilings

_UNKNOWN: Final = "–"
_SOURCES: Final = {"measured": "measured", "datasheet": "data sheet", "formula": "by formula"}
_WIDTH: Final = 100
#: Smaller shares would be shown as 0.
_LEAST_SHOWN: Final = 0.0005
_LABEL: Final = 13
#: The least share of the time for which the first touch of memory gets a line.
_NOTABLE: Final = 0.2


def profile_text(profile: Mapping[str, Any], about: Mapping[str, Any], ceilings: Ceilings) -> str:
    """A profile as text: a line for each quantity, with the reason if it is unknown."""
    regime = profile["regime"]
    confidence = "" if profile["confidence"] is None else f", confidence {percent(profile['confidence'], 0)}"
    runner_up = f"; else {profile['runner_up']}" if profile["runner_up"] else ""
    lines = [
        title_text(about),
        "",
        _line("time", _ms(profile["runtime_ms"]) + _runs(profile["runs"])),
        _line("regime", f"{regime}{confidence}{runner_up}"),
        _line("  why", profile["reason"]),
        _line("arithmetic", _reached(profile, ceilings, "achieved_flops", "flops_utilization")),
        _line("memory", _reached(profile, ceilings, "achieved_bandwidth", "bandwidth_utilization")),
        *_first_touch(profile.get("first_touch_ratio")),
        _line("intensity", _intensity(profile)),
        _line("overhead", _overhead(profile)),
        _line("device memory", _memory(profile["memory"], profile["reasons"])),
    ]
    if "ceilings" in profile["reasons"]:
        lines.append(_line("to note", profile["reasons"]["ceilings"]))
    if profile["advice"]:
        lines.append(_line("next step", profile["advice"]))
    return "\n".join(lines)


def title_text(about: Mapping[str, Any]) -> str:
    """The operation, its shapes and its machine: `add of 10,000,000 and 10,000,000, float32, on cpu: AMD EPYC`."""
    *inputs, last = (re.sub(r"\d{5,}", lambda n: f"{int(n[0]):,}", each) for each in about["shape"].split(", "))
    shape = f"{', '.join(inputs)} and {last}" if inputs else last
    return f"{about['operation']} of {shape}, {about['dtype']}, on {about['device']}: {about['machine']}"


def _runs(runs: Mapping[str, Any]) -> str:
    if runs["n"] == 1:
        return "   one run"
    caches = "" if runs["caches"] == "unknown" else f", {runs['caches']} caches"
    # Fewer runs give no 95 % interval.
    interval = "95 % interval" if runs["n"] > 5 else "from the least to the most"
    return f"   median of {runs['n']} runs{caches}; {interval} {_ms(runs['low_ms'])} – {_ms(runs['high_ms'])}"


def _first_touch(ratio: float | None) -> list[str]:
    if ratio is None or ratio < _NOTABLE:
        return []
    return [_line("first touch", f"{percent(ratio, 0)} of the time goes to new memory, which counts as memory's")]


def _line(label: str, text: str) -> str:
    """Labels flush left, and longer text indented below itself."""
    indent = " " * (_LABEL + 2)
    return textwrap.fill(
        text, _WIDTH, initial_indent=f"{label:<{_LABEL}}  ", subsequent_indent=indent, break_on_hyphens=False
    )


def _share(ratio: float) -> str:
    if 0 < ratio < _LEAST_SHOWN:
        return "less than 0.1 %"
    return percent(ratio, 0 if ratio >= 0.1 else 1)


def _ms(value: float) -> str:
    return si(value / 1e3, "s")


def _reached(profile: Mapping[str, Any], ceilings: Ceilings, key: str, share: str) -> str:
    """A rate, and its share of its ceiling."""
    from gpu_profile.roofline.precision import Precision

    arithmetic = key == "achieved_flops"
    value, reasons = profile[key], profile["reasons"]
    if value is None:
        return f"{_UNKNOWN}   {reasons.get('flops' if arithmetic else 'bytes', 'not known')}"
    said = si(value, "FLOP/s" if arithmetic else "B/s")
    if profile[share] is None:
        return (
            f"{said}   {reasons.get('compute ceiling' if arithmetic else 'memory ceiling', 'its ceiling is not known')}"
        )
    ceiling: Ceiling | None
    if arithmetic:
        name = profile["precision"] or "fp32"
        ceiling = ceilings.compute.get(Precision(name))
    else:
        name = profile["residency"] or "memory"
        ceiling = next((level.bandwidth for level in ceilings.levels if level.name == name), ceilings.memory)
    if ceiling is None:
        return f"{said}   {_share(profile[share])} of the ceiling"
    top = si(ceiling.value, "FLOP/s" if arithmetic else "B/s")
    return f"{said}   {_share(profile[share])} of {top} ({name}, {_SOURCES[ceiling.source]})"


def _intensity(profile: Mapping[str, Any]) -> str:
    value, ridge = profile["compute_intensity"], profile["ridge"]
    if value is None:
        return f"{_UNKNOWN}   {profile['reasons'].get('flops') or profile['reasons'].get('bytes', 'not known')}"
    text = f"{value:.3g} FLOP/B"
    if ridge:
        times = value / ridge
        text += f"   {times:{',.0f' if times >= 10 else '.2g'}} × the ridge of {ridge:.3g} FLOP/B"
    return text


def _overhead(profile: Mapping[str, Any]) -> str:
    share, growth = profile["overhead_ratio"], profile["growth"]
    if share is None:
        return f"{_UNKNOWN}   {profile['reasons'].get('overhead', 'not known')}"
    text = f"launching takes {'' if share < _LEAST_SHOWN else 'at most '}{_share(share)} of the time"
    return text if growth is None else f"{text}; twice the size takes {percent(growth, 0)} longer"


def _memory(memory: Mapping[str, Any] | None, reasons: Mapping[str, str]) -> str:
    if memory is None:
        return f"{_UNKNOWN}   {reasons.get('memory', 'not known')}"
    used, left, total = (memory[key] * MIB for key in ("allocated_mb", "headroom_mb", "total_available_mb"))
    risk = f"risk of running out: {memory['oom_risk']}"
    return f"{si(used, 'B')} in use here, {si(left, 'B')} of {si(total, 'B')} left; {risk}"


def ceilings_text(ceilings: Ceilings) -> str:
    """A machine's ceilings as a table with their sources, and below it the missing ones."""
    from gpu_profile.report import text_table
    from gpu_profile.roofline.precision import Precision

    rows = []
    for level in ceilings.levels:
        upto = "any size" if level.up_to is None else f"up to {si(level.up_to, 'B')}"
        rows.append((level.name, si(level.bandwidth.value, "B/s"), upto, level.bandwidth))
    for precision, ceiling in ceilings.compute.items():
        ridge = ceilings.ridge(precision)
        at = _UNKNOWN if ridge is None else f"ridge {ridge:.3g} FLOP/B"
        unit = "OP/s" if precision is Precision.INT8 else "FLOP/s"
        rows.append((str(precision), si(ceiling.value, unit), at, ceiling))
    cells = [(name, value, at, _SOURCES[each.source], each.note) for name, value, at, each in rows]
    if ceilings.launch_s is not None:
        cold = "" if ceilings.cold_launch_s is None else f"{si(ceilings.cold_launch_s, 's')} with cold caches"
        cells.append(("empty launch", si(ceilings.launch_s, "s"), "", "measured", cold))
    if ceilings.fault_s is not None:
        cells.append(("first touch", si(ceilings.fault_s, "s"), "a page of memory", "measured", ""))
    lines = [ceilings.machine, "", text_table(("ceiling", "value", "for", "source", "note"), cells, left=5)]
    lines += [_line(name, f"{_UNKNOWN}   {why}") for name, why in ceilings.missing.items()]
    if ceilings.doubt:
        lines += ["", _line("to note", ceilings.doubt)]
    if ceilings.calibrated_ns:
        lines += ["", f"measured {datetime.fromtimestamp(ceilings.calibrated_ns / NS_PER_S, UTC):%Y-%m-%d %H:%M} UTC"]
    return "\n".join(lines)
