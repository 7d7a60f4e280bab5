"""`python tests/laboratory/run.py [--rows PATTERN] [--seeds N] [--mixed N] [--json FILE]`: the laboratory's table.

One line for each row as soon as it is there, with its figures and faults; then the mixed cases by violation.
Confident errors are printed with their seeds: `--rows NAME --only SEED` runs one case again, with all its answers;
`--mixed 1 --only NUMBER` one of the mixed.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process for each core is enough

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from laboratory import mixes
from laboratory.kinds import KIND_ROWS
from laboratory.rows import ROWS, Row
from laboratory.score import Outcome, Verdict, verdict

#: The table of cases, and the kinds that nobody looked at while the estimator was made.
EVERY: Final = (*ROWS, *KIND_ROWS)
SEEDS: Final = 30
MIXED: Final = 200
#: So many confident errors of a row are printed.
_PRINTED: Final = 6
_NONE: Final = "mixed: no violation"


def table(rows: Sequence[Row], seeds: int = SEEDS, mixed: int = MIXED) -> Iterator[tuple[Verdict, list[Outcome]]]:
    """The verdict of each row, then of the mixed cases with each violation, over all cores."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        waiting = [(row, [pool.submit(_one, row.name, seed) for seed in range(seeds)]) for row in rows]
        others = [pool.submit(_mixed, number) for number in range(mixed)]
        for row, parts in waiting:
            outcomes = [outcome for part in parts for outcome in part.result()]
            yield verdict(row.name, row.kind, outcomes), outcomes
        drawn = [mixes.draw(number) for number in range(mixed)]
        found = [part.result() for part in others]
    for name in ("", *mixes.VIOLATIONS):
        mine = [
            outcome
            for case, outcomes in zip(drawn, found, strict=True)
            if name in case.violations or not (name or case.violations)
            for outcome in outcomes
        ]
        if mine:
            title = f"mixed: {name}" if name else _NONE
            yield verdict(title, "unmarked" if name in mixes.UNMARKED else "violated", mine), mine
    if found:
        every = [outcome for outcomes in found for outcome in outcomes]
        yield verdict("mixed: all", "unmarked", every), every


def _one(name: str, seed: int) -> list[Outcome]:
    return next(row for row in EVERY if row.name == name).outcomes(seed)


def _mixed(number: int) -> list[Outcome]:
    return mixes.draw(number).outcomes()


def main(arguments: list[str]) -> int:
    """Run what is asked for; 1 if a row falls short."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="", help="only rows whose name matches this regular expression")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--mixed", type=int, default=0, help="mixed cases, by number from 0 on")
    parser.add_argument("--only", type=int, help="one seed, or with --mixed the case of this number; all its answers")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    rows = [row for row in EVERY if re.search(asked.rows, row.name)]
    if asked.only is not None:
        case = mixes.draw(asked.only)
        if asked.mixed:
            print(case)
        found = case.outcomes() if asked.mixed else [each for row in rows for each in row.outcomes(asked.only)]
        print(*map(line, found), sep="\n")
        return 0
    judgements, started = [], time.perf_counter()
    for judged, outcomes in table(rows, asked.seeds, asked.mixed):
        judgements.append(judged)
        print(f"{'ok   ' if judged.ok else 'SHORT'} {judged.row} ({time.perf_counter() - started:.0f} s)")
        for each in judged.scores:
            print(f"        {each}")
            for reason, times in each.refusals.items():
                print(f"          refused {times}x: {reason}")
        for fault in judged.faults:
            print(f"      ! {fault}")
        if not judged.row.startswith("mixed: all"):
            wrong = [outcome for outcome in outcomes if outcome.confidently_wrong]
            for outcome in wrong[:_PRINTED]:
                print(f"        confident error: {line(outcome)}")
        sys.stdout.flush()
    if asked.json:
        asked.json.write_text(json.dumps([_as_json(judged) for judged in judgements], indent=1), encoding="utf-8")
    short = sum(not judged.ok for judged in judgements)
    print(f"{short} of {len(judgements)} rows fall short; {time.perf_counter() - started:.0f} s")
    return 1 if short else 0


def line(outcome: Outcome) -> str:
    """One answer beside the truth."""
    answer, known = outcome.answer, outcome.known
    given = "refused: " + answer.reason if answer.value is None else f"{answer.value:.4g}"
    width = "" if answer.half_width is None else f" ± {answer.half_width:.2g}"
    oracle = f"truth {known.truth:.4g}, oracle ± {known.half_width:.2g}"
    return f"seed {outcome.seed} {outcome.region} {outcome.quantity}: {given}{width}; {oracle}"


def _as_json(judged: Verdict) -> dict[str, Any]:
    return {**vars(judged), "ok": judged.ok, "scores": [vars(each) for each in judged.scores]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
