"""`python tests/laboratory/run.py [--rows PATTERN] [--seeds N] [--mixed N] [--json FILE]`: the laboratory's table.

One line for each row as soon as it is there, with its figures and faults; then the mixed cases by violation.
Confident errors are printed with their seeds: `--rows NAME --only SEED` runs one case again, with all its answers.
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
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from laboratory.rows import ROWS, Row
from laboratory.score import Outcome, Verdict, verdict

#: So many confident errors of a row are printed.
_PRINTED = 6


def _one(name: str, seed: int) -> list[Outcome]:
    return next(row for row in ROWS if row.name == name).outcomes(seed)


def table(rows: Sequence[Row], seeds: int) -> Iterator[tuple[Verdict, list[Outcome]]]:
    """The verdict of each row, over all cores."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        waiting = [(row, [pool.submit(_one, row.name, seed) for seed in range(seeds)]) for row in rows]
        for row, parts in waiting:
            outcomes = [outcome for part in parts for outcome in part.result()]
            yield verdict(row.name, row.kind, outcomes), outcomes


def main(arguments: list[str]) -> int:
    """Run what is asked for; 1 if a row falls short."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help="only rows whose name matches this regular expression")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--only", type=int, help="one seed, with all its answers")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    rows = [row for row in ROWS if re.search(asked.rows, row.name)]
    if asked.only is not None:
        for row in rows:
            for outcome in row.outcomes(asked.only):
                print(_line(outcome))
        return 0
    found, started, short = [], time.perf_counter(), 0
    for judged, outcomes in table(rows, asked.seeds):
        short += not judged.ok
        print(f"{'ok   ' if judged.ok else 'SHORT'} {judged.row} ({time.perf_counter() - started:.0f} s)")
        for each in judged.scores:
            print(f"        {each}")
        for fault in judged.faults:
            print(f"      ! {fault}")
        wrong = [outcome for outcome in outcomes if outcome.confidently_wrong]
        for outcome in wrong[:_PRINTED]:
            print(f"        confident error: {_line(outcome)}")
        sys.stdout.flush()
        found.append(_as_json(judged))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(f"{short} of {len(rows)} rows fall short; {time.perf_counter() - started:.0f} s")
    return 1 if short else 0


def _line(outcome: Outcome) -> str:
    answer, known = outcome.answer, outcome.known
    given = "refused: " + answer.reason if answer.value is None else f"{answer.value:.4g}"
    width = "" if answer.half_width is None else f" ± {answer.half_width:.2g}"
    oracle = f"truth {known.truth:.4g}, oracle ± {known.half_width:.2g}"
    return f"seed {outcome.seed} {outcome.region} {outcome.quantity}: {given}{width}; {oracle}"


def _as_json(judged: Verdict) -> dict[str, Any]:
    return {
        "row": judged.row,
        "kind": judged.kind,
        "ok": judged.ok,
        "cost": judged.cost,
        "faults": judged.faults,
        "scores": [vars(each) for each in judged.scores],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
