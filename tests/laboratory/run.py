"""`python tests/laboratory/run.py [--rows PATTERN] [--seeds N] [--mixed N] [--json FILE]`: the laboratory's table.

Prints each row as soon as it is done, with its figures and faults, then the mixed cases by violation. Confident errors
are printed with their seeds. `--rows NAME --only SEED` runs one case again with all its answers, `--mixed 1 --only
NUMBER` one of the mixed cases.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # there is one process per core

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
from laboratory.services import SERVICE_ROWS
from laboratory.starved import STARVED_ROWS

#: The table of cases, and the kinds that were not used in the development of the estimator.
EVERY: Final = (*ROWS, *KIND_ROWS, *STARVED_ROWS, *SERVICE_ROWS)
SEEDS: Final = 30
MIXED: Final = 200
#: Most printed confident errors of a row.
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
        results = [part.result() for part in others]
    for name in ("", *mixes.VIOLATIONS):
        selected = [
            outcome
            for case, outcomes in zip(drawn, results, strict=True)
            if name in case.violations or not (name or case.violations)
            for outcome in outcomes
        ]
        if selected:
            title = f"mixed: {name}" if name else _NONE
            yield verdict(title, "unmarked" if name in mixes.UNMARKED else "violated", selected), selected
    if results:
        every = [outcome for outcomes in results for outcome in outcomes]
        yield verdict("mixed: all", "unmarked", every), every


def _one(name: str, seed: int) -> list[Outcome]:
    return next(row for row in EVERY if row.name == name).outcomes(seed)


def _mixed(number: int) -> list[Outcome]:
    return mixes.draw(number).outcomes()


def main(arguments: list[str]) -> int:
    """Run the selected rows and cases. Returns 1 if a row falls short."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="", help="only rows whose name matches this regular expression")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--mixed", type=int, default=0, help="mixed cases, by number from 0 on")
    parser.add_argument("--only", type=int, help="one seed, or with --mixed the case of this number; all its answers")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = [row for row in EVERY if re.search(options.rows, row.name)]
    if options.only is not None:
        case = mixes.draw(options.only)
        if options.mixed:
            print(case)
        outcomes = case.outcomes() if options.mixed else [each for row in rows for each in row.outcomes(options.only)]
        print(*map(line, outcomes), sep="\n")
        return 0
    judgements, started = [], time.perf_counter()
    for judged, outcomes in table(rows, options.seeds, options.mixed):
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
    if options.json:
        options.json.write_text(json.dumps([_as_json(judged) for judged in judgements], indent=1), encoding="utf-8")
    short = sum(not judged.ok for judged in judgements)
    print(f"{short} of {len(judgements)} rows fall short; {time.perf_counter() - started:.0f} s")
    return 1 if short else 0


def line(outcome: Outcome) -> str:
    """One answer beside the truth."""
    answer, target = outcome.answer, outcome.target
    given = "refused: " + answer.reason if answer.value is None else f"{answer.value:.4g}"
    width = "" if answer.half_width is None else f" ± {answer.half_width:.2g}"
    oracle = f"truth {target.truth:.4g}, oracle ± {target.half_width:.2g}"
    return f"seed {outcome.seed} {outcome.region} {outcome.quantity}: {given}{width}; {oracle}"


def _as_json(judged: Verdict) -> dict[str, Any]:
    return {**vars(judged), "ok": judged.ok, "scores": [vars(each) for each in judged.scores]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
