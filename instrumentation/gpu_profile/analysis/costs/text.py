"""The costs of a run as a table."""

from __future__ import annotations

from typing import Final

from gpu_profile.analysis.costs.run import DECODE, PARTS, PREFILL, REQUESTS, RunCosts
from gpu_profile.analysis.views.text import MORE, SIMULATED, listed, quantity, section
from gpu_profile.report.table import UNKNOWN, fitted_table, folded
from gpu_profile.units import NS_PER_S, percent, si

_COLUMNS: Final = ("costs", "tokens", "energy", "per token", "interval", "per request", "GPU time")
_UNALLOCATED: Final = "unallocated"


def render_costs(costs: RunCosts, *, width: int | None = None) -> str:
    """The costs of a run by part, the energy that has none, and the reasons for missing values."""
    lines = [SIMULATED] if costs.simulated else []
    lines += [_headline(costs), f"Settings: {_settings(costs)}"]
    rows = [_row(costs, part) for part in PARTS]
    rows += [(f"{_UNALLOCATED}, {why}", "", si(joules, "J"), *[""] * 4) for why, joules in costs.unallocated_j.items()]
    rows.append(("idle", "", si(costs.idle_j, "J"), *[""] * 4))
    alike = {why: [name for name, other in costs.reasons.items() if other == why] for why in costs.reasons.values()}
    gaps = [*(f"{listed(names)}: {why}" for why, names in alike.items()), *costs.notes]
    parts = [folded("\n".join(lines), width), fitted_table(_COLUMNS, rows, ((1,), (6,)), width=width, more=MORE)]
    return "\n\n".join([*parts, *section("Missing results and notes", gaps, width)])


def _headline(costs: RunCosts) -> str:
    length = si((costs.end_ns - costs.start_ns) / NS_PER_S, "s")
    parts = [f"engine {costs.engine}" if costs.engine else "whole GPUs with their idle time in the run", length]
    tokens = costs.tokens
    if costs.counted_by:
        parts.append(f"{costs.requests:,} requests" if costs.requests is not None else "")
        parts.append(f"{tokens[PREFILL]:,} tokens in prefill and {tokens[DECODE]:,} in decode")
        parts.append(f"counted by the {costs.counted_by}")
    return ", ".join(part for part in parts if part)


def _settings(costs: RunCosts) -> str:
    """The load, on which the cost of a token depends."""
    listed = [f"{name} {value}" for name, value in costs.settings.items()]
    for part, words in ((PREFILL, "in"), (DECODE, "out")):
        if (each := costs.per_request(costs.tokens[part])) is not None:
            listed.append(f"{each:,.0f} tokens {words} per request")
    return ", ".join(listed) or "unknown; --result gives them"


def _row(costs: RunCosts, part: str) -> tuple[str, ...]:
    energy, tokens, width = costs.energy_j[part], costs.tokens[part], costs.half_widths.get(part)
    missing = _UNALLOCATED if energy is None else UNKNOWN
    return (
        part,
        UNKNOWN if tokens is None else f"{tokens:,}",
        _UNALLOCATED if energy is None else si(energy, "J"),
        quantity(costs.token_j(part), "J") if costs.token_j(part) is not None else missing,
        f"±{percent(width)}" if width is not None else "" if part == REQUESTS else UNKNOWN,
        quantity(costs.per_request(energy), "J"),
        quantity(costs.per_request(costs.device_s), "s") if part == REQUESTS else "",
    )
