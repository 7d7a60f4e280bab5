"""The laboratory of truth as rows: how right answers are where the usual assumptions hold, and where they do not.

A row's cost is the share of what the laboratory's oracle could answer of power and busy share that is not both answered
and within its half-width; where it could answer nothing, the share of given answers that are not. What a row has to
reach is in `laboratory.score`; `tests/laboratory/run.py` prints more, and every confident error with its seed. The
sample beside other groups has two of the seeds and a tenth of the mixed cases.
"""

from collections.abc import Iterator
from typing import Final

from laboratory.run import EVERY, MIXED, SEEDS, table
from laboratory.score import Score, Verdict

from benchmarks import calibrated_sensors, mig_shares
from benchmarks.rows import Row

#: What part of the seeds, and of the mixed cases, is a sample.
_SEEDS_PART: Final = 15
_MIXED_PART: Final = 10


def rows() -> Iterator[Row]:
    """All of them, what calibration finds, and the energy of MIG instances."""
    yield from _rows(SEEDS, MIXED)


def sample() -> Iterator[Row]:
    """The same rows from fewer seeds."""
    yield from _rows(SEEDS // _SEEDS_PART, MIXED // _MIXED_PART)


def _rows(seeds: int, mixed: int) -> Iterator[Row]:
    for judged, _ in table(EVERY, seeds, mixed):
        yield _row(judged)
    yield from calibrated_sensors.rows()
    yield from mig_shares.rows()


def _row(judged: Verdict) -> Row:
    main = [each for each in judged.scores if each.quantity in {"power", "busy"}]
    bare, off = (sum(getattr(each, name) for each in judged.scores) for name in ("bare", "off"))
    figure = "; ".join(_figure(each) for each in main) + f"; {off} of {bare} unflagged numbers off by over 10 %"
    differ = sum(each.differ for each in judged.scores)
    if judged.kind == "replay":
        figure += f"; {differ} numbers differ live"
    return Row(f"truth {judged.row}", figure, reach=_REACH[judged.kind], ok=judged.ok, cost=round(judged.cost, 4))


_USUAL = "cover >=90 %, beyond 3 half-widths and unflagged <=1 %, >=60 % answered"
_REACH = {
    "clean": "as others, >=95 % answered, median <=2 %",
    "violated": _USUAL,
    "unmarked": _USUAL.partition(", ")[2],
    "replay": f"{_USUAL}, the same live",
}


def _figure(found: Score) -> str:
    answered = f"{found.answered}/{found.answerable}"
    if not found.with_half_width:
        return f"{found.quantity}: {answered} answered"
    beyond = found.beyond / found.with_half_width
    return (
        f"{found.quantity}: {answered} answered, {found.coverage * 100:.3g} % cover, {beyond * 100:.2g} % beyond 3, "
        f"median error {found.median_error * 100:.2g} %"
    )
