"""The ranks of a distributed run as text and as JSON values: a row for each, and the slowest one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gpu_profile.kernels.ranks import PARTS, RankSums, Slowest
from gpu_profile.kernels.render.cells import time
from gpu_profile.kernels.render.names import labels
from gpu_profile.report.table import fitted_table, printable
from gpu_profile.units import percent

_COLUMNS: Final = ("rank", "own time", *PARTS, "communication", "of it exposed", "span")
_SPARE: Final = ((7,), (6,), (5,), (3,), (8,))
#: How many parts and kernels of the slowest rank are named, if each is this share of the difference.
_NAMED: Final = 3
_SHARE: Final = 0.1


def render_ranks(
    ranks: Sequence[RankSums], last: Slowest | str, *, incomplete: Sequence[str] = (), width: int | None = None
) -> str:
    """The sentences on the slowest rank, or why there is none, and on `incomplete` traces; the table of all ranks."""
    rows = [
        (
            printable(each.rank) + (" (cut short)" if each.cut else ""),
            time(each.own_ns),
            *(time(part(each.activity)) for part in PARTS.values()),
            time(each.activity.communication_ns),
            time(each.activity.exposed_communication_ns),
            time(each.activity.span_ns),
        )
        for each in ranks
    ]
    warnings = [f"INCOMPLETE: {printable(each)}" for each in incomplete]
    table = ["", fitted_table(_COLUMNS, rows, _SPARE, width=width)] if rows else []
    return "\n".join([*warnings, *_sentences(last), *table])


def _sentences(last: Slowest | str) -> Iterator[str]:
    if isinstance(last, str):
        yield last
        return
    share = f" ({percent(last.excess_ns / last.others_ns, 0)})" if last.others_ns else ""
    own, more = time(last.own_ns), time(last.excess_ns)
    yield f"slowest rank: {printable(last.rank)}, with {own} of own time, {more}{share} more than the others' median"
    if parts := _largest(last.parts, last.excess_ns):
        yield f"it differs in: {', '.join(f'{name} +{time(ns)}' for name, ns in parts)}"
    if kernels := _largest(last.kernels, last.excess_ns):
        short = labels(name for name, _ in kernels)
        yield f"kernels: {', '.join(f'{short[name]} +{time(ns)}' for name, ns in kernels)}"


def _largest(longer: Sequence[tuple[str, int]], excess_ns: int) -> list[tuple[str, int]]:
    return [(name, ns) for name, ns in longer[:_NAMED] if ns >= _SHARE * excess_ns]


def slowest_document(last: Slowest | str) -> dict[str, Any]:
    """The slowest rank as JSON values, `slowest`, and `no_slowest`, the sentence why there is none. One is None."""
    if isinstance(last, str):
        return {"slowest": None, "no_slowest": last}
    values = {
        "rank": last.rank,
        "own_s": last.own_ns / 1e9,
        "others_s": last.others_ns / 1e9,
        "parts": {name: ns / 1e9 for name, ns in last.parts},
        "kernels": {name: ns / 1e9 for name, ns in last.kernels[:10]},
    }
    return {"slowest": values, "no_slowest": None}
